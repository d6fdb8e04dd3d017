"""Affine fits of measured times: a decode iteration of a table, and a prefill call.

Knows numbers only; nothing of files, models or GPUs.

The fit minimises the sum of squared *relative* residuals, so that short iterations count as much as long ones, under
coefficients of 0 or more (a negative time per response or per token has no meaning and would break the bounds).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from solver.latency import StepTable
from solver.workload import FloatArray


@dataclass(frozen=True)
class AffineFit:
    """``base_s + per_response_s * batch + per_kv_token_s * KV tokens`` and how well it meets its points."""

    base_s: float
    per_response_s: float
    per_kv_token_s: float
    mean_relative_error: float
    median_relative_error: float
    p90_relative_error: float
    max_relative_error: float
    points: int


def residuals(errors: FloatArray) -> dict[str, float]:
    """What a profile says of the (N,) relative errors of a fit."""
    return {
        "mean_relative_error": float(errors.mean()),
        "median_relative_error": float(np.median(errors)),
        "p90_relative_error": float(np.quantile(errors, 0.9)),
        "max_relative_error": float(errors.max()),
    }


def fit_nonnegative(columns: FloatArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Coefficients of 0 or more for the (N, K) ``columns`` of (N,) ``seconds``, and the (N,) relative errors.

    Exact for the few columns used here: the optimum is the unconstrained solution on its own support (the columns with
    positive coefficients), so the best feasible one of all 2^K - 1 supports is the optimum.
    """
    relative = np.asarray(columns, dtype=float) / np.asarray(seconds, dtype=float)[:, None]
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    relative = relative / scale
    best, least = np.zeros(relative.shape[1]), np.inf
    for size in range(1, relative.shape[1] + 1):
        for support in combinations(range(relative.shape[1]), size):
            part = relative[:, support]
            coefficients = np.linalg.lstsq(part, np.ones(len(part)), rcond=None)[0]
            residual = float(np.sum((part @ coefficients - 1.0) ** 2))
            if coefficients.min() >= 0 and residual < least:
                least, best = residual, np.zeros(relative.shape[1])
                best[list(support)] = coefficients
    return best / scale, np.abs(relative @ best - 1.0)


def held_points(table: StepTable, max_batch: int, kv_capacity_tokens: int) -> np.ndarray:
    """(B, X) bool: the points of the table that an actor can reach, by its slots and its KV memory."""
    return (table.batch[:, None] <= max_batch) & (table.batch[:, None] * table.context_tokens[None, :] <= kv_capacity_tokens)


def fit_table(table: StepTable, max_batch: int, kv_capacity_tokens: int) -> AffineFit:
    """The affine fit of a decode iteration over the points of the table that an actor can reach."""
    rows, cols = np.nonzero(held_points(table, max_batch, kv_capacity_tokens))
    batch, context = table.batch[rows], table.context_tokens[cols]
    columns = np.stack([np.ones(len(batch)), batch, batch * context], axis=1)
    (base, per_response, per_kv_token), errors = fit_nonnegative(columns, table.step_s[rows, cols])
    return AffineFit(float(base), float(per_response), float(per_kv_token), **residuals(errors), points=len(batch))


def fit_prefill(prompts: FloatArray, tokens_each: FloatArray, seconds: FloatArray) -> tuple[float, float, FloatArray]:
    """Base seconds of a prefill call, seconds per prompt token, and the (N,) relative errors."""
    tokens = np.asarray(prompts, dtype=float) * np.asarray(tokens_each, dtype=float)
    (base, per_token), errors = fit_nonnegative(np.stack([np.ones(len(tokens)), tokens], axis=1), np.asarray(seconds))
    return float(base), float(per_token), errors
