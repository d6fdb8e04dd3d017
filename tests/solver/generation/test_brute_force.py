"""The planner against brute force: bound <= optimum <= value on every small instance, of one kind of actors and several."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance, mixed_instances
from solver_reference import EveryPlan
from solver_strategies import Instance, instances, problem_of

import solver
from solver.timing.evaluate import admission_of

one_kind = st.tuples(st.booleans(), st.booleans()).flatmap(lambda which: instances(refill=which[0], mixed=which[1]))
several_kinds = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))
rests = st.sampled_from([solver.NonGenerationPhases(), solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)])
weights = st.sampled_from([0.0, 0.3, 0.7, 0.7123, 1.0])
costs = st.sampled_from(["gpu_s", "usd"])
LIMITS = ["deadline_s", "budget_gpu_s", "budget_usd"]
TRUE_S = 1e-6  # seconds and costs of small instances are milliseconds; limits are kept to a millionth


def every_plan(instance: Instance | MixedInstance) -> EveryPlan | EveryMixedPlan:
    if isinstance(instance, MixedInstance):
        return EveryMixedPlan(instance)
    rule = admission_of(instance.latency, None, instance.admission)
    return EveryPlan(instance.workload, instance.cluster, instance.latency, rule)


def check_gap(plan: solver.Plan, optimum: float) -> None:
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)
    assert plan.value - optimum <= plan.gap * plan.value + 1e-9
    assert plan.status != "optimal" or plan.value <= optimum * (1 + 3e-6)


def check_weight(instance, objective, phases, quick) -> None:
    plan = solver.plan(problem_of(instance, objective, phases), quick=quick)
    check_gap(plan, every_plan(instance).optimum(objective, phases, plan.reference.norms(objective.cost)))
    assert plan.value <= 1 + 1e-9  # of the random split


@given(st.one_of(one_kind, several_kinds), weights, rests, st.booleans())
@settings(max_examples=50, deadline=None)
def test_the_optimum_lies_within_the_reported_gap(instance, weight, phases, quick):
    check_weight(instance, solver.Objective(weight), phases, quick)


@pytest.mark.full
@given(st.one_of(one_kind, several_kinds), weights, rests, st.sampled_from([True, True, True, False]))  # quick ones, mostly
@settings(max_examples=2000, deadline=None)
def test_the_optimum_lies_within_the_reported_gap_of_many_problems(instance, weight, phases, quick):
    check_weight(instance, solver.Objective(weight), phases, quick)


@given(st.data(), st.booleans().flatmap(lambda refill: instances(refill=refill)), weights)
@settings(max_examples=30, deadline=None)
def test_with_passes_the_optimum_lies_within_the_reported_gap(data, instance, weight):
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
    check_weight(
        instance._replace(workload=drafted, admission="reserve"), solver.Objective(weight), solver.NonGenerationPhases(), False
    )


def steps_of(instance: Instance | MixedInstance, phases: solver.NonGenerationPhases) -> list[tuple[float, float, float]]:
    """Seconds, GPU-seconds and dollars of the step of every plan."""
    price = instance.cluster.pools[0].usd_per_gpu_s
    steps = []
    for found in every_plan(instance).plans:
        time_s, gpu_s, usd = found if isinstance(instance, MixedInstance) else (found[1], found[2], found[2] * price)
        step_s = phases.step_time_s(time_s)
        rates = (phases.learner_rate(cost, price) for cost in ("gpu_s", "usd"))
        steps.append((step_s, *(paid + rate * step_s for paid, rate in zip((gpu_s, usd), rates, strict=True))))
    return steps


def check_limit(instance, phases, limit: str, kept: tuple[float, float, float], quick: bool) -> None:
    """Under a limit that a plan keeps: what is found keeps it and the bound holds, and a refusal claims nothing false."""
    if limit == "budget_usd" and not isinstance(instance, MixedInstance):
        limit = "budget_gpu_s"  # GPUs of one kind have no price here
    most = kept[LIMITS.index(limit)] * (1 + 1e-3) + TRUE_S
    objective = solver.Objective(**{limit: most})
    try:
        plan = solver.plan(problem_of(instance, objective, phases), quick=quick)
    except solver.PlanningError as refusal:
        words = str(refusal)
        least, best = (float(words.split(before)[1].split()[0].strip(",;")) for before in ("at least ", "plan found takes "))
        assert least <= most + 1e-3
        assert best >= most - 1e-3
        return
    steps = steps_of(instance, phases)
    at = 2 if objective.cost == "usd" else 1
    optimum = min(objective.value(step[0], step[at], (1.0, 1.0)) for step in steps)
    assert math.isfinite(optimum)
    check_gap(plan, optimum)
    taken = solver.evaluate(plan, problem_of(instance, phases=phases))
    step_s = phases.step_time_s(taken.makespan_s)
    paid = taken.cost_usd if objective.cost == "usd" else taken.gpu_seconds
    rate = phases.learner_rate(objective.cost, instance.cluster.pools[0].usd_per_gpu_s)
    assert (step_s if limit == "deadline_s" else paid + rate * step_s) <= most * (1 + 1e-6)


@given(st.data(), st.one_of(one_kind, several_kinds), rests, st.sampled_from(LIMITS), st.booleans())
@settings(max_examples=50, deadline=None)
def test_under_a_limit_that_some_plan_keeps(data, instance, phases, limit, quick):
    check_limit(instance, phases, limit, data.draw(st.sampled_from(steps_of(instance, phases))), quick)
