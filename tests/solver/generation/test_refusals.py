"""What cannot be planned is refused in one sentence that names the limit and how far it is missed."""

from __future__ import annotations

import re

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import instances, l40s, lognormal_workload

import solver
from solver.model.errors import shown, shown_above
from solver.timing.build_plan import assemble

WORKLOAD = lognormal_workload(16, 4)
CLUSTER = solver.Cluster(1, 8, 2)
REST = solver.NonGenerationPhases(prepare_s=1.0, learn_s=2.0, learner_gpus=4)


def raise_by(refusal: Exception) -> float:
    found = re.search(r"raise the (?:deadline|budget) by ([\d.]+)", str(refusal))
    assert found, str(refusal)
    return float(found[1])


@pytest.mark.parametrize("deadline_s", [0.5, 3.5, 5.0])
def test_a_deadline_that_is_too_early_names_what_is_needed(deadline_s):
    with refused(solver.PlanningError) as refusal:
        solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, l40s(), solver.Objective(deadline_s=deadline_s), REST))
    later = solver.Objective(deadline_s=deadline_s + raise_by(refusal.value))
    plan = solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, l40s(), later, REST))
    assert REST.step_time_s(plan.makespan_s) <= later.deadline_s


@pytest.mark.parametrize("budget_gpu_s", [1.0, 40.0])
def test_a_budget_that_is_too_small_names_what_is_needed(budget_gpu_s):
    with refused(solver.PlanningError) as refusal:
        solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, l40s(), solver.Objective(budget_gpu_s=budget_gpu_s), REST))
    larger = solver.Objective(budget_gpu_s=budget_gpu_s + raise_by(refusal.value))
    plan = solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, l40s(), larger, REST))
    assert REST.step_gpu_s(plan.makespan_s, plan.gpu_seconds) <= larger.budget_gpu_s


@given(instances(refill=False), st.floats(0.3, 1.0), st.sampled_from(["deadline_s", "budget_gpu_s"]))
@settings(max_examples=25, deadline=None)
def test_the_limit_raised_as_the_sentence_says_is_kept(instance, share, limit):
    workload, cluster, latency, _ = instance
    best = solver.plan(
        solver.PlanningProblem(workload, cluster, latency, solver.Objective(1.0 if limit == "deadline_s" else 0.0))
    )
    value = share * (best.makespan_s if limit == "deadline_s" else best.gpu_seconds) + 1e-6
    try:
        solver.plan(solver.PlanningProblem(workload, cluster, latency, solver.Objective(**{limit: value})))
    except solver.PlanningError as refusal:
        raised = solver.Objective(**{limit: value + raise_by(refusal) + 1e-6})
        solver.plan(solver.PlanningProblem(workload, cluster, latency, raised))


def test_a_response_too_large_for_the_memory_names_response_limit_and_excess():
    workload = solver.Workload([10, 90], [0, 1, 1], [5, 5, 5], max_response_tokens=50)
    with refused(solver.PlanningError, "response 1", "140", "prompt 90", "50", "100", "40"):
        solver.plan(solver.PlanningProblem(workload, CLUSTER, l40s(kv_capacity_tokens=100)))
    fits = solver.Workload([10, 90], [0, 1, 1], [5, 5, 5], max_response_tokens=10)
    solver.plan(solver.PlanningProblem(fits, CLUSTER, l40s(kv_capacity_tokens=100)))


@pytest.mark.parametrize("ask", [solver.plan, solver.pareto_front])
def test_so_it_does_where_there_are_several_kinds(ask):
    """The largest memory on offer counts."""
    workload = solver.Workload([10, 90], [0, 1, 1], [5, 5, 5], max_response_tokens=50)
    cluster = solver.MixedCluster([solver.GpuPool("a", 1, 2), solver.GpuPool("b", 1, 2)])
    models = {
        (kind, 1): solver.LatencyModel(f"of {kind}", 1, 1e-3, 1e-4, kind=kind, kv_capacity_tokens=memory)
        for kind, memory in (("a", 60), ("b", 130))
    }
    with refused(solver.PlanningError, "response 1", "140", "'of b'", "130", "40"):
        ask(solver.PlanningProblem(workload, cluster, models))


def test_an_actor_larger_than_a_node_is_refused():
    with refused(solver.PlanningError, "16"):
        solver.Cluster(2, 8, 16)


def test_a_profile_of_another_actor_size_is_refused():
    with refused(solver.PlanningError, "'l40s'"):
        solver.plan(solver.PlanningProblem(WORKLOAD, solver.Cluster(1, 8, 4), l40s()))


def test_more_groups_than_actors_are_refused():
    with refused(solver.PlanningError):
        assemble(
            "x",
            [[0], [1], [2]],
            solver.PlanningProblem(solver.Workload([1], [0] * 3, [1] * 3), solver.Cluster(1, 4, 2), l40s()),
        )


@pytest.mark.parametrize(
    ("value", "text", "above"),
    [
        (0.0, "0.000", "0.000"),
        (12.34561, "12.346", "12.346"),
        (12.34540, "12.345", "12.346"),
        (0.00012341, "0.000123", "0.000124"),
        (2e-9, "2e-09", "2.01e-09"),
        (123456.7894, "123456.789", "123456.790"),
    ],
)
def test_numbers_are_shown_in_one_way(value, text, above):
    assert shown(value) == text
    assert shown_above(value) == above
    assert float(shown_above(value)) >= value
