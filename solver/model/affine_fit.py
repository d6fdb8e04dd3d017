"""Fits affine models to times, with coefficients of 0 or more: a negative time per response has no meaning.

The fit minimises the sum of squared *relative* residuals, so that short iterations count as much as long ones.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray

DEPENDENT = 1e-10  # share of a column's length that is left beside the others, below which it is a sum of them


def fit_nonnegative(
    columns: FloatArray, seconds: FloatArray, within_s: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients of 0 or more for the (N, K) ``columns`` of (N,) ``seconds``, and the (N,) relative errors.

    Errors are relative to ``within_s``, by default ``seconds``. Exact for the few columns used here. The optimum is the
    unconstrained solution on its own support (the columns with positive coefficients), so the best feasible one of all 2^K - 1
    supports is the optimum. Sums have one order, so that every processor fits the same coefficients.
    """
    unit = np.asarray(seconds if within_s is None else within_s, dtype=float)
    relative, wanted = np.asarray(columns, dtype=float) / unit[:, None], np.asarray(seconds, dtype=float) / unit
    scale = np.maximum(np.sqrt(np.sum(relative**2, axis=0)), 1e-300)
    relative = relative / scale
    best, smallest = np.zeros(relative.shape[1]), float(dot(wanted, wanted))
    for size in range(1, relative.shape[1] + 1):
        for support in combinations(range(relative.shape[1]), size):
            part = relative[:, support]
            coefficients = _least_squares(part, wanted)
            if coefficients is None or coefficients.min() < 0:
                continue
            residual = float(np.sum((dot(part, coefficients) - wanted) ** 2))
            if residual < smallest:
                smallest, best = residual, np.zeros(relative.shape[1])
                best[list(support)] = coefficients
    return best / scale, np.abs(dot(relative, best) - wanted)


def triangle(columns: FloatArray) -> FloatArray:
    """Return the (K, K) upper triangular R of (N, K) columns with ``R.T @ R == columns.T @ columns``.

    It represents the columns in every sum of squares. Computed by modified Gram-Schmidt with sums of one order; LAPACK's QR
    differs in the last digits from processor to processor. A column that is a sum of earlier ones has 0 on the diagonal.
    """
    rest = list(np.asarray(columns, dtype=float).T)
    upper = np.zeros((len(rest), len(rest)))
    for k, column in enumerate(rest):
        length = np.sqrt(dot(column, column))
        if length <= DEPENDENT * np.sqrt(dot(columns[:, k], columns[:, k])):
            continue
        upper[k, k], unit = length, column / length
        for later in range(k + 1, len(rest)):
            upper[k, later] = dot(unit, rest[later])
            rest[later] = rest[later] - upper[k, later] * unit
    return upper


def _least_squares(columns: FloatArray, wanted: FloatArray) -> FloatArray | None:
    """Return the least-squares coefficients; None where a column is a sum of the others, which a smaller support has without
    it.
    """
    count = columns.shape[1]
    upper = triangle(np.column_stack([columns, wanted]))
    coefficients = upper[:count, count].copy()
    for k in reversed(range(count)):
        if upper[k, k] == 0.0:
            return None
        coefficients[k] = (coefficients[k] - dot(upper[k, k + 1 : count], coefficients[k + 1 :])) / upper[k, k]
    return coefficients


def fit_iterations(batch: FloatArray, context_tokens: FloatArray, iteration_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return base, per-response and per-KV-token seconds of (N,) iterations, and their (N,) relative errors.

    Args:
        context_tokens: (N,) mean KV tokens of a response of the batch.
    """
    return fit_nonnegative(np.stack([np.ones(len(batch)), batch, batch * context_tokens], axis=1), iteration_s)
