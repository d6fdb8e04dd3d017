"""Computes affine lower bounds of iteration times, from which the bounds on whole schedules are derived.

Input: a latency model. Table and minorant are bilinear in batch and mean context on every cell of the table, so a minorant at
the corners of a cell is one inside it.
"""

from __future__ import annotations

import numpy as np

from solver.model.latency import LatencyModel

LEAST_BATCH = 1e-30  # so far from every other that it has no weight


def affine_minorants(latency: LatencyModel, most_context: int) -> list[tuple[float, float, float]]:
    """Return (a, b, c) with ``a + b B + c K <= step_s(B, K)`` for all batches up to the slots and contexts up to
    ``most_context``.

    Without a table this is the fit itself. With a table, one minorant is the smallest time of the table. A linear programme per
    batch region gives another one that is tight there (none where the extrapolated table falls to 0). All are lowered slightly
    against rounding.
    """
    shrink = 1 - 1e-9
    if latency.table is None:
        return [(latency.base_s * shrink, latency.per_response_s * shrink, latency.per_kv_token_s * shrink)]
    from ortools.linear_solver import pywraplp

    table = latency.table
    batches = np.unique(np.append(table.batch[table.batch < latency.max_batch], [1.0, latency.max_batch]))
    contexts = np.unique(np.append(table.context_tokens[table.context_tokens < most_context], [0.0, most_context]))
    size, context = (x.ravel() for x in np.meshgrid(batches, contexts, indexing="ij"))
    limit = table.continued(size, size * context)
    unit = float(table.step_s.mean())  # scaled to numbers around 1
    minorants = [(float(table.step_s.min()) * shrink, 0.0, 0.0)]
    for centre in (1, 4, 16, 64, latency.max_batch):
        away = np.log2(np.maximum(size, LEAST_BATCH) / centre)  # in doublings; a grid may begin at an empty batch
        weight = np.exp(-(away**2) / 2) / np.maximum(limit, 1e-9)
        lp = pywraplp.Solver.CreateSolver("GLOP")
        a, b, c = (lp.NumVar(0.0, lp.infinity(), name) for name in "abc")
        for n, x, t in zip(size, context, limit, strict=True):
            lp.Add(a + b * (n / latency.max_batch) + c * (n * x / (latency.max_batch * most_context)) <= t / unit)
        share = weight / weight.sum()
        lp.Maximize(
            a
            + b * float(share @ size) / latency.max_batch
            + c * float(share @ (size * context)) / (latency.max_batch * most_context)
        )
        if lp.Solve() != pywraplp.Solver.OPTIMAL:
            continue
        base, load, kv = (max(0.0, x.solution_value()) * unit * shrink for x in (a, b, c))
        load, kv = load / latency.max_batch, kv / (latency.max_batch * most_context)
        above = float((base + load * size + kv * size * context - limit).max())  # the solver keeps limits to a tolerance only
        minorants.append((max(0.0, base - max(0.0, above)), load, kv))
    return minorants
