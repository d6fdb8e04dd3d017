"""What is wrong with the learner's options is one line, before there is a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from error_messages import refusal_line, refused_command

from rlhfless.cli import main


def train(arguments: list[str], out: Path) -> Result:
    """``rlhfless train`` with these arguments."""
    pytest.importorskip("torch")
    return CliRunner().invoke(main, ["train", *arguments, "-o", str(out)])


WRONG_VALUES = [
    (["--learner-processes", "0"], ["--learner-processes", "0"]),
    (["--learner-processes", "two"], ["--learner-processes", "two"]),
    (["--learning", "stream", "--learner-gpus", "all"], ["--learner-gpus", "all", "'auto'"]),
    (["--learner-gpus", "auto"], ["--learner-gpus", "'auto'", "'stream'"]),
    (["--prompts-per-step", "3"], ["--prompts-per-step", "3", "128"]),
    (["--gamma", "0.9"], ["--gamma", "'ppo'", "'grpo'"]),
    (["--lr-scheduler-type", "linear", "--warmup-steps", "9", "--steps", "3"], ["linear", "3", "9"]),
    (["--learner-processes", "2", "--optimizer", "adafactor"], ["adafactor", "2"]),
    (["--max-grad-norm", "-1"], ["--max-grad-norm", "-1"]),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG_VALUES, ids=[" ".join(options) for options, _ in WRONG_VALUES])
def test_wrong_values_are_one_line_before_anything_is_written(arguments: list[str], named: list[str], tmp_path: Path) -> None:
    refused_command(train(arguments, tmp_path / "run"), *named)
    assert not (tmp_path / "run").exists()


def test_an_unknown_number_format_is_refused_by_click(tmp_path: Path) -> None:
    line = refusal_line(train(["--learner-dtype", "float8"], tmp_path / "run"))
    assert all(name in line for name in ("'float8'", "'float32'", "'bfloat16'")), line
    assert not (tmp_path / "run").exists()
