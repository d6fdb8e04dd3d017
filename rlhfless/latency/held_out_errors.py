"""Errors of predicted times out of sample, beside those of a constant.

Knows numbers only; nothing of logs or profiles. A time is predicted from other steps' times alone: each step is left out once,
of many steps a fifth at a time. The constant is the median of the same other times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solver.model.workload import FloatArray

MOST_LEFT_OUT = 24  # steps that are left out one by one
FOLDS = 5


@dataclass(frozen=True, eq=False)
class HeldOut:
    """(N,) times, and what was predicted of each without it.

    Attributes:
        steps: the step of each. seconds: measured. predicted: by the model.
        constant: the median of the times that were not left out. how: what was left out, in words.
    """

    steps: np.ndarray
    seconds: FloatArray
    predicted: FloatArray
    constant: FloatArray
    how: str

    @property
    def errors(self) -> FloatArray:
        """(N,) relative errors of the predictions."""
        return np.abs(self.predicted / self.seconds - 1.0)

    @property
    def constant_errors(self) -> FloatArray:
        """(N,) relative errors of the constant."""
        return np.abs(self.constant / self.seconds - 1.0)

    @property
    def constant_is_better(self) -> bool:
        """Whether the constant's median error is below that of the predictions."""
        return len(self.seconds) > 1 and float(np.median(self.constant_errors)) < float(np.median(self.errors)) - 1e-6


def held_out(seconds: ArrayLike, steps: ArrayLike, model: Callable[[np.ndarray], FloatArray]) -> HeldOut:
    """Predict every time from those of other steps.

    Args:
        seconds: (N,) measured, above 0. steps: (N,) the step of each; where all are of one step, times are left out instead.
        model: (N,) bool of the times that may be learned from → (N,) predictions of all.

    Returns:
        Predictions that are NaN where there is a single time, of which nothing can be said.
    """
    took, named = np.asarray(seconds, dtype=float), np.asarray(steps)
    of = np.unique(named, return_inverse=True)[1].ravel()
    noun = "steps"
    if len(took) and of.max() == 0:
        of, noun = np.arange(len(took)), "times of one step"
    groups = int(of.max()) + 1 if len(took) else 0
    if groups < 2:
        unknown = np.full(len(took), np.nan)
        return HeldOut(named, took, unknown, unknown, "nothing: there is one time")
    if groups > MOST_LEFT_OUT:
        of, how = of % FOLDS, f"{FOLDS} folds over {groups:,} {noun}"
    else:
        how = f"leave-one-out over {groups:,} {noun}"
    predicted, constant = np.empty(len(took)), np.empty(len(took))
    for fold in range(int(of.max()) + 1):
        left = of == fold
        predicted[left], constant[left] = model(~left)[left], np.median(took[~left])
    return HeldOut(named, took, predicted, constant, how)


def closest(candidates: Sequence[HeldOut]) -> int:
    """Which candidate has the least median error; the first of equals."""
    return int(np.argmin([round(float(np.median(one.errors)), 9) for one in candidates]))
