"""The OR-Tools model of few actors: its bound is below every plan, and it moves what it is asked for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_reference import EveryPlan
from solver_strategies import instances, lognormal_workload, plan_generation

import solver
from solver.planning.single_kind.class_model import ClassModel, ModelOutcome
from solver.planning.single_kind.items import SortedWork
from solver.timing.evaluate import admission_of
from solver.timing.step_cost import Pricing

either = st.tuples(st.booleans(), st.booleans()).flatmap(lambda which: instances(refill=which[0], mixed=which[1]))
phases = st.sampled_from(
    [solver.NonGenerationPhases(), solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)]
)
NORMS = (0.3, 0.7)


def solved(problem: solver.PlanningProblem, actors: int) -> ModelOutcome:
    """The model's result, hinted with one actor for everything."""
    work, pricing = SortedWork.of_problem(problem), replace(Pricing.of(problem), norms=NORMS)
    return ClassModel(work, pricing, [np.arange(len(work))], actors).solve(1.0)


@given(st.data(), either, phases, st.sampled_from([0.0, 0.3, 0.7, 1.0, "deadline_s", "budget_gpu_s"]))
@settings(max_examples=220, deadline=None)
def test_the_bound_is_below_every_plan(data, instance, phases, goal):
    """With slots, memory, prompts fed in chunks, or none of them: brute force over all groupings and admission orders."""
    rule = admission_of(instance.latency, None, instance.admission)
    plans = EveryPlan(instance.workload, instance.cluster, instance.latency, rule)
    if isinstance(goal, float):
        objective = solver.Objective(goal)
    else:
        _, makespan_s, gpu_s = data.draw(st.sampled_from(plans.plans))
        kept = phases.step_time_s(makespan_s) if goal == "deadline_s" else phases.step_gpu_s(makespan_s, gpu_s)
        objective = solver.Objective(**{goal: max(kept, 1e-9)})
    problem = solver.PlanningProblem(*instance[:3], objective, phases, admission=instance.admission)
    outcome = solved(problem, min(instance.cluster.max_actors, len(instance.workload)))
    optimum = plans.optimum(objective, phases, NORMS)
    assert outcome.lower_bound <= optimum * (1 + 1e-9)
    assert outcome.groups is not None
    assert np.sort(np.concatenate(outcome.groups)).tolist() == list(range(len(instance.workload)))


@pytest.mark.parametrize("together", [False, True])
def test_the_bound_is_below_the_best_plan_where_classes_hold_several_items(together):
    """More items than classes, slots for an eighth of them: longest lengths and loads are rounded down."""
    workload = lognormal_workload(100, 4) if not together else lognormal_workload(250, 2)
    latency = solver.LatencyModel("x", 1, 1e-3, 2e-5, 1e-8, prefill_base_s=2e-3, max_batch=50)
    problem = solver.PlanningProblem(workload, solver.Cluster(1, 4, 1), latency, keep_together=together)
    plan = plan_generation(problem, time_limit_s=0.15)
    work, pricing = SortedWork.of_problem(problem), replace(Pricing.of(problem), norms=plan.reference.norms("gpu_s"))
    outcome = ClassModel(work, pricing, [np.arange(len(work))], 4).solve(0.2)
    assert 0.7 * plan.value <= outcome.lower_bound <= plan.value
    assert not outcome.stopped


def test_it_raises_the_bound_of_few_actors_with_slots():
    rng = np.random.default_rng(0)
    workload = solver.Workload([50] * 60, range(60), np.clip(rng.lognormal(5.6, 0.7, 60), 1, 2048).astype(int))
    latency = solver.LatencyModel("x", 2, 1e-4, 1e-4, max_batch=7)
    problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 2), latency, solver.Objective(0.7))
    plan = plan_generation(problem, time_limit_s=1.0)
    moved = {row.solver: row for row in plan.moved()}
    assert moved["CP-SAT"].bound_by > 5e-3 * plan.value
    assert plan.lower_bound <= plan.value
    assert math.isclose(plan.history[0].value - sum(row.value_by for row in plan.moved()), plan.value)
    assert "CP-SAT" not in [row.solver for row in plan_generation(problem, time_limit_s=0.15).moved()]


def test_no_plan_within_the_limit_is_an_infinite_bound():
    workload = solver.Workload([0] * 8, range(8), [10] * 8)
    problem = solver.PlanningProblem(
        workload, solver.Cluster(3, 1, 1), solver.LatencyModel("x", 1, 0.0, 1e-3), solver.Objective(deadline_s=0.029)
    )
    outcome = solved(problem, 3)  # some actor has three of eight equal responses
    assert math.isinf(outcome.lower_bound)
    assert outcome.groups is None


def test_the_clock_ends_the_model():
    workload = lognormal_workload(60, 4)
    latency = solver.LatencyModel("x", 1, 1e-3, 2e-5, max_batch=30)
    problem = solver.PlanningProblem(workload, solver.Cluster(1, 5, 1), latency)
    work, pricing = SortedWork.of_problem(problem), replace(Pricing.of(problem), norms=NORMS)
    outcome = ClassModel(work, pricing, [np.arange(len(work))], 5).solve(math.inf, stop_at=0.0)
    assert outcome.stopped
    assert outcome.lower_bound >= 0
