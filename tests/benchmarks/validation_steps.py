"""Step times of training runs of others, predicted from the tokens of each step by what their first halves took.

Knows three kinds of public logs; nothing of engines. A step takes a constant, a time per token and one per token of context
(tokens times their mean length), all 0 or more, fitted on the first half of a run and tested on the second, as lengths drift.
None of these logs says how its responses were batched, so generation and learning are predicted as they are logged, not
simulated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from validation_errors import signed_error

from solver.model.affine_fit import fit_nonnegative
from solver.model.workload import FloatArray

FOLDER = Path("rl-step-metrics")
SAMPLES = 8


@dataclass(frozen=True, eq=False)
class StepTimes:
    """A run's steps, in order: (n,) tokens that each generated or learned, their (n,) mean length, and its (n,) seconds."""

    name: str
    tokens: FloatArray
    mean_tokens: FloatArray
    seconds: FloatArray

    def columns(self) -> FloatArray:
        """(n, 3) what a step's time is a sum of."""
        return np.stack([np.ones(len(self.tokens)), self.tokens, self.tokens * self.mean_tokens], axis=1)

    def errors(self) -> list[float]:
        """Signed errors of the second half, by what was fitted on the first."""
        half, columns = len(self.seconds) // 2, self.columns()
        weights, _ = fit_nonnegative(columns[:half], self.seconds[:half])
        predicted = columns[half:] @ weights
        return [signed_error(float(ours), float(theirs)) for ours, theirs in zip(predicted, self.seconds[half:], strict=True)]


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


def _sampled(file: Path) -> StepTimes:
    """A run of one prompt and eight samples per step: its seconds are its tokens over its tokens per second."""
    rows = [row for row in _rows(file) if float(row["tokens_per_sec"]) > 0]
    mean = np.array([float(row["avg_response_len"]) for row in rows])
    speed = np.array([float(row["tokens_per_sec"]) for row in rows])
    return StepTimes(file.stem, SAMPLES * mean, mean, SAMPLES * mean / speed)


def _learned(file: Path) -> StepTimes:
    """A run that says how long learning took, and how many responses of which mean length were learned."""
    rows = [row for row in _rows(file) if row["time/actor_train/train_step/total"] and row["length/mean"]]
    mean = np.array([float(row["length/mean"]) for row in rows])
    responses = np.array([float(row["system/responses"]) for row in rows])
    seconds = np.array([float(row["time/actor_train/train_step/total"]) for row in rows])
    return StepTimes("rdan-grpo, learning", responses * mean, mean, seconds)


def _fixed(file: Path, part: str) -> StepTimes:
    """A part of steps whose responses all have the same length."""
    rows = _rows(file)
    seconds = np.array([float(row[f"{part}_s"]) for row in rows])
    same = np.full(len(rows), 256.0)
    return StepTimes(f"deepspeed-chat, {part}", 64 * same, same, seconds)


def read_steps(data: Path) -> Iterator[StepTimes]:
    """The runs of the data's folder."""
    for file in sorted((data / FOLDER / "reasoning-from-scratch").glob("*.csv")):
        yield _sampled(file)
    yield _learned(data / FOLDER / "rdan-grpo" / "metrics_subset.csv")
    for part in ("generate", "train", "e2e"):
        yield _fixed(data / FOLDER / "deepspeed-chat" / "opt1.3b_step_times.csv", part)


def validate(data: Path) -> list[dict[str, Any]]:
    """Every step of the second halves."""
    return [{"run": run.name, "error": error} for run in read_steps(data) for error in run.errors()]
