"""Chooses how many tokens to draft for every response of a batch: one length by the size of the batch.

A pass that verifies n drafted tokens for each of B responses feeds ``B (1 + n)`` tokens and reads the batch's KV cache once.
It takes ``latency.iteration_s(B (1 + n), K)`` and the drafting itself. It commits ``1 + sum of survival`` tokens per response.
So drafts pay where iterations are bound by memory: in small batches and with long contexts. In large batches the fed tokens
cost more than they bring, and the best length is 0.

Responses accept different shares of their drafts: ``solver.timing.even_lengths`` chooses a length per response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.acceptance import Acceptance
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel

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
        >>> from solver.model.acceptance import Acceptance
        >>> from solver.timing.draft_length import length_table
        >>> latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4, max_batch=64)
        >>> [(r.first_batch, r.last_batch, r.draft_tokens) for r in length_table(latency, Acceptance([0.5]), 100)]
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
