"""Limits over scenarios against brute force, and the coarse bound that is used when the clock presses."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_reference import EveryPlan, partitions
from solver_strategies import l40s, latencies, lognormal_workload, plan_generation

import solver
from solver.planning.candidates import Candidates
from solver.planning.scenario_bound import ScenarioBound
from solver.planning.single_kind.late_opening import LateOpening, coarse_bounds
from solver.planning.single_kind.limit_search import neighbours, tightened
from solver.planning.work_budget import WorkBudget
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import Pricing


def small(seed):
    """A problem of 3 to 7 responses in 2 to 6 scenarios, with (plans, S) times and costs of every plan."""
    rng = np.random.default_rng(seed)
    responses, scenarios, prompts = (int(rng.integers(*ends)) for ends in ((3, 8), (2, 7), (1, 4)))
    latency = solver.LatencyModel(
        "small", 1, rng.choice([1e-3, 5e-3, 2e-2]), rng.choice([3e-3, 1e-4, 0.0]), rng.choice([1e-4, 1e-6, 0.0]),
        prefill_per_token_s=rng.choice([0.0, 2e-4]), start_s=rng.choice([0.0, 0.05]), sync_s=rng.choice([0.0, 0.01]),
        join_s=rng.choice([0.0, 3e-3]),
    )  # fmt: skip
    workload = solver.Workload(
        rng.integers(0, 12, prompts),
        rng.integers(0, prompts, responses),
        rng.integers(1, 25, (scenarios, responses)),
        max_response_tokens=24,
    )
    cluster = solver.Cluster(int(rng.integers(2, 4)), 1, 1)
    every = [EveryPlan(case, cluster, latency, admission_of(latency)) for case in workload.cases()]
    time_s, cost = (np.array([[plan[i] for plan in e.plans] for e in every]).T for i in (1, 2))
    return workload, cluster, latency, time_s, cost, rng


@pytest.mark.parametrize("seed", range(30))
def test_a_limit_that_some_small_plan_keeps_is_kept(seed):
    """Not proved for every problem: of 600 drawn like this one none was refused (27 were before moves of single responses)."""
    workload, cluster, latency, time_s, cost, rng = small(seed)
    tail, limit = float(rng.choice([1.0, 0.5, 0.25])), str(rng.choice(["deadline_s", "budget_gpu_s"]))
    risk = solver.Objective(cvar_alpha=tail).risk
    times, costs = (np.array([risk(row) for row in table]) for table in (time_s, cost))
    limited, other = (times, costs) if limit == "deadline_s" else (costs, times)
    most = float(rng.choice(limited)) * (1 + 1e-3) + 1e-6
    plan = plan_generation(
        solver.PlanningProblem(workload, cluster, latency, solver.Objective(cvar_alpha=tail, **{limit: most}))
    )
    optimum = float(other[limited <= most].min())
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)


@given(latencies(max_batch=2), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([1.0, 0.3]))
@settings(max_examples=30, deadline=None)
def test_the_coarse_bound_is_a_bound_and_never_above_the_fine_one(latency, seed, time_weight, tail):
    """With no time at all no scenario gets a fine bound. Two slots, so that actors refill."""
    rng = np.random.default_rng(seed)
    workload = solver.Workload(
        rng.integers(0, 9, 2), rng.integers(0, 2, 4), rng.integers(0, 25, (3, 4)), max_response_tokens=24
    )
    cluster = solver.Cluster(2, latency.gpus_per_actor, latency.gpus_per_actor, prewarmed=seed % 2)
    objective, rule = solver.Objective(time_weight, cvar_alpha=tail), admission_of(latency)
    phases = solver.NonGenerationPhases(0.01, 0.02, 1)
    problem = solver.PlanningProblem(workload, cluster, latency, objective, phases)
    pricing = replace(Pricing.of(problem), norms=(0.3, 0.7))

    def bound_of(s, share):
        return LateOpening.of_problem(replace(problem, workload=workload.cases()[s]), share)

    def bound(stop_at):
        whole, work_budget = ScenarioBound(pricing, 3, (0.0,)), WorkBudget(stop_at=stop_at)
        makespan_s, held_s = coarse_bounds(problem)
        whole.raise_to(makespan_s, pricing.actor_rate * held_s)
        list(whole.tighten(bound_of, (np.full(3, 1e12), np.full(3, 1e12)), work_budget, 24))
        return whole.value, work_budget.late

    fine, stopped = bound(np.inf)
    coarse, cut = bound(time.perf_counter() - 1.0)
    assert (stopped, cut) == (False, True)
    assert coarse <= fine * (1 + 1e-9)
    for groups in partitions(4, cluster.max_actors):
        order = np.concatenate([np.array(group) for group in groups])
        busy = GroupTimes.of(workload, latency, rule, order).busy_s(np.cumsum([0, *map(len, groups)]))
        assert fine <= pricing.value_of(busy) * (1 + 1e-9)


def test_what_no_time_is_left_for_is_not_priced():
    work = solver.Workload([0], [0, 0], [1, 1])
    pricing = Pricing.of(solver.PlanningProblem(work, solver.Cluster(1, 2, 1), solver.LatencyModel("x", 1, 1.0, 0.0)))
    split = Split(np.arange(2), np.array([0, 1, 2]))
    candidates = Candidates(
        pricing.objective, (1.0, 1.0), lambda split: (split, *pricing.step_of(np.ones((1, 2)))),
        WorkBudget(stop_at=time.perf_counter() + 1.0), each_s=2.0,
    )  # fmt: skip
    assert candidates.evaluate(split) is not None  # nothing is known yet
    assert not candidates.work_budget.late
    candidates.work_budget.stop_at = time.perf_counter() - 1.0
    assert candidates.evaluate(split) is None
    assert candidates.work_budget.late
    assert len(candidates.evaluated) == 1


def test_neighbours_are_plans_of_all_items_within_the_bounds_on_actors():
    groups = [[0, 3], [1], [2, 4]]
    seen = list(neighbours(groups, 3, 4))
    assert all(sorted(i for g in found for i in g) == [0, 1, 2, 3, 4] for found in seen)
    assert {len(found) for found in seen} == {3, 4}
    assert [[0], [1, 3], [2, 4]] in seen  # moved
    assert [[0], [1], [2, 4], [3]] in seen  # moved to a group of its own
    assert [[1, 3], [0], [2, 4]] in seen  # exchanged
    assert {len(found) for found in neighbours(groups, 1, 3)} == {2, 3}


@pytest.mark.parametrize(
    ("limit", "budget"), [({"deadline_s": 8.0}, None), ({"budget_gpu_s": 8.0}, 4.0), ({"budget_usd": 8.0}, 4.0)]
)
def test_a_tightened_limit(limit, budget):
    half = tightened(solver.Objective(cvar_alpha=0.5, **limit), 0.5)
    assert half.cvar_alpha == 0.5
    assert half.budget == budget
    assert half.deadline_s == (4.0 if budget is None else None)


@pytest.mark.parametrize("limit", ["deadline_s", "budget_gpu_s"])
def test_a_large_problem_keeps_a_limit_that_its_own_fastest_or_cheapest_plan_keeps(limit):
    one = lognormal_workload(48, 4)
    rng = np.random.default_rng(0)
    workload = one.with_response_tokens(one.response_tokens * rng.lognormal(0, 0.5, (8, len(one))))
    cluster, latency = solver.Cluster(1, 8, 2), l40s()
    best = plan_generation(
        solver.PlanningProblem(workload, cluster, latency, solver.Objective(1.0 if limit == "deadline_s" else 0.0))
    )
    kept = 1.03 * (best.makespan_s if limit == "deadline_s" else best.gpu_seconds)
    plan = plan_generation(solver.PlanningProblem(workload, cluster, latency, solver.Objective(**{limit: kept})))
    assert (plan.makespan_s if limit == "deadline_s" else plan.gpu_seconds) <= kept
