"""What is wrong with the learner's options is one line, before there is a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Result, run_rlhfless
from error_messages import refused_command


def train(arguments: list[str], out: Path) -> Result:
    """``rlhfless train`` with these arguments."""
    pytest.importorskip("torch")
    return run_rlhfless("train", *arguments, "-o", str(out))


WRONG_VALUES = [
    (["cluster.learner_processes=0"], ["cluster.learner_processes", "0"]),
    (["cluster.learner_processes=two"], ["cluster.learner_processes", "two"]),
    (["cluster.learning=stream", "cluster.learner_gpus=all"], ["cluster.learner_gpus", "all", "'auto'"]),
    (["cluster.learner_gpus=auto"], ["cluster.learner_gpus", "'auto'", "'stream'"]),
    (["rollout.prompts_per_step=3", "task.prompts=2"], ["rollout.prompts_per_step", "3", "2"]),
    (["algorithm.gamma=0.9"], ["algorithm.gamma", "'ppo'"]),
    (["optimizer.lr_scheduler_type=linear", "optimizer.warmup_steps=9", "steps=3"], ["linear", "3", "9"]),
    (["cluster.learner_processes=2", "optimizer.name=adafactor"], ["adafactor", "2"]),
    (["optimizer.max_grad_norm=-1"], ["optimizer.max_grad_norm", "-1"]),
    (["optimizer.learner_dtype=float8"], ["optimizer.learner_dtype", "'float8'", "'float32'", "'bfloat16'"]),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG_VALUES, ids=[" ".join(options) for options, _ in WRONG_VALUES])
def test_wrong_values_are_one_line_before_anything_is_written(arguments: list[str], named: list[str], tmp_path: Path) -> None:
    refused_command(train(arguments, tmp_path / "run"), *named)
    assert not (tmp_path / "run").exists()
