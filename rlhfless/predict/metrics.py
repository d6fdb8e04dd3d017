"""Measures the quality of predicted lengths against the true lengths."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.predict.checks import PredictionError
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray

CLOSE_TOKENS = 100


class HistoryQuality(NamedTuple):
    """Quality of length predictions: mean absolute error, rank correlation (NaN if either input is constant), share within 100
    tokens.
    """

    mean_abs_error_tokens: float
    rank_correlation: float
    share_within_100_tokens: float


def history_quality(predicted: ArrayLike, actual: ArrayLike) -> HistoryQuality:
    """Compare predicted with actual lengths.

    Args:
        predicted, actual: (R,) tokens.

    Raises:
        PredictionError: the shapes differ or there is nothing to compare.
    """
    guess, truth = np.asarray(predicted, dtype=float), np.asarray(actual, dtype=float)
    if guess.ndim != 1 or guess.shape != truth.shape or not len(guess):
        raise PredictionError(
            f"predicted has shape {guess.shape} and actual {truth.shape}; one of each per response, at least one, is needed"
        )
    error = np.abs(guess - truth)
    return HistoryQuality(float(error.mean()), _spearman(guess, truth), float((error <= CLOSE_TOKENS).mean()))


def _spearman(x: FloatArray, y: FloatArray) -> float:
    """Correlation of the ranks of x and y; equal values share their mean rank."""
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt(dot(a, a) * dot(b, b))
    return float(np.clip(dot(a, b) / scale, -1.0, 1.0)) if scale > 0 else float("nan")


def _ranks(values: FloatArray) -> FloatArray:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2.0)[which]
