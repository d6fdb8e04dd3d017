"""Scales all times of a latency model by one factor, for example from a log's own times or a machine's drift."""

from __future__ import annotations

from dataclasses import replace

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.iteration_table import IterationTable
from solver.model.latency import TIMES, LatencyModel


def scaled(latency: LatencyModel, factor: float) -> LatencyModel:
    """Return the latency model with all seconds multiplied by ``factor``; the name stays the same.

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
    return replace(latency, table=table, **{name: getattr(latency, name) * factor for name in TIMES})
