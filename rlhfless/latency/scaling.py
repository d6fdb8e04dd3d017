"""A latency model that is slower or faster by one factor everywhere.

Knows latency models only. Where the factor comes from (a log's own times, a machine's drift) is somebody else's knowledge.
"""

from __future__ import annotations

from dataclasses import replace

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.latency import TIMES, LatencyModel, StepTable


def scaled(latency: LatencyModel, factor: float) -> LatencyModel:
    """The model with all its seconds times ``factor``; its name stays, and plans of it stay the same but for their times.

    Raises:
        PlanningError: the factor is not a number above 0.
    """
    if not (is_number(factor, 0) and factor > 0):
        raise PlanningError(f"the factor of a latency model is {as_given(factor)}; a finite number above 0 is needed")
    if factor == 1.0:
        return latency
    table = latency.table
    if table is not None:
        table = StepTable(table.batch, table.context_tokens, table.step_s * factor)
    return replace(latency, table=table, **{name: getattr(latency, name) * factor for name in TIMES})
