"""Planning on several offers: against brute force, and what must hold whatever the instance."""

from __future__ import annotations

import dataclasses
import math

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance, mixed_instances
from solver_strategies import first_gpu, l40s, lognormal_workload, mixed_problem, plan_generation, plan_mixed, search_mixed

import solver
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.offers import offers_of
from solver.planning.bound import PlanLimits
from solver.planning.bound_search import lower_bound_of
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.length_classes import Classes
from solver.planning.mixed_kinds.lp_bound import Relaxation
from solver.planning.mixed_kinds.node_placement import place
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.work_budget import WorkBudget
from solver.timing.step_cost import StepObjective

either = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))
rests = st.sampled_from([solver.NonGenerationPhases(), solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)])
objectives = st.builds(solver.Objective, st.sampled_from([0.0, 0.3, 0.7, 1.0]), cost=st.sampled_from(["gpu_s", "usd"]))
QUICK_S = 0.06


def problem_of(instance: MixedInstance, **options) -> solver.PlanningProblem:
    return mixed_problem(instance.workload, instance.offers, instance.cluster, admission=instance.admission, **options)


def solve(
    instance: MixedInstance, objective: solver.Objective, phases: solver.NonGenerationPhases, time_limit_s: float = QUICK_S
):
    return plan_mixed(problem_of(instance, objective=objective, phases=phases), time_limit_s)


def two_kinds(slots: int = 64, memory: int = 1 << 40) -> tuple[MixedCluster, dict[tuple[str, int], solver.LatencyModel]]:
    """A slow cheap kind in two sizes and a fast dear one."""
    slow = l40s(max_batch=slots, kv_capacity_tokens=memory)
    slow = dataclasses.replace(slow, kind="slow", gpus_per_actor=1)
    wide = dataclasses.replace(slow, name="wide", gpus_per_actor=2, base_s=4e-3, per_response_s=1.3e-5, per_kv_token_s=1.3e-8)
    fast = dataclasses.replace(slow, name="fast", kind="fast", base_s=3e-3, per_response_s=7e-6, per_kv_token_s=9e-9)
    cluster = MixedCluster([GpuPool("slow", 2, 4, 3.0), GpuPool("fast", 1, 3, 7.0, "preemptible", prewarmed=1)])
    return cluster, {("slow", 1): slow, ("slow", 2): wide, ("fast", 1): fast}


@given(either, objectives, rests)
@settings(max_examples=30, deadline=None)
def test_bound_optimum_and_value_come_in_this_order(instance, objective, phases):
    plan = solve(instance, objective, phases)
    optimum = EveryMixedPlan(instance).optimum(objective, phases, plan.reference.norms(objective.cost))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)
    assert plan.status != "optimal" or plan.value <= optimum * (1 + 3e-6)


@given(either, st.data())
@settings(max_examples=30, deadline=None)
def test_both_relaxations_cost_no_more_than_any_plan_within_the_makespan(instance, data):
    work = MixedWork.of(problem_of(instance))
    plans = EveryMixedPlan(instance).plans
    makespan_s = data.draw(st.sampled_from(sorted({t for t, _, _ in plans})))
    cheapest = min(gpu_s for t, gpu_s, _ in plans if t <= makespan_s)
    least = data.draw(st.integers(1, 2))
    assert Sequences(work).at(makespan_s).cost <= cheapest * (1 + 1e-9)
    classes = Classes.of(work, data.draw(st.sampled_from([2, 5, 40])))
    relaxation = Relaxation(work, classes)
    for m in (makespan_s * 2, makespan_s, makespan_s * 3):  # the same model again and again
        assert relaxation.at(m).cost <= cheapest * (1 + 1e-9) + 1e-12
    narrower = Relaxation(work, classes, PlanLimits(min_actors=least)).at(makespan_s).cost
    assert narrower >= relaxation.at(makespan_s).cost * (1 - 1e-6) - 1e-9


@given(either, objectives, rests, st.data())
@settings(max_examples=30, deadline=None)
def test_sequences_that_are_not_followed_leave_a_bound(instance, objective, phases, data):
    """However little work may be done, and however few sequences are followed."""
    work = MixedWork.of(problem_of(instance, objective=objective))
    every = EveryMixedPlan(instance)
    makespan_s = data.draw(st.sampled_from(sorted({t for t, _, _ in every.plans})))
    paid = [(t, usd if objective.cost == "usd" else gpu_s) for t, gpu_s, usd in every.plans]
    cheapest = min(cost for t, cost in paid if t <= makespan_s)
    most_s = data.draw(st.sampled_from([0.0, 1e-3, 3e-3, math.inf]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.mixed_kinds.sequence_bound.WIDTH", data.draw(st.sampled_from([1, 2, 300])))
        patch.setattr("solver.planning.mixed_kinds.load_measures.SINGLES", data.draw(st.sampled_from([0, 1, 64])))
        patch.setattr("solver.planning.mixed_kinds.load_measures.BLOCKS", data.draw(st.sampled_from([1, 2, 1024])))
        assert Sequences(work, work_budget=WorkBudget(most_s)).at(makespan_s).cost <= cheapest * (1 + 1e-9)
        norms = (1.0, 4.0)
        rate = phases.learner_rate(objective.cost, instance.cluster.pools[0].usd_per_gpu_s)
        goal = StepObjective(objective, phases, rate, norms)
        optimum = every.optimum(objective, phases, norms)
        assert goal.value(work.shortest_makespan_s, work.least_cost) <= optimum * (1 + 1e-9)
        bound = Sequences(work, work_budget=WorkBudget(min(most_s, 0.02)))
        assert lower_bound_of(bound, goal, 2 * optimum) <= optimum * (1 + 1e-9)


@given(st.data(), either, rests, st.sampled_from(["deadline_s", "budget_gpu_s", "budget_usd"]))
@settings(max_examples=30, deadline=None)
def test_under_a_limit_the_bound_holds_and_a_refusal_claims_nothing_false(data, instance, phases, limit):
    every = EveryMixedPlan(instance)
    t, gpu_s, usd = data.draw(st.sampled_from(every.plans))
    rate = {c: phases.learner_rate(c, instance.cluster.pools[0].usd_per_gpu_s) for c in ("gpu_s", "usd")}
    time_s = phases.step_time_s(t)
    kept = {"deadline_s": time_s, "budget_gpu_s": gpu_s + rate["gpu_s"] * time_s, "budget_usd": usd + rate["usd"] * time_s}[
        limit
    ]
    objective = solver.Objective(**{limit: kept * (1 + 1e-3) + 1e-9})
    try:
        plan = solve(instance, objective, phases)
    except solver.PlanningError as refusal:
        refused = str(refusal)
    else:
        refused = ""
    if refused:
        assert float(refused.split("at least ")[1].split()[0]) <= kept * (1 + 1e-3) + 1e-6
        return
    optimum = every.optimum(objective, phases, plan.reference.norms(objective.cost))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9) < math.inf


@given(either, objectives, st.integers(1, 3), st.sampled_from(["done", "generation", "step"]))
@settings(max_examples=30, deadline=None)
def test_plans_keep_every_limit_and_reproduce_their_numbers(instance, objective, least, release):
    work, _, offers, admission = instance
    phases = solver.NonGenerationPhases(learn_s=0.1, learner_gpus=1)
    most = max(least, 2)
    try:
        limits = {"min_actors": least, "max_actors": most, "release": release}
        outcome = search_mixed(problem_of(instance, objective=objective, phases=phases, **limits), QUICK_S)
    except solver.PlanningError as refusal:
        assert "no plan" in str(refusal)  # noqa: PT017 (min_actors may not fit)
        return
    models = {(offer.kind, offer.gpus): offer.latency for offer in offers}
    for plan in outcome.candidates:
        check_limits(plan, instance)
        assert len(plan.actors) <= most
        taken = solver.evaluate(
            plan, solver.PlanningProblem(work, instance.cluster, models, phases=phases, admission=admission)
        )
        assert taken.makespan_s == pytest.approx(plan.makespan_s)
        assert taken.gpu_seconds == pytest.approx(plan.gpu_seconds)
    plan = outcome.plan
    assert plan.lower_bound <= plan.value * (1 + 1e-12)
    if plan.value < plan.history[0].value:  # the random split never has more actors than prompts
        assert len(plan.actors) >= min(least, int((work.remaining_tokens > 0).sum()))


def check_limits(plan: solver.Plan, instance: MixedInstance) -> None:
    work, cluster, offers, _ = instance
    used: set[int] = set()
    for actor in plan.actors:
        pool = next(
            i for i, p in enumerate(cluster.pools)
            if first_gpu(cluster, i) <= actor.gpu_ids[0] < first_gpu(cluster, i) + p.gpus
        )  # fmt: skip
        offer = next(o for o in offers if o.pool == pool and o.gpus == len(actor.gpu_ids))
        assert (actor.kind, actor.market, actor.usd_per_gpu_s) == (offer.kind, offer.market, offer.usd_per_gpu_s)
        per_node = cluster.pools[pool].gpus_per_node
        nodes = {sum(p.nodes for p in cluster.pools[:pool]) + (g - first_gpu(cluster, pool)) // per_node for g in actor.gpu_ids}
        assert nodes == {actor.node}
        assert not used & set(actor.gpu_ids)
        used |= set(actor.gpu_ids)
        assert actor.max_batch == offer.latency.max_batch
        assert all(work.reserved_tokens[i] <= offer.latency.kv_capacity_tokens for i in actor.responses)
    for i, pool in enumerate(cluster.pools):
        gpus = range(first_gpu(cluster, i), first_gpu(cluster, i) + pool.gpus)
        assert sum(actor.prewarmed for actor in plan.actors if actor.gpu_ids[0] in gpus) <= pool.prewarmed
    assert sorted(i for actor in plan.actors for i in actor.responses) == list(range(len(work)))


@given(either, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_responses_does_not_matter_to_the_bound(instance, random):
    work = instance.workload
    order = list(range(len(work)))
    random.shuffle(order)
    shuffled = solver.Workload(
        work.prompt_tokens,
        work.prompt_of[order],
        work.response_tokens[order],
        work.generated_tokens[order],
        work.max_response_tokens,
    )
    of = [MixedWork.of(problem_of(instance._replace(workload=w))) for w in (work, shuffled)]
    makespan_s = 1.5 * of[0].shortest_makespan_s + 1e-3
    one, other = (Sequences(w).at(makespan_s).cost for w in of)
    assert one == pytest.approx(other, rel=1e-9)
    one, other = (Relaxation(w, Classes.of(w, 5)).at(makespan_s).cost for w in of)
    assert one == pytest.approx(other, rel=1e-6)


@given(either, st.sampled_from([1.05, 1.5, 3.0]))
@settings(max_examples=25, deadline=None)
def test_more_gpus_never_raise_the_bound(instance, factor):
    """At one makespan; the reference, which would move the value, plays no part."""
    work = instance.workload
    pools = [dataclasses.replace(pool, nodes=pool.nodes + 1) for pool in instance.cluster.pools]
    models = {(offer.kind, offer.gpus): offer.latency for offer in instance.offers}
    larger = MixedCluster(pools)
    before = MixedWork.of(mixed_problem(work, instance.offers, instance.cluster))
    after = MixedWork.of(mixed_problem(work, offers_of(larger, models), larger))
    makespan_s = factor * before.shortest_makespan_s + 1e-4
    assert Sequences(after).at(makespan_s).cost <= Sequences(before).at(makespan_s).cost * (1 + 1e-9)


def test_one_offer_agrees_with_the_planner_for_one_kind():
    work = lognormal_workload(32, 4, limit=1024)
    model = dataclasses.replace(l40s(), kind="gpu")
    pool = GpuPool("gpu", 3, 8)
    one = plan_generation(solver.PlanningProblem(work, solver.Cluster(3, 8, 2), model), time_limit_s=0.19)
    cluster = MixedCluster([pool])
    mixed = plan_mixed(mixed_problem(work, offers_of(cluster, {("gpu", 2): model}), cluster), 0.5)
    norms = (one.reference.time_s, one.reference.gpu_s)
    value = solver.Objective().value(mixed.makespan_s, mixed.gpu_seconds, norms)
    assert one.lower_bound <= value * (1 + 1e-9)
    assert mixed.gap < 0.03
    assert value <= one.value * 1.02


def test_several_kinds_beat_each_alone_and_the_gap_is_small():
    work = lognormal_workload(64, 4)
    cluster, models = two_kinds(slots=256)
    objective = solver.Objective(0.5, cost="usd")
    plan = plan_mixed(mixed_problem(work, offers_of(cluster, models), cluster, objective), 1.0)
    assert plan.gap < 0.06
    norms = plan.reference.norms("usd")
    for key in models:
        alone, pools = {key: models[key]}, MixedCluster([pool for pool in cluster.pools if pool.kind == key[0]])
        single = plan_mixed(mixed_problem(work, offers_of(pools, alone), pools, objective), 0.3)
        assert plan.value <= objective.value(single.makespan_s, single.cost_usd, norms) * 1.01


@pytest.mark.parametrize("lengths", [[7], [0], [0, 0, 0], [5, 0], [9, 9, 9, 9], [1] * 7])
@pytest.mark.parametrize("objective", [solver.Objective(0.5), solver.Objective(1.0), solver.Objective(0.0, cost="usd")])
def test_degenerate_workloads_are_planned(lengths, objective):
    cluster, models = two_kinds(slots=4)
    work = solver.Workload([10], [0] * len(lengths), lengths, max_response_tokens=64)
    plan = plan_mixed(mixed_problem(work, offers_of(cluster, models), cluster, objective), 0.3)
    assert 0 <= plan.lower_bound <= plan.value * (1 + 1e-12)
    assert sorted(i for a in plan.actors for i in a.responses) == list(range(len(lengths)))


def test_one_gpu_and_more_actors_than_prompts():
    cluster = MixedCluster([GpuPool("slow", 1, 1)])
    _, models = two_kinds()
    work = solver.Workload([5], [0, 0], [30, 20], max_response_tokens=64)
    plan = plan_mixed(mixed_problem(work, offers_of(cluster, models), cluster), 0.2)
    assert [a.gpu_ids for a in plan.actors] == [(0,)]
    assert plan.status == "optimal"
    cluster, models = two_kinds()
    fast = plan_mixed(mixed_problem(work, offers_of(cluster, models), cluster, solver.Objective(1.0)), 0.2)
    assert len(fast.actors) <= 2


def test_responses_too_long_for_one_offer_use_another():
    cluster, models = two_kinds()
    models["fast", 1] = dataclasses.replace(models["fast", 1], kv_capacity_tokens=700)
    work = solver.Workload([100, 400], [0, 0, 1, 1], [300, 200, 500, 400], max_response_tokens=512)
    plan = plan_mixed(mixed_problem(work, offers_of(cluster, models), cluster, solver.Objective(1.0)), 0.3)
    for actor in plan.actors:
        assert actor.kind == "slow" or set(actor.responses) <= {0, 1}


def test_refusals_name_the_limit_and_by_how_much_it_is_missed():
    cluster, models = two_kinds(memory=500)
    work = solver.Workload([100], [0, 0], [300, 200], max_response_tokens=512)
    with refused(solver.PlanningError, "response 0", "612", "500", "400"):
        plan_generation(solver.PlanningProblem(work, cluster, models))
    cluster, models = two_kinds()
    offers = offers_of(cluster, models)
    with refused(solver.PlanningError, "0.100", "0.9"):
        plan_mixed(mixed_problem(work, offers, cluster, solver.Objective(deadline_s=0.1)), 0.2)
    with refused(solver.PlanningError, "0.010"):
        plan_mixed(mixed_problem(work, offers, cluster, solver.Objective(budget_gpu_s=0.01)), 0.2)
    with refused(solver.PlanningError, "-06"):
        plan_mixed(mixed_problem(work, offers, cluster, solver.Objective(budget_usd=1e-6)), 0.2)


def test_deadlines_and_budgets_are_kept():
    work = lognormal_workload(32, 4, limit=1024)
    cluster, models = two_kinds(slots=64)
    offers = offers_of(cluster, models)
    free = plan_mixed(mixed_problem(work, offers, cluster, solver.Objective(0.5)), 0.4)
    within = plan_mixed(mixed_problem(work, offers, cluster, solver.Objective(deadline_s=free.makespan_s)), 0.4)
    assert within.makespan_s <= free.makespan_s * (1 + 1e-9)
    assert within.gpu_seconds <= free.gpu_seconds * 1.02
    paid = plan_mixed(mixed_problem(work, offers, cluster, solver.Objective(budget_gpu_s=1.03 * free.gpu_seconds)), 0.4)
    assert paid.gpu_seconds <= 1.03 * free.gpu_seconds * (1 + 1e-9)
    assert paid.makespan_s <= free.makespan_s * 1.02


def test_actors_are_placed_within_nodes_whatever_their_sizes():
    assert place([GpuPool("x", 2, 8)], [(0, 3), (0, 3), (0, 2), (0, 4), (0, 4)]) is not None
    assert place([GpuPool("x", 2, 6)], [(0, 4), (0, 4), (0, 4)]) is None
    places = place([GpuPool("x", 1, 2), GpuPool("y", 2, 4)], [(1, 4), (0, 1), (1, 2)])
    assert places == [(1, (2, 3, 4, 5)), (0, (0,)), (2, (6, 7))]
