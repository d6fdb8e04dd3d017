"""The learner's options on the command line are those of the configuration, and what is wrong with them is one line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rlhfless.cli import main
from rlhfless.cli.learner_options import learner_options
from rlhfless.training.config import TrainConfig


def test_every_option_is_a_field_of_the_configuration_with_its_default() -> None:
    given: dict[str, Any] = {}
    result = CliRunner().invoke(click.command()(learner_options(lambda **options: given.update(options))), [])
    assert result.exit_code == 0
    assert len(given) >= 16
    defaults = {field.name: field.default for field in fields(TrainConfig)}
    assert given == {name: defaults[name] for name in given}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learner-processes", "0"], "learner_processes is 0; at least 1 is needed"),
        (["--schedule", "linear", "--warmup-steps", "9", "--steps", "3"], "ends at step 3, with 9 steps of warm-up"),
        (["--learner-processes", "2", "--optimizer", "adafactor"], "needs whole matrices, which 2 processes share"),
        (["--precision", "float8"], "'float8' is not one of 'float32', 'bfloat16'"),
        (["--max-grad-norm", "-1"], "max_grad_norm (-1.0) must be above 0"),
    ],
)
def test_wrong_values_are_one_line_before_anything_is_written(arguments: list[str], message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = CliRunner().invoke(main, ["train", *arguments, "-o", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "run").exists()
