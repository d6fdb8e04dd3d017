"""The time-cost front: no plan of a small workload lies below its curve, nor beyond its epsilon, also over scenarios."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, mixed_instances
from solver_reference import EveryPlan
from solver_strategies import LIMIT, instances, l40s, lognormal_workload

import solver
from rlhfless.latency import load_profile
from solver.generation.pareto_front import WEIGHTS, Front
from solver.timing.evaluate import admission_of

L40S, H100 = load_profile("l40s-qwen2.5-3b-tp2"), load_profile("h100-qwen2.5-3b-tp1")
POOLS = [solver.GpuPool("l40s", 2, 8, 1.9), solver.GpuPool("h100", 1, 4, 15.0)]
BOTH = {"keep_together": True, "share_prefill": True}
MODELS = {("l40s", 2): L40S, ("h100", 1): H100}


@st.composite
def sampled(draw: st.DrawFn, work: solver.Workload) -> solver.Workload:
    """The same responses with two or three scenarios of lengths, alike or not."""
    count = draw(st.integers(2, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    spread = draw(st.sampled_from([0.1, 0.5, 1.0]))
    lengths = work.response_tokens * (1 - spread) + rng.integers(0, LIMIT + 1, (count, len(work))) * spread
    return solver.Workload(
        work.prompt_tokens, work.prompt_of, np.ceil(lengths), work.generated_tokens, LIMIT, scenarios=np.ceil(lengths)
    )


def means(per_case: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Mean time and cost of every plan from those in each scenario."""
    return [(float(time_s), float(cost)) for time_s, cost in np.mean(np.array(per_case), axis=0)]


def check(front: Front, plans: list[tuple[float, float]]) -> None:
    """Every (mean makespan, mean cost) lies on or above the curve and within epsilon of a plan of the front.

    The curve's grid is geometric: where nothing is to be generated it begins at 1e-12 s.
    """
    for time_s, cost in plans:
        assert time_s >= front.bound_makespan_s[0] * (1 - 1e-9) - 1e-12 or front.bound_cost[0] == np.inf
        at = int(np.searchsorted(front.bound_makespan_s, time_s * (1 - 1e-9)))
        assert at == len(front.bound_cost) or front.bound_cost[at] <= cost * (1 + 1e-9)
        beaten = (1 + front.epsilon) * (1 + 1e-9)
        assert any(p.makespan_s <= beaten * time_s + 1e-9 and front.cost_of(p) <= beaten * cost + 1e-9 for p in front.plans)


@pytest.mark.parametrize("refill", [False, True])
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_no_plan_lies_below_the_curve_or_beyond_epsilon(refill, data):
    instance = data.draw(instances(refill=refill))
    work = data.draw(sampled(instance.workload))
    rule = admission_of(instance.latency, None, instance.admission)
    per_case = [EveryPlan(case, instance.cluster, instance.latency, rule).plans for case in work.cases()]
    plans = [
        (float(np.mean([p[1] for p in same])), float(np.mean([p[2] for p in same]))) for same in zip(*per_case, strict=True)
    ]
    front = solver.pareto_front(
        solver.PlanningProblem(work, instance.cluster, instance.latency, admission=instance.admission), points=10
    )
    check(front, plans)


def beats_the_front(plan: solver.Plan, front: Front) -> bool:
    """Whether the plan is beyond the front: no plan of it is as fast and as cheap."""
    cost = front.cost_of(plan) * (1 + 1e-9)
    return all(p.makespan_s > plan.makespan_s * (1 + 1e-9) or front.cost_of(p) > cost for p in front.plans)


@given(st.data(), st.booleans(), st.sampled_from(["done", "generation"]))
@settings(max_examples=15, deadline=None)
def test_over_scenarios_no_plan_at_a_weight_that_the_front_tries_beats_it(data, refill, release):
    instance = data.draw(instances(refill=refill))
    work, model = data.draw(sampled(instance.workload)), instance.latency
    problem = solver.PlanningProblem(work, instance.cluster, model, admission=instance.admission, release=release)
    front = solver.pareto_front(problem, points=6)
    for weight in WEIGHTS:
        assert not beats_the_front(solver.plan(replace(problem, objective=solver.Objective(weight))), front)


@pytest.mark.parametrize("seed", range(3))
def test_with_many_uncertain_responses_the_front_begins_where_the_fastest_plan_does(seed):
    rng = np.random.default_rng(seed)
    work = lognormal_workload(48, 4)
    lengths = np.clip(work.response_tokens * rng.lognormal(0, 0.6, (8, len(work))), 1, 2048)
    problem = solver.PlanningProblem(
        solver.Workload(work.prompt_tokens, work.prompt_of, lengths), solver.Cluster(2, 8, 2), l40s(), max_actors=6
    )
    front = solver.pareto_front(problem, points=8)
    plans = [solver.plan(replace(problem, objective=solver.Objective(weight))) for weight in WEIGHTS]
    assert not any(beats_the_front(plan, front) for plan in plans)
    assert front.plans[0].makespan_s <= plans[-1].makespan_s * (1 + 1e-9)
    times, costs = [p.makespan_s for p in front.plans], [p.gpu_seconds for p in front.plans]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)


def test_different_scenarios_have_a_front_above_its_curve_that_is_not_far_away():
    rng = np.random.default_rng(0)
    work = lognormal_workload(64, 4)
    lengths = np.clip(work.response_tokens * rng.lognormal(0, 0.3, (8, len(work))), 1, 2048)
    front = solver.pareto_front(
        solver.PlanningProblem(solver.Workload(work.prompt_tokens, work.prompt_of, lengths), solver.Cluster(2, 8, 2), l40s()),
        points=30,
    )
    check(front, [(p.makespan_s, p.gpu_seconds) for p in front.plans])
    assert 0.0 < front.epsilon < 0.5


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_on_several_kinds_no_plan_lies_below_the_curve_or_beyond_epsilon(data):
    instance = data.draw(mixed_instances(refill=False))
    work = data.draw(sampled(instance.workload))
    models = {(offer.kind, offer.gpus): offer.latency for offer in instance.offers}
    per_case = [EveryMixedPlan(instance._replace(workload=case)).plans for case in work.cases()]
    plans = [
        (float(np.mean([p[0] for p in same])), float(np.mean([p[1] for p in same]))) for same in zip(*per_case, strict=True)
    ]
    front = solver.pareto_front(solver.PlanningProblem(work, instance.cluster, models, admission=instance.admission), points=8)
    check(front, plans)


@pytest.mark.parametrize("slots", [32, 1024])
def test_the_front_falls_and_lies_above_its_bound_curve(slots):
    front = solver.pareto_front(
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


@pytest.mark.parametrize(("cost", "options"), [("gpu_s", {}), ("usd", {}), ("gpu_s", BOTH)])
def test_the_front_lies_above_its_curve(cost, options):
    workload, cluster = lognormal_workload(48, 4), solver.MixedCluster(POOLS)
    problem = solver.PlanningProblem(workload, cluster, MODELS, solver.Objective(cost=cost), **options)
    front = solver.pareto_front(problem, points=12)
    times, costs = [p.makespan_s for p in front.plans], [front.cost_of(p) for p in front.plans]
    assert len(front.plans) >= 3
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)
    assert np.all(np.diff(front.bound_cost[np.isfinite(front.bound_cost)]) <= 1e-9)
    for time_s, paid in zip(times, costs, strict=True):
        above = int(np.searchsorted(front.bound_makespan_s, time_s))
        assert above == len(front.bound_cost) or front.bound_cost[above] <= paid * (1 + 1e-9)
    assert 0 <= front.epsilon < 0.5
    kinds = {a.kind for p in front.plans for a in p.actors}
    assert kinds == ({"h100"} if cost == "gpu_s" else {"l40s", "h100"})  # dear GPUs are the faster ones
