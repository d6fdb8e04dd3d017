"""Scales times of a latency model by one factor: from a log's own times, a machine's drift, or a straggler's slow-down."""

from __future__ import annotations

from dataclasses import replace

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.iteration_table import IterationTable
from solver.model.latency import TIMES, LatencyModel

RUNNING = ("base_s", "per_response_s", "per_kv_token_s", "join_s", "prefill_base_s", "prefill_per_token_s")
"""Times of an actor that runs: its iterations, prefills and joins, not its start, weight syncs and transfers."""


def scaled(latency: LatencyModel, factor: float, times: tuple[str, ...] = TIMES) -> LatencyModel:
    """Return the latency model with seconds multiplied by ``factor``; the name stays the same.

    Args:
        times: names of the seconds that are multiplied; all of them by default. The table of iterations always is.

    Raises:
        PlanningError: the factor is not a number above 0.
    """
    if not (is_number(factor, 0) and factor > 0):
        raise PlanningError(f"the factor of a latency model is {as_given(factor)}; a finite number above 0 is needed")
    if factor == 1.0:
        return latency
    table = latency.table
    if table is not None:
        table = IterationTable(table.batch, table.context_tokens, table.iteration_s * factor)
    return replace(latency, table=table, **{name: getattr(latency, name) * factor for name in times})
