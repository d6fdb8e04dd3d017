"""Chooses how many tokens to draft per response so that the responses of a batch finish together, and the last one early.

The most tokens per second (``solver.timing.draft_length``) drafts most for responses that accept most. These end early anyway,
and the others become stragglers. An actor is done when its last response is, so what counts is the number of passes that each
response still needs: its remaining tokens over its tokens per pass.

A pass of F fed tokens takes T(F). The lengths minimise ``T(F) (mean of passes ** p) ** (1 / p)``. With p = 1 all passes count
alike; with large p only the longest of them do. Which response ends last is not certain, so p is finite: about the number of
standard deviations by which the largest of a batch exceeds the mean, over the standard deviation of log passes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S

EVENNESS = 6.0  # the power p: 2.4 standard deviations (a batch of 64) over 0.4
LEAST_SAVING = 0.05  # that drafts must promise: survival is estimated, and a draft that is refused costs time for certain


def even_lengths(
    latency: LatencyModel,
    survival: FloatArray,
    kv_tokens: float,
    remaining_tokens: ArrayLike | None = None,
    *,
    max_fed_tokens: int | None = None,
) -> IntArray:
    """Return the (B,) tokens to draft for each response of a batch; 0 everywhere where drafts save less than 5 %.

    Args:
        survival: (B, N) estimated share of passes in which each response accepts each position; it does not rise along a row.
        kv_tokens: KV tokens that the batch holds in all.
        remaining_tokens: (B,) tokens that each response is predicted to need still; None: all the same number.
        max_fed_tokens: the most tokens that the pass may feed, one per response included. The latency model's table also
            limits them.

    Raises:
        PlanningError: survival has another shape, or remaining tokens are not one number of 0 or more per response.

    Example:
        >>> import numpy as np, solver
        >>> from solver.timing.even_lengths import even_lengths
        >>> latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-3)
        >>> even_lengths(latency, np.array([[0.9, 0.8, 0.1], [0.4, 0.3, 0.2]]), 1000)
        array([1, 2])
    """
    shares = np.asarray(survival, dtype=float)
    if shares.ndim != 2:
        raise PlanningError(f"survival has shape {shares.shape}; one row per response and one column per position are needed")
    batch, positions = shares.shape
    if not batch:
        return np.zeros(0, np.int64)
    passes = 1 / np.cumsum(np.hstack([np.ones((batch, 1)), shares]), axis=1)
    if remaining_tokens is not None:
        passes *= _remaining(remaining_tokens, batch)[:, None]
    powers = (passes / max(float(passes.max()), 1e-300)) ** EVENNESS
    gains = (powers[:, :-1] - powers[:, 1:]).ravel()  # along a row they fall: tokens per pass are concave in the length
    order = np.argsort(-gains, kind="stable")[: _room(latency, batch, max_fed_tokens)]
    order = order[: int(np.count_nonzero(gains[order] > 0))]
    fed = np.arange(batch, batch + len(order) + 1)
    pass_s = latency.iteration_s(fed, kv_tokens)
    pass_s[1:] += DRAFT_CALL_S + DRAFT_TOKEN_S * np.arange(1, len(fed))
    left = powers[:, 0].sum() - np.concatenate([np.zeros(1), gains[order].cumsum()])
    needed_s = pass_s * left.clip(min=powers[:, -1].sum()) ** (1 / EVENNESS)
    drafted = int(needed_s.argmin())
    if needed_s[drafted] > (1 - LEAST_SAVING) * needed_s[0]:
        drafted = 0
    return np.bincount(order[:drafted] // positions, minlength=batch)


def _remaining(tokens: ArrayLike, batch: int) -> FloatArray:
    numbers = np.asarray(tokens, dtype=float)
    if numbers.shape != (batch,) or not np.all(np.isfinite(numbers) & (numbers >= 0)):
        raise PlanningError(f"remaining_tokens has shape {numbers.shape}; {batch} finite numbers of 0 or more are needed")
    return numbers


def _room(latency: LatencyModel, batch: int, max_fed_tokens: int | None) -> int | None:
    """Return how many drafted tokens a pass may feed; None: as many as there are."""
    limits = [
        limit for limit in (max_fed_tokens, None if latency.table is None else latency.table.batch[-1]) if limit is not None
    ]
    return max(int(min(limits)) - batch, 0) if limits else None
