"""What is wrong with the learner's options is one line, before there is a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rlhfless.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learner-processes", "0"], "learner_processes is 0; at least 1 is needed"),
        (["--lr-scheduler-type", "linear", "--warmup-steps", "9", "--steps", "3"], "ends at step 3, with 9 steps of warm-up"),
        (["--learner-processes", "2", "--optimizer", "adafactor"], "needs whole matrices, but 2 processes shard them"),
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
