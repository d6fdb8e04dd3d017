"""Few items, which CP-SAT assigns one by one: a bound below every plan, and the best plan where nothing refills."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import MixedInstance, mixed_instances
from solver_strategies import Instance, instances, lognormal_workload, problem_of
from test_brute_force import LIMITS, every_plan, rests, steps_of

import solver
from solver.generation import few_items
from solver.generation.plan_values import PlanValues
from solver.generation.random_split import sized_split
from solver.generation.repairs import ItemsOf
from solver.model.workload import IntArray
from solver.timing.items import Items

NORMS = 0.3, 0.7


def solved(problem: solver.PlanningProblem) -> tuple[solver.Plan | None, float, solver.Plan]:
    """CP-SAT's plan with as many actors as there may be, its bound, and the random split from which it starts."""
    values = PlanValues(problem, Items.of(problem))
    values.set_reference(NORMS)
    split, of = sized_split(problem), ItemsOf(values)
    known = values.with_times(split.actors, split.busy_s)
    counts = few_items.actor_counts(values.items, known)
    assert counts is not None
    assert counts[1]
    chosen, bound = few_items.FewItems(values.items, values.goal, counts[0], known, of).solve()

    def plan_of(actors: list[tuple[int, IntArray]]) -> solver.Plan:
        return solver.plan_of(actors if problem.several_kinds else [group for _, group in actors], problem)

    found = None if chosen is None else plan_of([(r, of.responses(taken)) for r, taken in chosen])
    return found, bound, plan_of(split.actors)


def value_of(plan: solver.Plan, problem: solver.PlanningProblem) -> float:
    objective, phases = problem.objective, problem.phases
    paid = plan.cost_usd if objective.cost == "usd" else plan.gpu_seconds
    step_s = phases.step_time_s(plan.makespan_s)
    rate = phases.learner_rate(objective.cost, problem.cluster.pools[0].usd_per_gpu_s)
    return objective.value(step_s, paid + rate * step_s, NORMS)


def check(problem: solver.PlanningProblem, instance: Instance | MixedInstance, exact: bool) -> None:
    """The bound is below every plan; where nothing refills the plan is the best one."""
    at = 2 if problem.objective.cost == "usd" else 1
    optimum = min(problem.objective.value(step[0], step[at], NORMS) for step in steps_of(instance, problem.phases))
    plan, bound, split = solved(problem)
    assert bound <= optimum * (1 + 1e-9)
    if plan is not None and exact:
        objective = problem.objective
        weighted = not objective.limited and 0 < objective.time_weight < 1
        value = value_of(plan, replace(problem, objective=replace(objective, **near_limit(objective))))
        most = value_of(split, problem) if weighted else optimum  # a sum in place of the product: never worse than the start
        assert value <= most * (1 + 1e-4) + 1e-7


def near_limit(objective: solver.Objective) -> dict[str, float]:
    """The limit with room for the rounding of the model."""
    limits = {name: getattr(objective, name) for name in LIMITS if getattr(objective, name) is not None}
    return {name: limit * (1 + 1e-5) for name, limit in limits.items()}


few = st.one_of(
    st.tuples(instances(refill=False), st.just(True)),
    st.tuples(instances(refill=True), st.just(False)),
    st.tuples(mixed_instances(refill=False), st.just(True)),
    st.tuples(mixed_instances(refill=True), st.just(False)),
)


def no_call_left_out(instance: Instance | MixedInstance) -> bool:
    """Whether every actor makes a prefill call, or none costs anything: else the model leaves calls out."""
    latencies = instance.latency.values() if isinstance(instance, MixedInstance) else [instance.latency]
    work = instance.workload
    return all(model.prefill_base_s == 0 for model in latencies) or bool(
        (work.remaining_tokens > 0).all() and (work.context_tokens > 0).all()
    )


def no_start_or_all_cold(instance: Instance | MixedInstance) -> bool:
    """Whether starts cost what the model says, which takes every actor of a pool with prewarmed ones for prewarmed."""
    return all(pool.prewarmed == 0 for pool in instance.cluster.pools)


@given(few, st.sampled_from([0.0, 0.3, 0.7, 1.0]), rests)
@settings(max_examples=20, deadline=None)
def test_with_a_weight(drawn, weight, phases):
    instance, at_once = drawn
    exact = at_once and no_call_left_out(instance) and no_start_or_all_cold(instance)
    check(problem_of(instance, solver.Objective(weight), phases), instance, exact)


@given(st.data(), few, st.sampled_from(LIMITS), rests)
@settings(max_examples=20, deadline=None)
def test_under_a_limit(data, drawn, limit, phases):
    instance, at_once = drawn
    if limit == "budget_usd" and isinstance(instance, Instance):
        limit = "budget_gpu_s"  # GPUs of one kind have no price here
    most = data.draw(st.sampled_from(steps_of(instance, phases)))[LIMITS.index(limit)] * (1 + 1e-6) + 1e-9
    exact = at_once and no_call_left_out(instance) and no_start_or_all_cold(instance)
    check(problem_of(instance, solver.Objective(**{limit: most}), phases), instance, exact)


def test_no_plan_within_the_limit_is_an_infinite_bound():
    workload = solver.Workload([0] * 8, range(8), [10] * 8)
    latency = solver.LatencyModel("x", 1, 0.0, 1e-3)
    problem = solver.PlanningProblem(workload, solver.Cluster(3, 1, 1), latency, solver.Objective(deadline_s=0.029))
    plan, bound, _ = solved(problem)  # some actor has three of eight equal responses
    assert plan is None
    assert math.isinf(bound)


def test_a_deadline_that_only_a_perfect_packing_keeps_is_met():
    """Three actors, twelve loads that fill 60 each in few ways only: no grouping by length, filled up or not, finds one."""
    lengths = [44, 24, 22, 20, 19, 13, 9, 9, 8, 6, 5, 1]
    workload = solver.Workload([0] * 12, range(12), lengths)
    latency = solver.LatencyModel("packing", 1, 0.0, 1e-3)
    problem = solver.PlanningProblem(workload, solver.Cluster(3, 1, 1), latency, solver.Objective(deadline_s=0.06 + 1e-6))
    plan = solver.plan(problem)
    assert plan.makespan_s == pytest.approx(0.06)
    assert plan.status == "optimal"
    assert "few items" in [line.solver for line in plan.history]
    early = replace(problem, objective=solver.Objective(deadline_s=0.055))
    with refused(solver.PlanningError, "0.060", "0.055"):
        solver.plan(early)


def test_many_items_or_actors_are_too_much_for_it():
    latency = solver.LatencyModel("x", 1, 1e-3, 1e-4)

    def counts(responses: int, actors: int, **options) -> tuple[list[int], bool] | None:
        problem = solver.PlanningProblem(lognormal_workload(responses, 1), solver.Cluster(1, actors, 1), latency, **options)
        values = PlanValues(problem, Items.of(problem))
        split = sized_split(problem)
        return few_items.actor_counts(values.items, values.with_times(split.actors, split.busy_s))

    assert counts(12, 3) == ([3], True)
    assert counts(100, 2) is None
    assert counts(12, 3, release="step") is None
    assert counts(12, 3, max_actors=2) == ([2], True)
    found = counts(20, 40)
    assert found is None or not found[1]


def test_every_plan_is_brute_force():
    """The tests above compare with something: an instance has as many plans as its responses have partitions."""
    instance = Instance(
        solver.Workload([0], [0, 0, 0], [3, 2, 1]), solver.Cluster(3, 1, 1), solver.LatencyModel("x", 1, 1.0, 0.0), "reserve"
    )
    assert len(every_plan(instance).plans) == 5
