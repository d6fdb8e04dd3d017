"""A plan beside its measured times: in the plan's unit, with its memory; other operations are refused."""

from __future__ import annotations

import pytest
from error_messages import refused

from rlhfless.plots import plot_pipeline
from solver import PlanningError
from solver.pipeline import ExecutedPlan, fused, schedule_pipeline

PLAN = schedule_pipeline(fused((2, 2, 4), (1, 1, 2), activations=(2, 1)), time_limit_s=0.1)


def test_measured_times_are_drawn_beside_the_planned_ones() -> None:
    planned = PLAN.table()
    measured = planned.drop(columns="memory").assign(start=planned["start"] * 0.06, end=planned["end"] * 0.06)
    executed = ExecutedPlan(PLAN, measured.sample(frac=1, random_state=0), 0.05)
    assert executed.latency == pytest.approx(1.2 * PLAN.latency)
    assert executed.table()["memory"].tolist() == planned["memory"].tolist()
    figure = plot_pipeline({"planned": PLAN, "measured": executed})
    assert figure.table.groupby("plan", sort=False)["end"].max().tolist() == [PLAN.latency, executed.latency]
    assert "measured takes" in figure.layout.title.text


def test_other_operations_are_refused() -> None:
    rows = PLAN.table()
    with refused(PlanningError, "passes", str(len(rows) - 1), str(len(rows))):
        ExecutedPlan(PLAN, rows.iloc[1:], 0.05)
    with refused(PlanningError, "unit_s", "0"):
        ExecutedPlan(PLAN, rows, 0)
