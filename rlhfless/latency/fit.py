"""Fits affine models to measured times: of a decode iteration, and of a change of the batch.

Residuals are relative, and coefficients are 0 or more (``solver.model.affine_fit``). The time of a change is a small difference
of iterations, so its residuals are relative to these iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhfless.latency.timing import TimedChange
from solver.model.affine_fit import fit_iterations, fit_nonnegative
from solver.model.iteration_table import IterationTable
from solver.model.workload import FloatArray


@dataclass(frozen=True)
class AffineFit:
    """``base_s + per_response_s * batch + per_kv_token_s * KV tokens``, with its residuals at the fitted points."""

    base_s: float
    per_response_s: float
    per_kv_token_s: float
    mean_relative_error: float
    median_relative_error: float
    p90_relative_error: float
    max_relative_error: float
    points: int


def residuals(errors: FloatArray) -> dict[str, float]:
    """Return a profile's summary of the (N,) relative errors of a fit."""
    return {
        "mean_relative_error": float(errors.mean()),
        "median_relative_error": float(np.median(errors)),
        "p90_relative_error": float(np.quantile(errors, 0.9)),
        "max_relative_error": float(errors.max()),
    }


@dataclass(frozen=True)
class ChangeFit:
    """Time of a change of the batch: ``base_s`` if responses join, ``per_join_s`` and ``per_end_s`` for each that joins or
    ends, and ``per_token_s`` for each prefilled token. The (N,) ``errors`` are relative to the iterations around it.
    """

    base_s: float
    per_token_s: float
    per_join_s: float
    per_end_s: float
    errors: FloatArray


def held_points(table: IterationTable, max_batch: int, kv_capacity_tokens: int) -> np.ndarray:
    """Return (B, X) bool: the points of the table that an actor can reach with its slots and its KV memory."""
    return (table.batch[:, None] <= max_batch) & (table.batch[:, None] * table.context_tokens[None, :] <= kv_capacity_tokens)


def fit_table(table: IterationTable, max_batch: int, kv_capacity_tokens: int, max_context: float = math.inf) -> AffineFit:
    """Return the affine fit of a decode iteration over the points of the table that an actor can reach.

    Args:
        max_context: tokens of a response up to which points count.
    """
    rows, cols = np.nonzero(held_points(table, max_batch, kv_capacity_tokens) & (table.context_tokens <= max_context))
    fitted = fit_iterations(table.batch[rows], table.context_tokens[cols], table.iteration_s[rows, cols])
    (base, per_response, per_kv_token), errors = fitted
    return AffineFit(float(base), float(per_response), float(per_kv_token), **residuals(errors), points=len(errors))


def fit_prompt_tokens(
    table: IterationTable, fit: AffineFit, max_batch: int, token_budget: int, kv_capacity_tokens: int
) -> tuple[float, FloatArray]:
    """Return what a token of a prompt adds to a mixed iteration, and the (N,) relative errors of the fit with it.

    The fit is over iterations with the batches and contexts of the table that an actor can reach. Each feeds so many tokens of
    prompts besides that it feeds as many tokens as a larger entry of the table.
    """
    axes = np.meshgrid(table.batch[table.batch <= max_batch], table.batch[table.batch <= token_budget], table.context_tokens)
    batch, fed, context = (axis.ravel() for axis in axes)
    kv_tokens = batch * context
    mixed = (fed > batch) & (kv_tokens <= kv_capacity_tokens)
    batch, fed, kv_tokens = batch[mixed], fed[mixed], kv_tokens[mixed]
    iteration_s = table(fed, kv_tokens)
    alone_s = fit.base_s + fit.per_response_s * batch + fit.per_kv_token_s * kv_tokens
    (per_token_s,), errors = fit_nonnegative((fed - batch)[:, None], iteration_s - alone_s, iteration_s)
    return float(per_token_s), errors


def fit_changes(changes: Sequence[TimedChange]) -> ChangeFit:
    """Return the affine fit of changes of a batch."""
    joined, tokens, ended, seconds, within_s = (np.array(column, dtype=float) for column in zip(*changes, strict=True))
    columns = np.stack([joined > 0, joined * tokens, joined, ended], axis=1)
    (base_s, per_token_s, per_join_s, per_end_s), errors = fit_nonnegative(columns, seconds, within_s)
    return ChangeFit(float(base_s), float(per_token_s), float(per_join_s), float(per_end_s), errors)
