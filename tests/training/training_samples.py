"""A tiny run that learns: noise is generated, rewarded by what it looks like, and learned from in steps that change texts."""

from __future__ import annotations

from typing import Any

from rlhfless.training.arithmetic import ArithmeticTask, Problem
from rlhfless.training.config import TrainConfig

SMALL = {
    "steps": 3, "pool": 8, "prompts_per_step": 4, "samples": 3, "response_limit": 24, "time_limit_s": 0.05,
    "learning_rate": 1e-2,
}  # fmt: skip


def config(**changes: object) -> TrainConfig:
    values: dict[str, Any] = {**SMALL, **changes}
    return TrainConfig(**values)


def variety(task: ArithmeticTask, problem: Problem, response_text: str) -> float:
    """A reward that untrained models earn in different amounts: the share of characters that differ."""
    return len(set(response_text)) / max(1, len(response_text))
