"""Computes affine lower bounds of iteration times, from which the bounds on whole schedules are derived.

Input: a latency model. Table and minorant are bilinear in fed tokens and KV tokens per fed token on every cell of the table. So
a minorant at the corners of a cell is one inside it. With separate prefill an iteration feeds one token per response.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.latency import LatencyModel
from solver.model.ordered_sums import dot
from solver.model.workload import Workload

MIN_BATCH = 1e-30  # so far from every other that it has no weight


@lru_cache(maxsize=64)  # many steps are bounded with the same latency model
def affine_minorants(
    latency: LatencyModel, max_context: int, max_fed_tokens: int | None = None
) -> tuple[tuple[float, float, float], ...]:
    """Return (a, b, c) with ``a + b F + c K <= iteration_s`` for all iterations of up to ``max_fed_tokens`` fed tokens F and
    contexts up to ``max_context``. When None, F is at most as many as there are slots, or as the token budget allows.

    Without a table this is the fit itself. With a table, one minorant is the smallest time of the table. A linear programme per
    batch region gives another one that is tight there (none where the extrapolated table falls to 0). All are lowered slightly
    against rounding.
    """
    shrink = 1 - 1e-9
    if latency.table is None:
        return ((latency.base_s * shrink, latency.per_response_s * shrink, latency.per_kv_token_s * shrink),)
    from ortools.linear_solver import pywraplp

    table, max_fed_tokens = latency.table, max_fed_tokens or latency.token_budget or latency.max_batch
    max_context = min(max_context, int(table.context_tokens[-1]))  # responses that outgrow the table are refused on this actor
    batches = np.unique(np.append(table.batch[table.batch < max_fed_tokens], [1.0, latency.max_batch, max_fed_tokens]))
    contexts = np.unique(np.append(table.context_tokens[table.context_tokens < max_context], [0.0, max_context]))
    size, context = (x.ravel() for x in np.meshgrid(batches, contexts, indexing="ij"))
    table_s = table.continued(size, size * context)
    unit = float(table.iteration_s.mean())  # scaled to numbers around 1
    minorants = [(float(table.iteration_s.min()) * shrink, 0.0, 0.0)]
    for centre in (1, 4, 16, 64, latency.max_batch):
        doublings = np.log2(np.maximum(size, MIN_BATCH) / centre)  # a grid may begin at an empty batch
        weight = np.exp(-(doublings**2) / 2) / np.maximum(table_s, 1e-9)
        lp = pywraplp.Solver.CreateSolver("GLOP")
        a, b, c = (lp.NumVar(0.0, lp.infinity(), name) for name in "abc")
        for n, x, t in zip(size, context, table_s, strict=True):
            lp.Add(a + b * (n / latency.max_batch) + c * (n * x / (latency.max_batch * max_context)) <= t / unit)
        share = weight / weight.sum()
        lp.Maximize(
            a
            + b * float(dot(share, size)) / latency.max_batch
            + c * float(dot(share, size * context)) / (latency.max_batch * max_context)
        )
        if lp.Solve() != pywraplp.Solver.OPTIMAL:
            continue
        base, load, kv = (max(0.0, x.solution_value()) * unit * shrink for x in (a, b, c))
        load, kv = load / latency.max_batch, kv / (latency.max_batch * max_context)
        excess = float(
            (base + load * size + kv * size * context - table_s).max()
        )  # the solver keeps limits to a tolerance only
        minorants.append((max(0.0, base - max(0.0, excess)), load, kv))
    return tuple(minorants)


def prompt_token_s(latency: LatencyModel, per_fed_token_s: float) -> float:
    """Return the least seconds of a token of a prompt beside the minorant with this b. A mixed iteration of the table feeds it
    like any other token."""
    return per_fed_token_s if latency.mixes and latency.table is not None else latency.prefill_per_token_s


def min_prompt_tokens(workload: Workload, prefill_tokens: float | None, latency: LatencyModel) -> float:
    """Return the prompt tokens that any schedule is charged for at least: every prompt once, or ``prefill_tokens`` instead.

    Where the latency model mixes, the last token of each prompt may be fed as one that is decoded.

    Raises:
        PlanningError: ``prefill_tokens`` is no finite number of 0 or more.
    """
    if prefill_tokens is not None and not is_number(prefill_tokens, 0):
        raise PlanningError(f"prefill_tokens is {as_given(prefill_tokens)}; a finite number of 0 or more, or None, is needed")
    unfinished_prompts = np.unique(workload.prompt_of[workload.remaining_tokens > 0])
    tokens = float(workload.prompt_tokens[unfinished_prompts].sum()) if prefill_tokens is None else float(prefill_tokens)
    return max(0.0, tokens - len(unfinished_prompts)) if latency.mixes else tokens
