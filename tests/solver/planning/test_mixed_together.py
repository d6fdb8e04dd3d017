"""Mixed clusters with prompts kept together and with shared prefill: against brute force, and what must hold whatever the
instance."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance, mixed_instances
from solver_strategies import lognormal_workload, mixed_problem, plan_generation, plan_mixed, search_mixed

import solver
from solver.model.plan import ActorPlan, Plan
from solver.planning.bound_search import lower_bound_of
from solver.planning.mixed_kinds.fill import GreedyFiller
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.length_classes import Classes
from solver.planning.mixed_kinds.lp_bound import Relaxation
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.work_budget import WorkBudget
from solver.timing.step_cost import StepObjective

either = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))
objectives = st.builds(solver.Objective, st.sampled_from([0.0, 0.3, 0.7, 1.0]), cost=st.sampled_from(["gpu_s", "usd"]))
options = st.sampled_from([(True, False), (False, True), (True, True)])
QUICK_S = 0.06


def problem_of(instance: MixedInstance, option: tuple[bool, bool] = (False, False), **others) -> solver.PlanningProblem:
    together, shared = option
    return mixed_problem(
        instance.workload, instance.offers, instance.cluster, admission=instance.admission, keep_together=together,
        share_prefill=shared, **others,
    )  # fmt: skip


@given(either, objectives, options)
@settings(max_examples=25, deadline=None)
def test_bound_optimum_and_value_come_in_this_order(instance, objective, option):
    phases = solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)
    plan = plan_mixed(problem_of(instance, option, objective=objective, phases=phases), QUICK_S)
    optimum = EveryMixedPlan(instance, *option).optimum(objective, phases, plan.reference.norms(objective.cost))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)
    assert plan.status != "optimal" or plan.value <= optimum * (1 + 3e-6)


@given(either, st.data(), options)
@settings(max_examples=25, deadline=None)
def test_both_relaxations_cost_no_more_than_any_plan_within_the_makespan(instance, data, option):
    work = MixedWork.of(problem_of(instance, option))
    plans = EveryMixedPlan(instance, *option).plans
    makespan_s = data.draw(st.sampled_from(sorted({t for t, _, _ in plans})))
    cheapest = min(gpu_s for t, gpu_s, _ in plans if t <= makespan_s)
    assert work.shortest_makespan_s <= min(t for t, _, _ in plans) * (1 + 1e-9)
    assert Sequences(work).at(makespan_s).cost <= cheapest * (1 + 1e-9)
    relaxation = Relaxation(work, Classes.of(work, data.draw(st.sampled_from([2, 5, 40]))))
    assert relaxation.at(makespan_s).cost <= cheapest * (1 + 1e-9) + 1e-12


@given(either, objectives, options, st.data())
@settings(max_examples=25, deadline=None)
def test_what_is_known_of_a_scenario_with_little_work_is_below_every_plan(instance, objective, option, data):
    phases = solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)
    problem = problem_of(instance, option, objective=objective, phases=phases)
    work, every, norms = MixedWork.of(problem), EveryMixedPlan(instance, *option), (1.0, 4.0)
    goal = StepObjective.of_problem(problem, norms)
    optimum = every.optimum(objective, phases, norms)
    assert goal.value(work.shortest_makespan_s, work.least_cost) <= optimum * (1 + 1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.mixed_kinds.sequence_bound.WIDTH", data.draw(st.sampled_from([1, 2, 300])))
        patch.setattr("solver.planning.mixed_kinds.load_measures.SINGLES", data.draw(st.sampled_from([0, 1, 64])))
        patch.setattr("solver.planning.mixed_kinds.load_measures.BLOCKS", data.draw(st.sampled_from([1, 2, 1024])))
        bound = Sequences(work, work_budget=WorkBudget(data.draw(st.sampled_from([0.0, 1e-3, 3e-3, 0.02]))))
        assert lower_bound_of(bound, goal, 2 * optimum) <= optimum * (1 + 1e-9)


@given(either, st.tuples(st.booleans(), st.booleans()), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_fills_are_timed_as_they_are_executed(instance, option, random):
    """Where memory does not bind, and whatever the actors are."""
    roomy = [dataclasses.replace(o.latency, kv_capacity_tokens=1 << 40) for o in instance.offers]
    offers = tuple(dataclasses.replace(o, latency=model) for o, model in zip(instance.offers, roomy, strict=True))
    work = MixedWork.of(problem_of(instance._replace(offers=offers), option))
    filler = GreedyFiller(work, lambda makespan_s, cost: cost)
    opening = sorted(random.randrange(max(1, filler.working)) for _ in range(random.randint(1, 3)))
    actors = tuple((random.randrange(len(offers)), position) for position in opening)
    filled = filler.fill(actors, work.longest_makespan_s * random.choice([0.3, 0.7, 1.0]))
    if filled is None:
        return
    planned = [
        ActorPlan(
            offers[r].kind, tuple(range(offers[r].gpus)), 0, group, (), int(work.slots[r]),
            prewarmed=warm, shares_prompts=option[1],
        )
        for (r, _), group, warm in zip(filled.actors, filled.groups, filled.warm, strict=True)
    ]  # fmt: skip
    models = {(offer.kind, offer.gpus): offer.latency for offer in offers}
    taken = solver.evaluate(
        Plan(tuple(planned), "any", 0.0, 0.0, 0.0), solver.PlanningProblem(instance.workload, instance.cluster, models)
    )
    assert (filled.makespan_s, filled.cost) == pytest.approx((taken.makespan_s, taken.gpu_seconds))
    again = filler.fill(filled.actors, filled.within_s, filled.tilts)
    assert again is not None
    assert again.groups == filled.groups


@given(either, objectives, options, st.integers(1, 3), st.sampled_from(["done", "generation", "step"]))
@settings(max_examples=25, deadline=None)
def test_plans_split_no_prompt_and_reproduce_their_numbers(instance, objective, option, least, release):
    work, _, offers, admission = instance
    phases = solver.NonGenerationPhases(learn_s=0.1, learner_gpus=1)
    limits = {"min_actors": least, "max_actors": max(2, least), "release": release}
    try:
        outcome = search_mixed(problem_of(instance, option, objective=objective, phases=phases, **limits), QUICK_S)
    except solver.PlanningError as refusal:
        assert "no plan" in str(refusal)  # noqa: PT017 (min_actors may not fit)
        return
    models = {(offer.kind, offer.gpus): offer.latency for offer in offers}
    for plan in outcome.candidates:
        assert all(actor.shares_prompts == option[1] for actor in plan.actors)
        owners = [prompt for actor in plan.actors for prompt in set(work.prompt_of[list(actor.responses)].tolist())]
        assert not option[0] or len(owners) == len(set(owners))
        taken = solver.evaluate(
            plan, solver.PlanningProblem(work, instance.cluster, models, phases=phases, admission=admission)
        )
        assert (taken.makespan_s, taken.gpu_seconds) == pytest.approx((plan.makespan_s, plan.gpu_seconds))
    plan = outcome.plan
    assert plan.lower_bound <= plan.value * (1 + 1e-12)


@given(st.data(), either, options, st.sampled_from(["deadline_s", "budget_gpu_s", "budget_usd"]))
@settings(max_examples=25, deadline=None)
def test_under_a_limit_the_bound_holds_and_a_refusal_claims_nothing_false(data, instance, option, limit):
    every = EveryMixedPlan(instance, *option)
    kept = dict(zip(["deadline_s", "budget_gpu_s", "budget_usd"], data.draw(st.sampled_from(every.plans)), strict=True))[limit]
    objective = solver.Objective(**{limit: kept * (1 + 1e-3) + 1e-9})
    try:
        plan = plan_mixed(problem_of(instance, option, objective=objective), QUICK_S)
    except solver.PlanningError as refusal:
        least = float(str(refusal).split("at least ")[1].split()[0])
        assert least <= kept * (1 + 1e-3) + 1e-6
        return
    optimum = every.optimum(objective, solver.NonGenerationPhases(), plan.reference.norms(objective.cost))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)


@given(either, st.booleans(), objectives)
@settings(max_examples=25, deadline=None)
def test_sharing_a_prompt_never_costs_more_with_the_same_groups(instance, together, objective):
    work, _, offers, _ = instance
    plan = plan_mixed(problem_of(instance, (together, False), objective=objective), QUICK_S)
    shared = dataclasses.replace(plan, actors=tuple(dataclasses.replace(a, shares_prompts=True) for a in plan.actors))
    models = {(offer.kind, offer.gpus): offer.latency for offer in offers}
    problem = solver.PlanningProblem(work, instance.cluster, models, admission=instance.admission)
    alone, beside = (solver.evaluate(p, problem) for p in (plan, shared))
    assert beside.makespan_s <= alone.makespan_s * (1 + 1e-12)
    assert beside.gpu_seconds <= alone.gpu_seconds * (1 + 1e-12)


@given(either, options, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_prompts_and_responses_does_not_matter_to_the_bound(instance, option, random):
    work = instance.workload
    order, names = list(range(len(work))), list(range(len(work.prompt_tokens)))
    random.shuffle(order)
    random.shuffle(names)  # the new number of each prompt
    shuffled = solver.Workload(
        work.prompt_tokens[np.argsort(names)], np.array(names)[work.prompt_of[order]], work.response_tokens[order],
        work.generated_tokens[order], work.max_response_tokens,
    )  # fmt: skip
    of = [MixedWork.of(problem_of(instance._replace(workload=w), option)) for w in (work, shuffled)]
    makespan_s = 1.5 * of[0].shortest_makespan_s + 1e-3
    one, other = (Sequences(w).at(makespan_s).cost for w in of)
    assert one == pytest.approx(other, rel=1e-9)
    one, other = (Relaxation(w, Classes.of(w, 5)).at(makespan_s).cost for w in of)
    assert one == pytest.approx(other, rel=1e-6)


def two_pools(slots: int) -> tuple[solver.MixedCluster, dict[tuple[str, int], solver.LatencyModel]]:
    slow = solver.LatencyModel(
        "slow", 1, 6e-3, 2e-5, 2.5e-8, prefill_base_s=1e-3, prefill_per_token_s=2e-5, start_s=1.0, max_batch=slots, kind="slow",
        kv_capacity_tokens=200_000,
    )  # fmt: skip
    fast = dataclasses.replace(slow, name="fast", kind="fast", base_s=3e-3, per_response_s=8e-6, prefill_per_token_s=5e-6)
    pools = [solver.GpuPool("slow", 1, 4, 3.0), solver.GpuPool("fast", 1, 2, 7.0, prewarmed=1)]
    return solver.MixedCluster(pools), {("slow", 1): slow, ("fast", 1): fast}


@pytest.mark.parametrize("slots", [48, 1024])
@pytest.mark.parametrize("option", [(True, False), (False, True), (True, True)])
def test_larger_plans_beat_the_random_split_and_are_close_to_the_bound(slots, option):
    cluster, models = two_pools(slots)
    workload, (together, shared) = lognormal_workload(32, 8, limit=1024), option
    plan = plan_generation(
        solver.PlanningProblem(workload, cluster, models, keep_together=together, share_prefill=shared), time_limit_s=0.6
    )
    assert plan.value < 1.0  # the random split's
    assert plan.gap < (0.06 if slots > 256 else 0.6)


def test_sharing_long_prompts_is_worth_keeping_them_together():
    cluster, models = two_pools(slots=1024)
    short = lognormal_workload(24, 8, limit=1024)
    work = solver.Workload(20 * short.prompt_tokens, short.prompt_of, short.response_tokens, max_response_tokens=1024)
    values = [
        plan_generation(
            solver.PlanningProblem(work, cluster, models, share_prefill=True, keep_together=together), time_limit_s=0.6
        ).value
        for together in (False, True)
    ]
    assert values[0] <= values[1] * 1.01


def test_a_prompt_whose_responses_cannot_stay_together_in_time_is_named():
    cluster, models = two_pools(slots=2)
    work = solver.Workload([100, 50], [0] * 6 + [1], [900] * 6 + [30], max_response_tokens=1024)
    with pytest.raises(solver.PlanningError, match="6 responses of prompt 0 "):
        plan_generation(
            solver.PlanningProblem(work, cluster, models, solver.Objective(deadline_s=5.0), keep_together=True),
            time_limit_s=0.2,
        )
    with refused(solver.PlanningError):
        plan_generation(solver.PlanningProblem(work, cluster, models, min_actors=3, keep_together=True))


def test_prompts_without_anything_to_generate_need_no_actor():
    cluster, models = two_pools(slots=8)
    work = solver.Workload([10, 20, 30], [0, 0, 1, 1, 2], [40, 0, 0, 0, 0], max_response_tokens=64)
    plan = plan_generation(
        solver.PlanningProblem(work, cluster, models, keep_together=True, share_prefill=True, min_actors=2), time_limit_s=0.2
    )
    assert sorted(i for a in plan.actors for i in a.responses) == list(range(5))
    assert plan.lower_bound <= plan.value * (1 + 1e-12)
