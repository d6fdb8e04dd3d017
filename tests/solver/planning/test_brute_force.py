"""The planner against brute force: bound <= optimum <= value on every small instance, contiguous plans beaten or met."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_reference import EveryPlan, partitions
from solver_strategies import instances, plan_generation

import solver
from solver.timing.evaluate import admission_of

either = st.tuples(st.booleans(), st.booleans()).flatmap(lambda which: instances(refill=which[0], mixed=which[1]))
rests = st.sampled_from([solver.NonGenerationPhases(), solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)])
ROUNDING = 2e-3  # times of small instances are milliseconds; CP-SAT counts in 0.1 microseconds, rounded down


def every_plan(instance) -> EveryPlan:
    rule = admission_of(instance.latency, None, instance.admission)
    return EveryPlan(instance.workload, instance.cluster, instance.latency, rule)


def solve(instance, objective, phases):
    plan = plan_generation(solver.PlanningProblem(*instance[:3], objective, phases, admission=instance.admission))
    return plan, (plan.reference.time_s, plan.reference.gpu_s)


def check_gap(plan, optimum):
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)
    assert plan.value - optimum <= plan.gap * plan.value + 1e-9
    assert plan.status != "optimal" or plan.value <= optimum * (1 + 2e-6)


@given(either, st.sampled_from([0.0, 0.3, 0.7, 1.0]), rests)
@settings(max_examples=40, deadline=None)
def test_the_optimum_lies_within_the_reported_gap(instance, time_weight, phases):
    objective = solver.Objective(time_weight)
    plan, reference = solve(instance, objective, phases)
    check_gap(plan, every_plan(instance).optimum(objective, phases, reference))


@given(st.data(), st.booleans().flatmap(lambda refill: instances(refill=refill)), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=40, deadline=None)
def test_with_passes_the_optimum_lies_within_the_reported_gap(data, instance, time_weight):
    """Iterations, fed tokens and growth of every response of their own; where memory is reserved, as growth is no whole
    number."""
    remaining = instance.workload.remaining_tokens
    drafts = st.lists(st.floats(1.0, 6.0), min_size=len(remaining), max_size=len(remaining))
    passes = np.ceil(remaining / np.array(data.draw(drafts)))
    fed = np.maximum(remaining / np.maximum(passes, 1), np.array(data.draw(drafts)))
    work = instance.workload
    drafted = solver.Workload(
        work.prompt_tokens, work.prompt_of, work.response_tokens, work.generated_tokens, work.max_response_tokens,
        passes=passes, fed_per_pass=fed,
    )  # fmt: skip
    instance = instance._replace(workload=drafted, admission="reserve")
    objective, phases = solver.Objective(time_weight), solver.NonGenerationPhases()
    plan, reference = solve(instance, objective, phases)
    check_gap(plan, every_plan(instance).optimum(objective, phases, reference))


@given(st.data(), either, rests, st.sampled_from(["deadline_s", "budget_gpu_s"]))
@settings(max_examples=40, deadline=None)
def test_under_a_limit_that_some_plan_keeps(data, instance, phases, limit):
    """Without refill a plan is found whenever one exists; with refill the refusal at least claims nothing false."""
    plans = every_plan(instance)
    _, makespan_s, gpu_s = data.draw(st.sampled_from(plans.plans))
    kept = phases.step_time_s(makespan_s) if limit == "deadline_s" else phases.step_gpu_s(makespan_s, gpu_s)
    objective = solver.Objective(**{limit: kept * (1 + 1e-3) + 1e-6})
    refused = ""
    try:
        plan, reference = solve(instance, objective, phases)
    except solver.PlanningError as refusal:
        refused = str(refusal)
    if refused:
        assert instance.latency.max_batch < 64  # only where slots, memory or a token budget bind
        assert float(refused.split("at least ")[1].split()[0]) <= kept + 1e-3
        return
    optimum = plans.optimum(objective, phases, reference)
    assert math.isfinite(optimum)
    check_gap(plan, optimum)


@given(instances(refill=False), st.sampled_from([0.0, 0.3, 0.7, 1.0]), rests)
@settings(max_examples=40, deadline=None)
def test_no_contiguous_plan_is_better_where_no_slots_bind(instance, time_weight, phases):
    """Contiguous groups of the sorted lengths are optimal for the cost; CP-SAT closes what next-fit leaves open."""
    objective = solver.Objective(time_weight)
    plan, reference = solve(instance, objective, phases)
    prompts = instance.workload.context_tokens[instance.workload.remaining_tokens > 0]
    if prompts.size and prompts.min() == 0 < prompts.max() and instance.latency.prefill_base_s > 0:
        return  # the model charges a first prefill call to all actors or to none
    best = every_plan(instance).contiguous_optimum(objective, phases, reference)
    assert plan.value <= best * (1 + ROUNDING)


@pytest.mark.parametrize(
    ("lengths", "base_s", "start_s", "time_weight"),
    [
        ([54, 48, 30, 55, 6, 41, 33, 43], 1e-3, 0.0, 0.7),  # optimum: 5 actors, the search stops at 3
        ([36, 46, 54, 56, 55, 51, 54, 56], 5e-5, 5e-3, 0.6),  # optimum: 6 actors, the search stops at 4
    ],
)
def test_the_bound_holds_for_plans_with_more_actors_than_the_model_has(lengths, base_s, start_s, time_weight):
    workload = solver.Workload([0], [0] * len(lengths), lengths)
    latency = solver.LatencyModel("small", 1, base_s, 1e-3, start_s=start_s)
    plan = plan_generation(solver.PlanningProblem(workload, solver.Cluster(6, 1, 1), latency, solver.Objective(time_weight)))
    optimum = math.inf
    for groups in partitions(len(lengths), 6):
        busy = [start_s + sum(1e-3 * lengths[i] for i in g) + base_s * max(lengths[i] for i in g) for g in groups]
        value = time_weight * max(busy) / plan.reference.time_s + (1 - time_weight) * sum(busy) / plan.reference.gpu_s
        optimum = min(optimum, value)
    check_gap(plan, optimum)


def test_a_deadline_that_only_a_perfect_packing_keeps_is_met():
    """Three actors, twelve loads that fill 60 each in few ways only: no grouping by length, filled up or not, finds one."""
    lengths = [44, 24, 22, 20, 19, 13, 9, 9, 8, 6, 5, 1]
    workload = solver.Workload([0] * 12, range(12), lengths)
    latency = solver.LatencyModel("packing", 1, 0.0, 1e-3)
    problem = solver.PlanningProblem(workload, solver.Cluster(3, 1, 1), latency, solver.Objective(deadline_s=0.06 + 1e-6))
    with refused(solver.PlanningError, "0.060", "0.06"):
        plan_generation(problem, time_limit_s=0.1)  # no time for CP-SAT
    plan = plan_generation(problem, time_limit_s=2.0)
    assert plan.makespan_s == pytest.approx(0.06)
    assert plan.history[-1].solver == "CP-SAT"
