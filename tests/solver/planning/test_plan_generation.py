"""``plan_generation`` keeps its promises: no worse than its warm start, in time, complete, within the cluster, repeatable."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import instances, l40s, lognormal_workload, pareto_front, plan_generation

import solver
from solver.planning.random_split import random_split
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.makespan_search import MakespanSearch
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import Pricing

either = st.booleans().flatmap(lambda refill: instances(refill=refill))
objectives = st.sampled_from([solver.Objective(w) for w in (0.0, 0.3, 0.7, 1.0)])


@given(either, objectives)
@settings(max_examples=40, deadline=None)
def test_never_worse_than_the_random_split_and_the_history_only_improves(instance, objective):
    plan = plan_generation(solver.PlanningProblem(*instance[:3], objective, admission=instance.admission))
    assert plan.history[0].solver == "random split"
    assert plan.history[-1].value == plan.value
    assert plan.history[-1].lower_bound == plan.lower_bound
    for before, after in itertools.pairwise(plan.history):
        assert after.value <= before.value
        assert after.lower_bound >= before.lower_bound
        assert after.at_s >= before.at_s
    assert plan.lower_bound <= plan.value


@given(either, objectives)
@settings(max_examples=40, deadline=None)
def test_every_response_once_and_every_gpu_once_within_its_node(instance, objective):
    workload, cluster, latency, admission = instance
    plan = plan_generation(solver.PlanningProblem(workload, cluster, latency, objective, admission=admission))
    assert sorted(i for a in plan.actors for i in a.responses) == list(range(len(workload)))
    gpus = [g for a in plan.actors for g in a.gpu_ids]
    assert len(set(gpus)) == len(gpus)
    assert 1 <= len(plan.actors) <= cluster.max_actors
    for actor in plan.actors:
        assert len(actor.gpu_ids) == cluster.gpus_per_actor
        assert all(g // cluster.gpus_per_node == actor.node < cluster.nodes for g in actor.gpu_ids)
        assert actor.max_batch <= latency.max_batch
        assert set(actor.prompts) == {int(workload.prompt_of[i]) for i in actor.responses}


@pytest.mark.parametrize(("gpus_per_node", "gpus_per_actor", "most"), [(8, 3, 4), (5, 2, 4), (4, 4, 2)])
def test_an_actor_never_spans_two_nodes(gpus_per_node, gpus_per_actor, most):
    """Two nodes: GPUs left over in a node stay unused."""
    cluster = solver.Cluster(2, gpus_per_node, gpus_per_actor)
    latency = solver.LatencyModel("x", gpus_per_actor, 1e-3, 1e-2)
    plan = plan_generation(
        solver.PlanningProblem(lognormal_workload(16, 4), cluster, latency, solver.Objective(1.0)), time_limit_s=0.1
    )
    assert len(plan.actors) == cluster.max_actors == most
    assert all(g // gpus_per_node == a.node for a in plan.actors for g in a.gpu_ids)


def test_time_weight_one_is_faster_and_zero_is_cheaper():
    workload, cluster, latency = lognormal_workload(64, 4), solver.Cluster(2, 8, 2), l40s()
    fast, cheap = (
        plan_generation(solver.PlanningProblem(workload, cluster, latency, solver.Objective(w)), time_limit_s=0.15)
        for w in (1.0, 0.0)
    )
    assert fast.makespan_s < cheap.makespan_s
    assert cheap.gpu_seconds < fast.gpu_seconds
    assert len(fast.actors) > len(cheap.actors)


@given(st.permutations(range(24)), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=15, deadline=None)
def test_the_order_of_responses_changes_no_value(order, time_weight):
    """Slots do not bind here: where they do, the random split admits in the given order, so the reference moves."""
    workload, cluster, latency = lognormal_workload(6, 4), solver.Cluster(1, 8, 2), l40s()
    shuffled = solver.Workload(workload.prompt_tokens, workload.prompt_of[list(order)], workload.response_tokens[list(order)])
    objective = solver.Objective(time_weight)
    one, two = (
        plan_generation(solver.PlanningProblem(w, cluster, latency, objective), time_limit_s=0.19) for w in (workload, shuffled)
    )
    assert two.value == pytest.approx(one.value, rel=1e-9)
    assert two.lower_bound == pytest.approx(one.lower_bound, rel=1e-9)


@pytest.mark.parametrize("objective", [solver.Objective(w) for w in (0.0, 0.3, 0.7, 1.0)])
@pytest.mark.parametrize("slots", [32, 1024])
def test_more_gpus_never_raise_the_bound(objective, slots):
    """With the reference held fixed: every makespan of the smaller cluster stays open, so the bound can only fall. Both
    searches stop at a gap of 1e-3, which is as close as the two bounds are known."""
    workload, latency = lognormal_workload(64, 4), l40s(max_batch=slots)

    def search(actors: int) -> MakespanSearch:
        rule = admission_of(latency)
        work = SortedWork.of(workload, latency, rule, max_actors=actors)
        pricing = Pricing.of(solver.PlanningProblem(workload, solver.Cluster(actors, 2, 2), latency, objective))

        def busy_of(split: Split, how: str) -> np.ndarray:
            return GroupTimes.of(workload, latency, rule, split.order).busy_s(split.edges, how)

        state = MakespanSearch(work, dataclasses.replace(pricing, norms=(10.0, 100.0)), busy_of)
        state.run(1e-3, 60)
        return state

    runs = [search(actors) for actors in (1, 2, 4, 8, 16)]
    for fewer, more in itertools.pairwise(runs):
        assert more.lower_bound <= fewer.best_value
        assert more.lower_bound <= fewer.lower_bound * (1 + 2e-3)


@given(either, st.floats(1.0, 3.0))
@settings(max_examples=30, deadline=None)
def test_a_deadline_and_a_budget_are_kept_by_evaluate(instance, slack):
    workload, cluster, latency, admission = instance
    phases = solver.NonGenerationPhases(prepare_s=0.01, learn_s=0.02, learner_gpus=2)
    split = random_split(solver.PlanningProblem(workload, cluster, latency, phases=phases, admission=admission))
    deadline_s = slack * phases.step_time_s(split.makespan_s) + 1e-6
    budget_gpu_s = slack * phases.step_gpu_s(split.makespan_s, split.gpu_seconds) + 1e-6
    early, poor = (
        plan_generation(
            solver.PlanningProblem(workload, cluster, latency, objective, phases, admission=admission), time_limit_s=0.1
        )
        for objective in (solver.Objective(deadline_s=deadline_s), solver.Objective(budget_gpu_s=budget_gpu_s))
    )
    taken = solver.evaluate(early, solver.PlanningProblem(workload, cluster, latency, phases=phases, admission=admission))
    assert phases.step_time_s(taken.makespan_s) <= deadline_s * (1 + 1e-9)
    assert early.value == pytest.approx(phases.step_gpu_s(taken.makespan_s, taken.gpu_seconds))
    taken = solver.evaluate(poor, solver.PlanningProblem(workload, cluster, latency, phases=phases, admission=admission))
    assert phases.step_gpu_s(taken.makespan_s, taken.gpu_seconds) <= budget_gpu_s * (1 + 1e-9)
    assert poor.value == pytest.approx(phases.step_time_s(taken.makespan_s))


DEGENERATE = {
    "one response": solver.Workload([5], [0], [7]),
    "one prompt": solver.Workload.grid([5], [[3, 90, 14, 15, 92, 65]]),
    "all equal": solver.Workload.grid([5] * 8, np.full((8, 4), 100)),
    "zero lengths": solver.Workload.grid([5] * 4, np.zeros((4, 4), dtype=int)),
    "some zero lengths": solver.Workload.grid([5] * 4, [[0, 0, 9, 9]] * 4),
    "empty prompts": solver.Workload.grid([0] * 4, [[1, 2, 3, 4]] * 4),
    "prompts without responses": solver.Workload([5, 6, 7], [1, 1], [10, 20]),
    "more actors than prompts": lognormal_workload(2, 4),
    "already complete": solver.Workload.grid([5] * 2, [[4, 4]] * 2, generated_tokens=9),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("start_s", [0.0, 2.0])
@pytest.mark.parametrize("cluster", [solver.Cluster(1, 1, 1), solver.Cluster(4, 8, 1)], ids=["one GPU", "32 GPUs"])
def test_degenerate_workloads_are_planned_and_have_a_front(name, cluster, start_s):
    workload = DEGENERATE[name]
    latency = solver.LatencyModel("x", 1, 5e-3, 1e-4, 1e-7, start_s=start_s)
    plan = plan_generation(solver.PlanningProblem(workload, cluster, latency), time_limit_s=0.15)
    taken = solver.evaluate(plan, solver.PlanningProblem(workload, cluster, latency))
    assert (plan.makespan_s, plan.gpu_seconds) == (taken.makespan_s, taken.gpu_seconds)
    assert 0 <= plan.lower_bound <= plan.value < math.inf
    front = pareto_front(solver.PlanningProblem(workload, cluster, latency), points=8)
    assert all(sorted(i for a in p.actors for i in a.responses) == list(range(len(workload))) for p in front.plans)


@pytest.mark.parametrize("slots", [32, 1024])
def test_the_front_falls_and_lies_above_its_bound_curve(slots):
    front = pareto_front(
        solver.PlanningProblem(lognormal_workload(64, 4), solver.Cluster(2, 8, 2), l40s(max_batch=slots)), points=20
    )
    assert len(front.plans) > 3
    for faster, cheaper in itertools.pairwise(front.plans):
        assert faster.makespan_s <= cheaper.makespan_s
        assert faster.gpu_seconds > cheaper.gpu_seconds
    assert np.all(np.diff(front.bound_cost[np.isfinite(front.bound_cost)]) <= 1e-9)
    for plan in front.plans:  # at the next grid point above its makespan the curve is no higher than at the makespan itself
        above = np.searchsorted(front.bound_makespan_s, plan.makespan_s)
        assert above == len(front.bound_makespan_s) or front.bound_cost[above] <= plan.gpu_seconds * (1 + 1e-9)
    assert len(front.to_frame()) == len(front.plans)
