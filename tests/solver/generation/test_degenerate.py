"""Degenerate steps on one kind and on several: everything truncated, one scenario, nothing to generate, one GPU, few prompts.

What they must have in common: a complete plan within the cluster whose numbers ``evaluate`` repeats, a bound below it, a
front, and a bound of any schedule below both.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from solver_strategies import l40s, lognormal_workload

import solver
from solver.lengths.survival import known_lengths
from solver.model.runtime_rules import ActorView, StepState
from solver.replanning.replan import replan

LIMIT = 64
TRUNCATED = np.full((6, 3), LIMIT)
WORKLOADS = {
    "all truncated": solver.Workload.grid([5] * 6, TRUNCATED, max_response_tokens=LIMIT),
    "all truncated, half done": solver.Workload.grid([5] * 6, TRUNCATED, generated_tokens=32, max_response_tokens=LIMIT),
    "truncated in every scenario": solver.Workload([5], [0] * 4, [[LIMIT] * 4] * 3, max_response_tokens=LIMIT),
    "one scenario": solver.Workload([5, 9], [0, 0, 1, 1], [[7, 60, 3, 31]], max_response_tokens=LIMIT),
    "scenarios that agree": solver.Workload([5, 9], [0, 0, 1, 1], [[7, 60, 3, 31]] * 3, max_response_tokens=LIMIT),
    "one response": solver.Workload([5], [0], [7], max_response_tokens=LIMIT),
    "one prompt": solver.Workload.grid([5], [[3, 9, 14, 15, 9, 60]], max_response_tokens=LIMIT),
    "zero lengths": solver.Workload.grid([5] * 2, np.zeros((2, 2), dtype=int), max_response_tokens=LIMIT),
    "zero lengths in some scenarios": solver.Workload([5], [0] * 3, [[0, 0, 0], [4, 0, 9]], max_response_tokens=LIMIT),
    "more actors than prompts": lognormal_workload(2, 2, mean_log=3.0, limit=LIMIT),
}
PRICE = 3.6


def one_kind(gpus, slots):
    return solver.Cluster(gpus, 1, 1, usd_per_gpu_hour=PRICE), dataclasses.replace(l40s(max_batch=slots), gpus_per_actor=1)


def several_kinds(gpus, slots):
    slow = dataclasses.replace(l40s(max_batch=slots), gpus_per_actor=1, kind="slow")
    fast = dataclasses.replace(slow, kind="fast", base_s=3e-3)
    cluster = solver.MixedCluster([solver.GpuPool("slow", gpus, 1, PRICE), solver.GpuPool("fast", 1, 1, 2 * PRICE)])
    return cluster, {("slow", 1): slow, ("fast", 1): fast}


@pytest.mark.parametrize("slots", [2, 64])
@pytest.mark.parametrize("gpus", [1, 12])
@pytest.mark.parametrize("made", [one_kind, several_kinds])
@pytest.mark.parametrize("name", WORKLOADS)
def test_degenerate_steps_are_planned_with_a_bound(name, made, gpus, slots):
    workload = WORKLOADS[name]
    cluster, latency = made(gpus, slots)
    cases = list(workload.cases())
    least = [
        solver.bound(solver.PlanningProblem(case, cluster, latency, admission="preempt"))
        for case in (cases if made is one_kind else ())
    ]
    for objective in (solver.Objective(0.5), solver.Objective(1.0), solver.Objective(0.0, cost="usd")):
        plan = solver.plan(solver.PlanningProblem(workload, cluster, latency, objective))
        assert sorted(i for a in plan.actors for i in a.responses) == list(range(len(workload)))
        assert 0 <= plan.lower_bound <= plan.value * (1 + 1e-12) < math.inf
        assert plan.value <= 1 + 1e-9  # of the random split
        taken = solver.evaluate(plan, solver.PlanningProblem(workload, cluster, latency))
        assert (plan.makespan_s, plan.gpu_seconds) == pytest.approx((taken.makespan_s, taken.gpu_seconds))
        executed = list(zip(taken.makespans_s, taken.gpu_seconds_of, strict=True))
        for bound, (time_s, gpu_s) in zip(least, executed, strict=bool(least)):
            assert bound.gpu_seconds(time_s * (1 + 1e-9)) <= gpu_s * (1 + 1e-9)


@pytest.mark.parametrize("made", [one_kind, several_kinds])
@pytest.mark.parametrize("name", [n for n, w in WORKLOADS.items() if w.scenarios is None])
def test_degenerate_steps_have_a_front(name, made):
    workload = WORKLOADS[name]
    cluster, latency = made(4, 8)
    front = solver.pareto_front(solver.PlanningProblem(workload, cluster, latency), points=6)
    assert front.plans
    assert all(sorted(i for a in p.actors for i in a.responses) == list(range(len(workload))) for p in front.plans)


@pytest.mark.parametrize("made", [one_kind, several_kinds])
@pytest.mark.parametrize(
    "objective", [solver.Objective(0.5), solver.Objective(0.5, cvar_alpha=0.2), solver.Objective(deadline_s=9.0)]
)
def test_one_scenario_says_what_points_say(made, objective):
    """And so do three scenarios that agree, but for the draw of the random split that is the reference."""
    cluster, latency = made(3, 2)
    rows = [[7, 60, 3, 31, 12, 44]]
    works = [solver.Workload([5, 9], [0, 0, 0, 1, 1, 1], t, max_response_tokens=LIMIT) for t in (rows[0], rows, rows * 3)]
    points, *others = (solver.plan(solver.PlanningProblem(w, cluster, latency, objective)) for w in works)
    norms = points.reference.norms("gpu_s")
    for plan in others:
        assert 0 < plan.lower_bound <= plan.value
        value = objective.value(plan.makespan_s, plan.gpu_seconds, norms)
        assert value == pytest.approx(points.value, rel=0.02)
        if objective.limited:  # values are GPU-seconds, whatever the reference
            assert plan.lower_bound <= points.value * (1 + 1e-9)
            assert points.lower_bound <= plan.value * (1 + 1e-9)


@pytest.mark.parametrize("made", [one_kind, several_kinds])
def test_where_all_is_truncated_only_the_number_of_responses_counts(made):
    """Equal responses: any exchange of two gives the same plan, and equal counts on equal actors are as fast as can be."""
    cluster, latency = made(3, 64)
    plan = solver.plan(solver.PlanningProblem(WORKLOADS["all truncated"], cluster, latency, solver.Objective(1.0)))
    assert plan.gap <= 1e-6
    for kind in {a.kind for a in plan.actors}:
        counts = [len(a.responses) for a in plan.actors if a.kind == kind]
        assert made is several_kinds or max(counts) - min(counts) <= 1


def test_nothing_is_done_about_a_running_step_of_which_nothing_is_left():
    """All truncated at the same moment, or all but one: re-planning has nobody to move, or moves nobody in vain."""
    latency = l40s()
    workload = WORKLOADS["all truncated"]
    remaining = known_lengths(workload)
    views = tuple(
        ActorView(k, 2, 9, 9 - left, tuple(range(9 * k, 9 * k + left)), (), (), 64)
        for k, left in enumerate((0, 1))
    )  # fmt: skip
    done = np.ones(18, dtype=bool)
    done[9] = False
    state = StepState.of(5.0, views, np.full(18, LIMIT - 1), done, np.full(18, 5))
    assert replan(state, remaining, latency, 2.0) == []
