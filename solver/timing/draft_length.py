"""Chooses how many tokens to draft per response: one length for a batch size, or one per response of a batch.

A pass that verifies n drafted tokens for each of B responses feeds ``B (1 + n)`` tokens and reads the batch's KV cache once.
It takes ``latency.iteration_s(B (1 + n), K)`` and the drafting itself. It commits ``1 + sum of survival`` tokens per response.
So drafts pay where iterations are bound by memory: in small batches and with long contexts. In large batches the fed tokens
cost more than they bring, and the best length is 0.

Responses accept different shares of their drafts, so one length for all is worse than a length per response:

- ``choose_lengths`` (adaptive): the most tokens per second. A pass's time depends on the number of fed tokens only, so the best
  draft of a given number takes the positions that are likeliest to be accepted.
- ``critical_lengths``: an actor is done when its last response is. In the affine model it takes ``a max P_i + sum of loads``
  for P_i passes of each response, so drafts of the responses that finish last also save base time of all others. They
  are as long as the number of passes requires in which everybody is best done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from solver.model.acceptance import Acceptance
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray

PASS_CANDIDATES = 13  # numbers of passes that critical_lengths tries
LAST_SHARE = 0.25  # of responses, those with the most remaining passes, that critical_lengths drafts longer for
DRAFT_CALL_S, DRAFT_TOKEN_S = 1e-4, 2e-6  # of a suffix trie in plain Python, per pass and per drafted token


@dataclass(frozen=True)
class DraftLength:
    """The best draft for batches of ``first_batch`` to ``last_batch`` responses.

    Attributes:
        draft_tokens: tokens to draft per response; 0 where drafting does not pay.
        speedup: seconds per token without drafts over those with this draft, at ``first_batch`` responses.
    """

    first_batch: int
    last_batch: int
    draft_tokens: int
    speedup: float


def seconds_per_token(
    latency: LatencyModel, batch: int, context_tokens: float, acceptance: Acceptance, draft_tokens: int
) -> float:
    """Return the seconds per token and response of passes that verify ``draft_tokens`` drafted tokens for each response.

    Args:
        batch: responses that are decoded at once. context_tokens: mean KV tokens of each of them.

    Raises:
        PlanningError: the pass lies beyond the latency model's table.
    """
    drafting_s = DRAFT_CALL_S + DRAFT_TOKEN_S * batch * draft_tokens if draft_tokens else 0.0
    pass_s = float(latency.iteration_s(batch * (1 + draft_tokens), batch * context_tokens))
    return (pass_s + drafting_s) / acceptance.tokens_per_pass(draft_tokens)


def best_length(latency: LatencyModel, batch: int, context_tokens: float, acceptance: Acceptance) -> tuple[int, float]:
    """Return the draft length with the least seconds per token, and its speed-up over decoding without drafts.

    The length is 0 exactly where no length is faster. Lengths whose pass the latency model does not know are left out.
    """
    if not isinstance(batch, int | np.integer) or batch < 1:
        raise PlanningError(f"batch is {as_given(batch)}; a whole number of 1 or more is needed")
    alone_s = seconds_per_token(latency, batch, context_tokens, acceptance, 0)
    best, best_s = 0, alone_s
    for length in range(1, acceptance.max_draft_tokens + 1):
        if latency.table is not None and batch * (1 + length) > latency.table.batch[-1]:
            break
        length_s = seconds_per_token(latency, batch, context_tokens, acceptance, length)
        if length_s < best_s:
            best, best_s = length, length_s
    return best, alone_s / best_s


def length_table(
    latency: LatencyModel, acceptance: Acceptance, context_tokens: float, batches: Sequence[int] | None = None
) -> list[DraftLength]:
    """Return the best draft length by batch size, as ranges without gaps.

    vLLM takes ``[(first_batch, last_batch, draft_tokens), ...]`` as ``num_speculative_tokens_per_batch_size``.

    Args:
        context_tokens: mean KV tokens of a response.
        batches: sizes to try, rising from 1; all powers of two and halfway points up to the slots when None.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4, max_batch=64)
        >>> [(r.first_batch, r.last_batch, r.draft_tokens) for r in solver.length_table(latency, solver.Acceptance([0.5]), 100)]
        [(1, 47, 1), (48, 64, 0)]
    """
    most = latency.max_batch
    if batches is None:
        powers = [size for k in range(most.bit_length()) for size in (2**k, 3 * 2**k // 2) if 1 <= size <= most]
        batches = sorted({*powers, most})
    found: list[DraftLength] = []
    for batch in batches:
        length, speedup = best_length(latency, batch, context_tokens, acceptance)
        if found and found[-1].draft_tokens == length:
            found[-1] = DraftLength(found[-1].first_batch, batch, length, found[-1].speedup)
        else:
            if found:
                previous = found[-1]
                found[-1] = DraftLength(previous.first_batch, batch - 1, previous.draft_tokens, previous.speedup)
            found.append(DraftLength(batch, batch, length, speedup))
    return found


def choose_lengths(
    latency: LatencyModel,
    survival: FloatArray,
    kv_tokens: float,
    *,
    max_fed_tokens: int | None = None,
    kv_reads: Literal["once", "each"] = "once",
) -> IntArray:
    """Return the (B,) tokens to draft for each response of a batch, so that a pass takes the least seconds per token.

    It is the best of all drafts of these responses, and 0 everywhere exactly where none is faster than decoding without.

    Args:
        survival: (B, N) estimated share of passes in which each response accepts each position. It must not rise along a row;
            positions of share 0 are never drafted.
        kv_tokens: KV tokens that the batch holds in all.
        max_fed_tokens: the most tokens that the pass may feed, one per response included. The latency model's table also
            limits them.
        kv_reads: whether a pass reads each response's KV cache ``once``, or for ``each`` fed token.

    Raises:
        PlanningError: survival has another shape, a share is outside [0, 1] or a row rises.

    Example:
        >>> import numpy as np, solver
        >>> latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-3)
        >>> solver.choose_lengths(latency, np.array([[0.9, 0.8, 0.1], [0.2, 0.1, 0.0]]), 1000)
        array([2, 0])
    """
    shares = _shares(survival)
    batch = len(shares)
    likeliest_first = -np.sort(-shares, axis=None)
    room = _drafts_that_fit(latency, batch, max_fed_tokens)
    likeliest_first = likeliest_first[: min(room, np.count_nonzero(likeliest_first))]
    fed = np.arange(batch, batch + len(likeliest_first) + 1)
    tokens = np.empty(len(fed))
    tokens[0] = batch
    tokens[1:] = likeliest_first
    pass_s = latency.iteration_s(fed, kv_tokens if kv_reads == "once" else fed * (kv_tokens / max(batch, 1)))
    pass_s[1:] += DRAFT_CALL_S - DRAFT_TOKEN_S * batch + DRAFT_TOKEN_S * fed[1:]
    return _likeliest(shares, int((pass_s / tokens.cumsum()).argmin()) if batch else 0)


def critical_lengths(
    latency: LatencyModel,
    survival: FloatArray,
    remaining_tokens: ArrayLike,
    context_tokens: ArrayLike,
    *,
    max_fed_tokens: int | None = None,
    kv_reads: Literal["once", "each"] = "once",
) -> IntArray:
    """Return the (B,) tokens to draft for each response, longer for those that are predicted to finish last.

    The quarter of responses with the most remaining passes drafts the longer of two lengths: that of ``choose_lengths``, and
    the one with which everybody is done in the best number of passes. The others draft as ``choose_lengths`` says. Where not
    all fit, the likeliest of the additional positions are drafted.

    Args:
        survival, max_fed_tokens, kv_reads: as in ``choose_lengths``.
        remaining_tokens: (B,) tokens that each response is predicted to need still.
        context_tokens: (B,) KV tokens of each response.

    Raises:
        PlanningError: as in ``choose_lengths``, or there is not one number per response.

    Example:
        >>> import numpy as np, solver
        >>> latency = solver.LatencyModel("x", 1, base_s=1e-2, per_response_s=1e-3)
        >>> alike = np.tile([0.4, 0.15], (8, 1))
        >>> solver.critical_lengths(latency, alike, [900, *[100] * 7], [50] * 8)
        array([2, 0, 0, 0, 0, 0, 0, 0])
    """
    shares = _shares(survival)
    remaining, context = (_per_response(name, values, len(shares)) for name, values in (
        ("remaining_tokens", remaining_tokens), ("context_tokens", context_tokens)
    ))  # fmt: skip
    adaptive = choose_lengths(latency, shares, context.sum(), max_fed_tokens=max_fed_tokens, kv_reads=kv_reads)
    if not len(shares):
        return adaptive
    tokens_per_pass = np.ones((len(shares), shares.shape[1] + 1))
    np.cumsum(shares, axis=1, out=tokens_per_pass[:, 1:])
    tokens_per_pass[:, 1:] += 1
    passes = remaining[:, None] / tokens_per_pass
    enough = _lengths_for_best_passes(latency, passes, remaining, context, kv_reads)
    expected = passes[np.arange(len(shares)), adaptive]
    last = (expected >= np.quantile(expected, 1 - LAST_SHARE)) & (remaining > 0)
    positions = np.arange(shares.shape[1])
    more = (positions >= adaptive[:, None]) & (positions < np.where(last, enough, 0)[:, None])
    extra = np.where(more, shares, 0.0)
    room = _drafts_that_fit(latency, len(shares), max_fed_tokens) - int(adaptive.sum())
    more_drafts = _likeliest(extra, min(room, int(np.count_nonzero(extra))))
    return np.asarray(adaptive + more_drafts)


def _lengths_for_best_passes(
    latency: LatencyModel, passes: FloatArray, remaining: FloatArray, context: FloatArray, kv_reads: str
) -> IntArray:
    """Return the (B,) lengths of least load with which everybody is done in P passes, for the best P.

    Args:
        passes: (B, N + 1) passes that each response needs with each length.
    """
    drafted = np.arange(passes.shape[1])
    kv_s = latency.per_kv_token_s * (context + remaining / 2)[:, None] * (1 + drafted if kv_reads == "each" else 1)
    load_s = passes * (latency.per_response_s * (1 + drafted) + DRAFT_TOKEN_S * drafted + kv_s)
    candidates = np.linspace(passes[:, -1].max(), passes[:, 0].max(), PASS_CANDIDATES)
    in_time = np.where(passes[None] <= candidates[:, None, None] * (1 + 1e-9), load_s, np.inf)
    lengths = in_time.argmin(axis=2)
    base_s = latency.base_s + DRAFT_CALL_S * lengths.any(axis=1)
    chosen: IntArray = lengths[(base_s * candidates + in_time.min(axis=2).sum(axis=1)).argmin()]
    return chosen


def _likeliest(shares: FloatArray, count: int) -> IntArray:
    """Return the (B,) lengths of the ``count`` likeliest of all positions; among equal ones, the first."""
    if not count:
        return np.zeros(len(shares), dtype=np.int64)
    flat = shares.ravel()
    least = -np.partition(-flat, count - 1)[count - 1]
    taken = flat > least
    equal = np.flatnonzero(flat == least)
    taken[equal[: count - np.count_nonzero(taken)]] = True
    return np.asarray(taken.reshape(shares.shape).sum(axis=1))


def _drafts_that_fit(latency: LatencyModel, batch: int, max_fed_tokens: int | None) -> int:
    """Return how many drafted tokens a pass of ``batch`` responses may feed, at most."""
    ends = [batch + (1 << 40)] if max_fed_tokens is None else [int(max_fed_tokens)]
    if latency.table is not None:
        ends.append(int(latency.table.batch[-1]))
    return max(min(ends) - batch, 0)


def _shares(survival: FloatArray) -> FloatArray:
    """Return survival as (B, N) floats; refuse other shapes, shares outside [0, 1] and rows that rise."""
    shares = np.asarray(survival, dtype=float)
    if shares.ndim != 2:
        raise PlanningError(f"survival has shape {shares.shape}; one row per response and one column per position are needed")
    if not ((shares >= 0) & (shares <= 1)).all():
        row, position = np.argwhere(~((shares >= 0) & (shares <= 1)))[0].tolist()
        raise PlanningError(
            f"survival of response {row} at position {position + 1} is {shares[row, position]:g}; a share in [0, 1] is needed"
        )
    if (shares[:, 1:] > shares[:, :-1]).any():
        row, position = np.argwhere(shares[:, 1:] > shares[:, :-1])[0].tolist()
        raise PlanningError(
            f"survival of response {row} rises from {shares[row, position]:g} at position {position + 1} to "
            f"{shares[row, position + 1]:g}; it cannot rise"
        )
    return shares


def _per_response(name: str, values: ArrayLike, batch: int) -> FloatArray:
    numbers = np.asarray(values, dtype=float)
    if numbers.shape != (batch,) or not np.all(np.isfinite(numbers) & (numbers >= 0)):
        raise PlanningError(f"{name} is {as_given(values)}; a number of 0 or more for each of {batch} responses is needed")
    return numbers
