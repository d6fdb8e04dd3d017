"""Fits affine models to times, with coefficients of 0 or more: a negative time per response has no meaning.

The fit minimises the sum of squared *relative* residuals, so that short iterations count as much as long ones.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from solver.model.workload import FloatArray


def fit_nonnegative(
    columns: FloatArray, seconds: FloatArray, within_s: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients of 0 or more for the (N, K) ``columns`` of (N,) ``seconds``, and the (N,) relative errors.

    Errors are relative to ``within_s``, by default ``seconds``. Exact for the few columns used here. The optimum is the
    unconstrained solution on its own support (the columns with positive coefficients), so the best feasible one of all 2^K - 1
    supports is the optimum.
    """
    unit = np.asarray(seconds if within_s is None else within_s, dtype=float)
    relative, wanted = np.asarray(columns, dtype=float) / unit[:, None], np.asarray(seconds, dtype=float) / unit
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    relative = relative / scale
    best, smallest = np.zeros(relative.shape[1]), float(wanted @ wanted)
    for size in range(1, relative.shape[1] + 1):
        for support in combinations(range(relative.shape[1]), size):
            part = relative[:, support]
            coefficients = np.linalg.lstsq(part, wanted, rcond=None)[0]
            residual = float(np.sum((part @ coefficients - wanted) ** 2))
            if coefficients.min() >= 0 and residual < smallest:
                smallest, best = residual, np.zeros(relative.shape[1])
                best[list(support)] = coefficients
    return best / scale, np.abs(relative @ best - wanted)


def fit_iterations(batch: FloatArray, context_tokens: FloatArray, iteration_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return base, per-response and per-KV-token seconds of (N,) iterations, and their (N,) relative errors.

    Args:
        context_tokens: (N,) mean KV tokens of a response of the batch.
    """
    return fit_nonnegative(np.stack([np.ones(len(batch)), batch, batch * context_tokens], axis=1), iteration_s)
