"""Computes errors of predicted times on held-out data, next to the errors of a constant.

A time is predicted from the times of other steps only. With few steps each is left out once; with many, a fifth of them at a
time. The constant is the median of the same other times.

The 90th percentile of few errors is too small for 9 of 10 other times. The k-th smallest of n errors is stated instead, with
k = ceil(0.9 (n + 1)) (split conformal prediction: Lei et al., JASA 2018, section 2). It holds for times between logged ones.
Later times drift with the machine; on public logs the largest error holds for most of them (``stated_errors.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solver.model.workload import FloatArray

MAX_LEFT_OUT = 24  # steps that are left out one by one
FOLDS = 5
SHARE = 0.9  # of other times that a stated error holds for


@dataclass(frozen=True, eq=False)
class HeldOut:
    """(N,) measured times, each with a prediction by a model that was fitted without it.

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
        """Return (N,) relative errors of the predictions."""
        return np.abs(self.predicted / self.seconds - 1.0)

    @property
    def constant_errors(self) -> FloatArray:
        """Return (N,) relative errors of the constant."""
        return np.abs(self.constant / self.seconds - 1.0)

    @property
    def constant_is_better(self) -> bool:
        """Whether the constant's median error is below that of the predictions."""
        return len(self.seconds) > 1 and float(np.median(self.constant_errors)) < float(np.median(self.errors)) - 1e-6


def held_out(seconds: ArrayLike, steps: ArrayLike, model: Callable[[np.ndarray], FloatArray]) -> HeldOut:
    """Predict every time from those of other steps.

    Args:
        seconds: (N,) measured, above 0. steps: (N,) the step of each; if all are of one step, single times are left out.
        model: (N,) bool of the times it may learn from → (N,) predictions of all.

    Returns:
        The predictions; NaN if there is only one time.
    """
    took, named = np.asarray(seconds, dtype=float), np.asarray(steps)
    of = np.unique(named, return_inverse=True)[1].ravel()
    noun = "steps"
    if len(took) and of.max() == 0:
        of, noun = np.arange(len(took)), "times of one step"
    groups = int(of.max()) + 1 if len(took) else 0
    if groups < 2:
        unknown = np.full(len(took), np.nan)
        return HeldOut(named, took, unknown, unknown, "no held-out times: there is only one")
    if groups > MAX_LEFT_OUT:
        of, how = of % FOLDS, f"{FOLDS} folds over {groups:,} {noun}"
    else:
        how = f"leave-one-out over {groups:,} {noun}"
    predicted, constant = np.empty(len(took)), np.empty(len(took))
    for part in range(int(of.max()) + 1):
        left = of == part
        predicted[left], constant[left] = model(~left)[left], np.median(took[~left])
    return HeldOut(named, took, predicted, constant, how)


def error_of_most(errors: FloatArray) -> float | None:
    """Return the relative error that 9 of 10 other times are within; None for fewer than 9 errors, which tell no such range.

    Args:
        errors: (N,) of held-out times.

    Example:
        >>> error_of_most(np.arange(1, 25) / 100)
        0.23
    """
    rank = math.ceil(SHARE * (len(errors) + 1))
    return float(np.sort(errors)[rank - 1]) if rank <= len(errors) else None


def errors_in_words(errors: FloatArray) -> str:
    """Return the median of (N,) held-out errors, the range that holds for 9 of 10, and the largest.

    Example:
        >>> errors_in_words(np.array([0.01, 0.02, 0.06]))
        'median 2.0%, largest 6.0% (3 are too few for a range that holds for 9 of 10)'
    """
    median, most, largest = float(np.median(errors)), error_of_most(errors), float(errors.max())
    if most is None:
        return f"median {median:.1%}, largest {largest:.1%} ({len(errors)} are too few for a range that holds for 9 of 10)"
    return f"median {median:.1%}, 9 of 10 within {most:.1%}, largest {largest:.1%}"


def closest(candidates: Sequence[HeldOut]) -> int:
    """Return the index of the candidate with the smallest median error; the first of equals."""
    return int(np.argmin([round(float(np.median(candidate.errors)), 9) for candidate in candidates]))
