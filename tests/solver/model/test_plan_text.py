"""A plan prints itself: ten lines, safe HTML, a JSON object, a frame."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from solver_strategies import l40s, lognormal_workload

import solver
from solver.model.plan import Reference
from solver.model.plurals import counted

WORKLOAD = lognormal_workload(32, 4)


def plan_with(actors: int, kind: str = "gpu") -> solver.Plan:
    cluster = solver.Cluster(4, 8, 2, kind=kind, usd_per_gpu_hour=2.0)
    return solver.random_split(solver.PlanningProblem(WORKLOAD, cluster, l40s()), actors=actors)


@pytest.mark.parametrize("actors", range(1, 17))
@pytest.mark.parametrize("full", [False, True])
def test_the_repr_has_at_most_ten_lines_and_leaves_no_actor_out(actors, full):
    plan = plan_with(actors)
    if full:
        rule = type("Rule", (), {"name": "fold"})()
        plan = replace(plan, reference=Reference(3, 1.0, 2.0), value=1.0, lower_bound=0.9, rule=rule)
    lines = repr(plan).splitlines()
    assert len(lines) <= 10
    shown = sum(line.startswith("  actor ") for line in lines)
    assert shown == actors or f"... and {counted(actors - shown, 'more actor')}" in lines[-1]
    assert f"{counted(actors, 'actor')} on {2 * actors} GPUs, 128 responses" in lines[0]
    assert not full or "gap 10.00%" in repr(plan)


def test_a_makespan_after_the_end_of_every_actor_is_explained():
    why = "means over scenarios of lengths, which do not all have the same last actor"
    rng = np.random.default_rng(0)
    workload = replace(WORKLOAD, scenarios=rng.integers(1, 800, (4, len(WORKLOAD))))
    problem = solver.PlanningProblem(workload, solver.Cluster(4, 8, 2), l40s())
    several = solver.random_split(problem, actors=4)
    assert several.makespan_s > max(actor.predicted_s for actor in several.actors)
    assert why in repr(several)
    assert why in several._repr_html_()
    assert why not in repr(plan_with(4)), "one set of lengths has one last actor"


def test_a_plan_on_gpus_without_a_price_tells_of_no_dollars():
    assert "GPU-seconds, " in repr(plan_with(4))
    assert "USD" in repr(plan_with(4))
    free = solver.random_split(solver.PlanningProblem(WORKLOAD, solver.Cluster(4, 8, 2), l40s()), actors=4)
    assert "GPU-seconds (predicted)" in repr(free)
    assert "USD" not in repr(free)


def test_html_escapes_and_lists_every_actor_once():
    page = replace(plan_with(12, kind="<b>"), policy="<script>")._repr_html_()
    assert "<b>" not in page
    assert "<script>" not in page
    assert page.count("&lt;b&gt;") == 12
    assert page.count("<tr>") == 12 + 1
    assert "more actors" not in page


@pytest.mark.parametrize(
    "objective", [solver.Objective(), solver.Objective(deadline_s=3.5 + 13), solver.Objective(budget_gpu_s=500)]
)
def test_json_is_strict_and_holds_the_fields_of_a_plan(objective):
    """Also for a deadline that the random split misses: its value is infinite, which JSON cannot say."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    plan = solver.plan(solver.PlanningProblem(WORKLOAD, solver.Cluster(1, 8, 2), l40s(), objective))
    read = json.loads(plan.to_json(), parse_constant=refuse)
    assert {
        "actors", "prefill", "rule", "reference", "makespan_s", "gpu_seconds", "cost_usd", "lower_bound", "gap", "status",
        "solve_s", "history", "value", "policy",
    } <= set(read)  # fmt: skip
    assert {
        "kind", "gpu_ids", "node", "responses", "prompts", "max_batch", "start_s", "prefixes", "prefix_tokens", "release",
        "predicted_s", "market", "usd_per_gpu_s", "prewarmed", "receive_s", "shares_prompts",
    } == set(read["actors"][0])  # fmt: skip
    assert [tuple(a["responses"]) for a in read["actors"]] == [a.responses for a in plan.actors]
    assert read["makespan_s"] == plan.makespan_s
    assert read["history"][-1]["value"] == plan.value


def test_a_missed_deadline_of_the_warm_start_is_null_in_json():
    split = solver.random_split(solver.PlanningProblem(WORKLOAD, solver.Cluster(1, 8, 2), l40s(), solver.Objective(1.0)))
    objective = solver.Objective(deadline_s=0.97 * split.makespan_s)
    plan = solver.plan(solver.PlanningProblem(WORKLOAD, solver.Cluster(1, 8, 2), l40s(), objective))
    assert json.loads(plan.to_json())["history"][0]["value"] is None


def test_the_frame_has_one_row_per_actor():
    plan = plan_with(7)
    frame = plan.to_frame()
    assert len(frame) == 7
    assert frame["responses"].sum() == len(WORKLOAD)
    assert frame["predicted_s"].max() == plan.makespan_s


def test_a_plan_without_a_bound_has_no_gap():
    assert plan_with(2).gap is None
    assert replace(plan_with(2), value=2.0, lower_bound=1.5).gap == 0.25
