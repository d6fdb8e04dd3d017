"""Turns a latency model into that of the same actor with drafts, in which an iteration still yields one token per response.

A pass that verifies n drafted tokens per response takes ``iteration_s(B (1 + n), K)`` and the drafting. It yields e(n) tokens
per response. So a token takes the time of a pass over e(n), with the best n for B and K. Plans, their bounds, rules and
what-ifs need nothing else, so they work on such a model as on any other.

It is exact where all responses accept alike. Where they differ it is optimistic: the responses of a batch that are left over
are those that accept little.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.model.acceptance import Acceptance
from solver.model.affine_fit import fit_iterations
from solver.model.errors import PlanningError
from solver.model.iteration_table import IterationTable
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S

LEAST_S = 1e-12  # of a cell whose continuation to no KV tokens takes no time
FIRST_CONTEXT, LAST_FITTED_CONTEXT = 64.0, 32768.0  # of the grid of a latency model without a table


def drafted(latency: LatencyModel, acceptance: Acceptance) -> LatencyModel:
    """Return the latency model of the same actor with drafts of the best length for each batch and context.

    One iteration of the result yields one token per response. Its table has the seconds of a pass per token of it, on the grid
    of the given table, and an affine fit to that. Iterations of more tokens than there are slots feed prompts, and stay
    as they are. No iteration takes longer than before. Without a chance of acceptance the model itself is returned.

    Args:
        acceptance: the survival of drafts, of all responses alike.

    Raises:
        PlanningError: prefill is mixed, but the model has no table.

    Example:
        >>> import solver
        >>> from solver.model.acceptance import Acceptance
        >>> from solver.timing.drafted_latency import drafted
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-4, max_batch=64)
        >>> fast = drafted(latency, Acceptance([0.8, 0.6, 0.4]))
        >>> float(fast.iteration_s(1, 500).round(6)), float(latency.iteration_s(1, 500))
        (0.001966, 0.0051)
    """
    if not acceptance.survival.any():
        return latency
    if latency.mixes and latency.table is None:
        raise PlanningError(f"latency model {latency.name!r} has mixed prefill and no table; drafts need its table")
    batch, context = _grid(latency, acceptance.max_draft_tokens)
    given = latency.table.continued if latency.table is not None else latency.iteration_s
    kv_tokens = batch[:, None] * context
    best_s = np.maximum(given(batch[:, None], kv_tokens), LEAST_S)
    ends = np.inf if latency.table is None else latency.table.batch[-1]
    for length in range(1, acceptance.max_draft_tokens + 1):
        decodes = (batch <= latency.max_batch) & (batch * (1 + length) <= ends)
        rows, kv = batch[decodes], kv_tokens[decodes]
        drafting_s = DRAFT_CALL_S + DRAFT_TOKEN_S * rows * length
        pass_s = latency.iteration_s((rows * (1 + length))[:, None], kv) + drafting_s[:, None]
        best_s[decodes] = np.minimum(best_s[decodes], pass_s / acceptance.tokens_per_pass(length))
    table = IterationTable(batch, context, best_s)
    (base_s, per_response_s, per_kv_token_s), errors = _fit(latency, table)
    return replace(
        latency,
        name=f"{latency.name} with drafts",
        base_s=float(base_s),
        per_response_s=float(per_response_s),
        per_kv_token_s=float(per_kv_token_s),
        table=table,
        fit_mean_error=float(errors.mean()),
        fit_max_error=float(errors.max()),
    )


def _grid(latency: LatencyModel, max_draft_tokens: int) -> tuple[FloatArray, FloatArray]:
    """Return batches and contexts of the effective table: those of the given one, and 1, the slots and no context besides.

    Halfway points are added, because the best length may change from one batch to the next. So are the last batch whose
    drafts of n tokens the given table knows, and the one after it, for every n.
    """
    last: FloatArray = np.zeros(0)
    if latency.table is None:
        batch = np.append(2.0 ** np.arange(np.log2(latency.max_batch)), latency.max_batch)
        longest = np.log2(max(latency.kv_capacity_tokens, LAST_FITTED_CONTEXT) / FIRST_CONTEXT)
        context = FIRST_CONTEXT * 2.0 ** np.arange(np.ceil(longest) + 1)
    else:
        batch = np.append(latency.table.batch[latency.table.batch > 0], latency.max_batch)
        context = latency.table.context_tokens
        last = np.floor(latency.table.batch[-1] / np.arange(2, max_draft_tokens + 2))
    batch = np.unique(np.append(batch, 1.0))
    more = np.concatenate([np.rint((batch[1:] + batch[:-1]) / 2), last, last + 1])
    more = more[(more >= 1) & (more <= batch[-1])]
    return np.unique(np.append(batch, more)), np.unique(np.append(context, 0.0))


def _fit(latency: LatencyModel, table: IterationTable) -> tuple[FloatArray, FloatArray]:
    """Return the affine fit of the effective table and its relative errors, at the batches and contexts of the given one, as
    far as an actor can reach them, and at one response without context."""
    rows, columns = table.batch <= latency.max_batch, table.context_tokens <= LAST_FITTED_CONTEXT
    if latency.table is not None:
        rows &= np.isin(table.batch, latency.table.batch)
        columns = np.isin(table.context_tokens, latency.table.context_tokens)
    reached = table.batch[:, None] * table.context_tokens <= latency.kv_capacity_tokens
    reached &= rows[:, None] & columns
    reached[0, 0] = True
    at, of = np.nonzero(reached)
    return fit_iterations(table.batch[at], table.context_tokens[of], table.iteration_s[at, of])
