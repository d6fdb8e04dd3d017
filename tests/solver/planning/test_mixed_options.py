"""Options of mixed planning against brute force: releases, bounds on the number of actors, and limits over scenarios."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance, mixed_instances
from solver_strategies import LIMIT, mixed_problem, plan_generation, plan_mixed, plan_mixed_over_scenarios

import solver

QUICK_S = 0.06
REST = solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)
either = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))
objectives = st.builds(solver.Objective, st.sampled_from([0.0, 0.3, 0.7, 1.0]), cost=st.sampled_from(["gpu_s", "usd"]))
releases = st.sampled_from(["done", "generation", "step"])


@given(either, objectives, releases, st.integers(1, 3), st.integers(0, 2), st.booleans())
@settings(max_examples=30, deadline=None)
def test_bound_optimum_and_value_come_in_this_order_whatever_is_asked(instance, objective, release, least, more, together):
    options = {"min_actors": least, "max_actors": least + more, "release": release, "keep_together": together}
    every = EveryMixedPlan(instance, rest_s=REST.seconds, **options)
    problem = mixed_problem(
        instance.workload, instance.offers, instance.cluster, objective, REST, admission=instance.admission, **options
    )
    try:
        plan = plan_mixed(problem, QUICK_S)
    except solver.PlanningError as refusal:
        assert "no plan" in str(refusal)  # noqa: PT017 (so many actors may not fit)
        assert least > 1
        return
    assert len(plan.actors) <= least + more
    assert len(plan.actors) >= problem.needed_actors
    optimum = every.optimum(objective, REST, plan.reference.norms(objective.cost))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)
    assert plan.status != "optimal" or plan.value <= optimum * (1 + 3e-6)


def over_scenarios(instance: MixedInstance, tokens: list[list[int]]) -> MixedInstance:
    """The instance with these lengths in each scenario."""
    old = instance.workload
    work = solver.Workload(old.prompt_tokens, old.prompt_of, tokens, old.generated_tokens, max_response_tokens=LIMIT)
    return instance._replace(workload=work)


@st.composite
def uncertain(draw):
    """A small instance in two to four scenarios, and the same one with each as if it were known."""
    instance = draw(mixed_instances(refill=draw(st.booleans())))
    count = len(instance.workload)
    lengths = st.lists(st.integers(1, LIMIT), min_size=count, max_size=count)
    instance = over_scenarios(instance, draw(st.lists(lengths, min_size=2, max_size=4)))
    return instance, [instance._replace(workload=case) for case in instance.workload.cases()]


def tables(cases, phases, usd):
    """(plans, S) times and costs of the step of every plan, each group in its fastest order of every scenario: no plan with
    one order for all of them is better."""
    every = [EveryMixedPlan(case) for case in cases]
    time_s = phases.seconds + np.array([[plan[0] for plan in e.plans] for e in every]).T
    rate = phases.learner_rate("usd" if usd else "gpu_s", cases[0].cluster.pools[0].usd_per_gpu_s)
    cost = np.array([[plan[2 if usd else 1] for plan in e.plans] for e in every]).T + rate * time_s
    return time_s, cost


@given(uncertain(), objectives, st.sampled_from([1.0, 0.5, 0.3]), st.sampled_from([solver.NonGenerationPhases(), REST]))
@settings(max_examples=20, deadline=None)
def test_over_scenarios_bound_optimum_and_value_come_in_this_order(problem, objective, tail, phases):
    instance, cases = problem
    objective = dataclasses.replace(objective, cvar_alpha=tail)
    plan = plan_mixed_over_scenarios(
        mixed_problem(instance.workload, instance.offers, instance.cluster, objective, phases, admission=instance.admission),
        0.1,
    )
    norms = plan.reference.norms(objective.cost)
    time_s, cost = tables(cases, phases, objective.cost == "usd")
    optimum = min(objective.value_over(t, c, norms) for t, c in zip(time_s, cost, strict=True))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)


@given(
    st.data(),
    uncertain(),
    st.sampled_from(["deadline_s", "budget_gpu_s", "budget_usd"]),
    st.sampled_from([1.0, 0.5, 0.3]),
    st.sampled_from([solver.NonGenerationPhases(), REST]),
)
@settings(max_examples=20, deadline=None)
def test_a_limit_over_scenarios_is_kept_with_a_bound_that_holds_or_refused_with_numbers_that_are_true(
    data, problem, limit, tail, phases
):
    instance, cases = problem
    risk = solver.Objective(cvar_alpha=tail).risk
    time_s, cost = tables(cases, phases, limit == "budget_usd")
    times, costs = (np.array([risk(row) for row in table]) for table in (time_s, cost))
    limited, other = (times, costs) if limit == "deadline_s" else (costs, times)
    most = float(data.draw(st.sampled_from(sorted(limited.tolist())))) * (1 + 1e-3) + 1e-9
    objective = solver.Objective(cvar_alpha=tail, **{limit: most})
    asked = mixed_problem(instance.workload, instance.offers, instance.cluster, objective, phases, admission=instance.admission)
    try:
        plan = plan_mixed_over_scenarios(asked, 0.1)
    except solver.PlanningError as refusal:
        words = str(refusal)
    else:
        optimum = float(other[limited <= most].min())
        assert plan.lower_bound <= optimum * (1 + 1e-9)
        assert optimum <= plan.value * (1 + 1e-9)
        models = {(offer.kind, offer.gpus): offer.latency for offer in instance.offers}
        taken = solver.evaluate(
            plan,
            solver.PlanningProblem(instance.workload, instance.cluster, models, phases=phases, admission=instance.admission),
        )
        step_s = taken.makespans_s + phases.seconds
        paid = taken.cost_usd_of if limit == "budget_usd" else taken.gpu_seconds_of
        rate = phases.learner_rate(objective.cost, instance.cluster.pools[0].usd_per_gpu_s)
        kept = risk(step_s) if limit == "deadline_s" else risk(paid + rate * step_s)
        assert kept <= most * (1 + 1e-6)
        return
    assert "over the length scenarios" in words
    assert limited.min() >= 0.9 * most  # a limit with any room is kept: not proved, but so on all that were drawn
    least, best = (float(words.split(before)[1].split()[0].strip(",;")) for before in ("at least ", "best plan found takes "))
    assert least <= float(limited.min()) + 1e-3
    assert best >= float(limited.min()) - 1e-3


def test_a_wide_deadline_over_scenarios_is_kept():
    """Where the random split keeps it, too, nothing is refused."""
    model = solver.LatencyModel("x", 1, 5e-3, 1e-3, kind="x")
    cluster = solver.MixedCluster([solver.GpuPool("x", 1, 2, 3.6), solver.GpuPool("y", 1, 1, 36.0)])
    models = {("x", 1): model, ("y", 1): dataclasses.replace(model, kind="y", base_s=2e-3)}
    workload = solver.Workload([5], [0] * 4, [[9, 3, 20, 7], [20, 20, 1, 1], [2, 3, 4, 24]], max_response_tokens=LIMIT)
    for tail in (1.0, 0.4):
        free = plan_generation(
            solver.PlanningProblem(workload, cluster, models, solver.Objective(1.0, cvar_alpha=tail)), time_limit_s=0.3
        )
        worst = solver.Objective(cvar_alpha=tail).risk(
            solver.evaluate(free, solver.PlanningProblem(workload, cluster, models)).makespans_s
        )
        objective = solver.Objective(cvar_alpha=tail, deadline_s=1.001 * worst)
        plan = plan_generation(solver.PlanningProblem(workload, cluster, models, objective), time_limit_s=0.3)
        assert plan.value == pytest.approx(
            objective.risk(solver.evaluate(plan, solver.PlanningProblem(workload, cluster, models)).gpu_seconds_of)
        )
