"""Planning on several offers: against brute force over all options, and what must hold whatever the instance."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance, mixed_instances
from solver_strategies import LIMIT, first_gpu, l40s, lognormal_workload, problem_of

import solver
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.node_placement import place

either = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))
REST = solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)
rests = st.sampled_from([solver.NonGenerationPhases(), REST])
objectives = st.builds(solver.Objective, st.sampled_from([0.0, 0.3, 0.7, 1.0]), cost=st.sampled_from(["gpu_s", "usd"]))
releases = st.sampled_from(["done", "generation", "step"])
sharing = st.sampled_from([(False, False), (True, False), (False, True), (True, True)])


def two_kinds(slots: int = 64, memory: int = 1 << 40) -> tuple[MixedCluster, dict[tuple[str, int], solver.LatencyModel]]:
    """A slow cheap kind in two sizes and a fast dear one."""
    slow = l40s(max_batch=slots, kv_capacity_tokens=memory)
    slow = dataclasses.replace(slow, kind="slow", gpus_per_actor=1)
    wide = dataclasses.replace(slow, name="wide", gpus_per_actor=2, base_s=4e-3, per_response_s=1.3e-5, per_kv_token_s=1.3e-8)
    fast = dataclasses.replace(slow, name="fast", kind="fast", base_s=3e-3, per_response_s=7e-6, per_kv_token_s=9e-9)
    cluster = MixedCluster([GpuPool("slow", 2, 4, 3.0), GpuPool("fast", 1, 3, 7.0, "preemptible", prewarmed=1)])
    return cluster, {("slow", 1): slow, ("slow", 2): wide, ("fast", 1): fast}


@given(either, objectives, releases, st.integers(1, 3), st.integers(0, 2), sharing)
@settings(max_examples=40, deadline=None)
def test_bound_optimum_and_value_come_in_this_order_whatever_is_asked(instance, objective, release, least, more, shared):
    """And the plan keeps every limit, with numbers that ``evaluate`` repeats."""
    together, prefill = shared
    counts = {"min_actors": least, "max_actors": least + more, "release": release}
    problem = problem_of(instance, objective, REST, keep_together=together, share_prefill=prefill, **counts)
    every = EveryMixedPlan(instance, together, prefill, rest_s=REST.seconds, **counts)
    try:
        plan = solver.plan(problem)
    except solver.PlanningError as refusal:
        assert "no plan" in str(refusal)  # noqa: PT017 (so many actors may not fit)
        assert least > 1
        return
    optimum = every.optimum(objective, REST, plan.reference.norms(objective.cost))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)
    assert plan.status != "optimal" or plan.value <= optimum * (1 + 3e-6)
    check_limits(plan, instance)
    assert problem.needed_actors <= len(plan.actors) <= least + more
    assert all(actor.shares_prompts == prefill and actor.release == release for actor in plan.actors)
    owners = [p for actor in plan.actors for p in set(instance.workload.prompt_of[list(actor.responses)].tolist())]
    assert not together or len(owners) == len(set(owners))
    taken = solver.evaluate(plan, problem)
    assert (taken.makespan_s, taken.gpu_seconds) == pytest.approx((plan.makespan_s, plan.gpu_seconds))


@given(st.data(), either, sharing, rests, st.sampled_from(["deadline_s", "budget_gpu_s", "budget_usd"]))
@settings(max_examples=40, deadline=None)
def test_under_a_limit_the_bound_holds_and_a_refusal_claims_nothing_false(data, instance, shared, phases, limit):
    every = EveryMixedPlan(instance, *shared)
    if not every.plans:
        return
    t, gpu_s, usd = data.draw(st.sampled_from(every.plans))
    rate = {c: phases.learner_rate(c, instance.cluster.pools[0].usd_per_gpu_s) for c in ("gpu_s", "usd")}
    time_s = phases.step_time_s(t)
    kept = {"deadline_s": time_s, "budget_gpu_s": gpu_s + rate["gpu_s"] * time_s, "budget_usd": usd + rate["usd"] * time_s}[
        limit
    ]
    objective = solver.Objective(**{limit: kept * (1 + 1e-3) + 1e-9})
    together, prefill = shared
    try:
        plan = solver.plan(problem_of(instance, objective, phases, keep_together=together, share_prefill=prefill))
    except solver.PlanningError as refusal:
        words = str(refusal)
    else:
        optimum = every.optimum(objective, phases, plan.reference.norms(objective.cost))
        assert plan.lower_bound <= optimum * (1 + 1e-9)
        assert optimum <= plan.value * (1 + 1e-9) < math.inf
        return
    assert float(words.split("at least ")[1].split()[0].strip(",;")) <= kept * (1 + 1e-3) + 1e-6


@st.composite
def uncertain(draw):
    """A small instance in two to four scenarios, and the same one with each as if it were known."""
    instance = draw(either)
    old = instance.workload
    row = st.lists(st.integers(1, LIMIT), min_size=len(old), max_size=len(old))
    tokens = draw(st.lists(row, min_size=2, max_size=4))
    work = solver.Workload(old.prompt_tokens, old.prompt_of, tokens, old.generated_tokens, max_response_tokens=LIMIT)
    return instance._replace(workload=work), [instance._replace(workload=case) for case in work.cases()]


def tables(cases, phases, usd):
    """(plans, S) times and costs of the step of every plan, each group in its fastest order of every scenario: no plan with
    one order for all of them is better."""
    every = [EveryMixedPlan(case) for case in cases]
    time_s = phases.seconds + np.array([[plan[0] for plan in e.plans] for e in every]).T
    rate = phases.learner_rate("usd" if usd else "gpu_s", cases[0].cluster.pools[0].usd_per_gpu_s)
    cost = np.array([[plan[2 if usd else 1] for plan in e.plans] for e in every]).T + rate * time_s
    return time_s, cost


@given(uncertain(), objectives, st.sampled_from([1.0, 0.5, 0.3]), rests)
@settings(max_examples=25, deadline=None)
def test_over_scenarios_bound_optimum_and_value_come_in_this_order(problem, objective, tail, phases):
    instance, cases = problem
    objective = dataclasses.replace(objective, cvar_alpha=tail)
    plan = solver.plan(problem_of(instance, objective, phases))
    norms = plan.reference.norms(objective.cost)
    time_s, cost = tables(cases, phases, objective.cost == "usd")
    optimum = min(objective.value_over(t, c, norms) for t, c in zip(time_s, cost, strict=True))
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    assert optimum <= plan.value * (1 + 1e-9)


@given(
    st.data(), uncertain(), st.sampled_from(["deadline_s", "budget_gpu_s", "budget_usd"]), st.sampled_from([1.0, 0.3]), rests
)
@settings(max_examples=25, deadline=None)
def test_a_limit_over_scenarios_is_kept_with_a_bound_that_holds_or_refused_with_numbers_that_are_true(
    data, problem, limit, tail, phases
):
    instance, cases = problem
    risk = solver.Objective(cvar_alpha=tail).risk
    time_s, cost = tables(cases, phases, limit == "budget_usd")
    times, costs = (np.array([risk(row) for row in table]) for table in (time_s, cost))
    limited, other = (times, costs) if limit == "deadline_s" else (costs, times)
    most = float(data.draw(st.sampled_from(limited.tolist()))) * (1 + 1e-3) + 1e-6
    objective = solver.Objective(cvar_alpha=tail, **{limit: most})
    asked = problem_of(instance, objective, phases)
    try:
        plan = solver.plan(asked)
    except solver.PlanningError as refusal:
        words = str(refusal)
    else:
        optimum = float(other[limited <= most].min())
        assert plan.lower_bound <= optimum * (1 + 1e-9)
        assert optimum <= plan.value * (1 + 1e-9)
        taken = solver.evaluate(plan, asked)
        step_s = taken.makespans_s + phases.seconds
        paid = taken.cost_usd_of if limit == "budget_usd" else taken.gpu_seconds_of
        rate = phases.learner_rate(objective.cost, instance.cluster.pools[0].usd_per_gpu_s)
        assert (risk(step_s) if limit == "deadline_s" else risk(paid + rate * step_s)) <= most * (1 + 1e-6)
        return
    assert "over the length scenarios" in words
    least, best = (float(words.split(before)[1].split()[0].strip(",;")) for before in ("at least ", "best plan found takes "))
    assert least <= float(limited.min()) + 1e-3
    assert best >= float(limited.min()) - 1e-3


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


def test_several_kinds_beat_each_alone_and_the_gap_is_small():
    work = lognormal_workload(64, 4)
    cluster, models = two_kinds(slots=256)
    objective = solver.Objective(0.5, cost="usd")
    plan = solver.plan(solver.PlanningProblem(work, cluster, models, objective))
    assert plan.gap < 0.06
    norms = plan.reference.norms("usd")
    for key in models:
        alone, pools = {key: models[key]}, MixedCluster([pool for pool in cluster.pools if pool.kind == key[0]])
        single = solver.plan(solver.PlanningProblem(work, pools, alone, objective))
        assert plan.value <= objective.value(single.makespan_s, single.cost_usd, norms) * 1.01


@pytest.mark.parametrize("lengths", [[7], [0], [0, 0, 0], [5, 0], [9, 9, 9, 9], [1] * 7])
@pytest.mark.parametrize("objective", [solver.Objective(0.5), solver.Objective(1.0), solver.Objective(0.0, cost="usd")])
def test_degenerate_workloads_are_planned(lengths, objective):
    cluster, models = two_kinds(slots=4)
    work = solver.Workload([10], [0] * len(lengths), lengths, max_response_tokens=64)
    plan = solver.plan(solver.PlanningProblem(work, cluster, models, objective))
    assert 0 <= plan.lower_bound <= plan.value * (1 + 1e-12)
    assert sorted(i for a in plan.actors for i in a.responses) == list(range(len(lengths)))


def test_one_gpu_and_more_actors_than_prompts():
    cluster = MixedCluster([GpuPool("slow", 1, 1)])
    _, models = two_kinds()
    work = solver.Workload([5], [0, 0], [30, 20], max_response_tokens=64)
    plan = solver.plan(solver.PlanningProblem(work, cluster, models))
    assert [a.gpu_ids for a in plan.actors] == [(0,)]
    assert plan.status == "optimal"
    cluster, models = two_kinds()
    fast = solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(1.0)))
    assert len(fast.actors) <= 2


def test_responses_too_long_for_one_offer_use_another():
    cluster, models = two_kinds()
    models["fast", 1] = dataclasses.replace(models["fast", 1], kv_capacity_tokens=700)
    work = solver.Workload([100, 400], [0, 0, 1, 1], [300, 200, 500, 400], max_response_tokens=512)
    plan = solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(1.0)))
    for actor in plan.actors:
        assert actor.kind == "slow" or set(actor.responses) <= {0, 1}


def test_refusals_name_the_limit_and_by_how_much_it_is_missed():
    cluster, models = two_kinds(memory=500)
    work = solver.Workload([100], [0, 0], [300, 200], max_response_tokens=512)
    with refused(solver.PlanningError, "response 0", "612", "500", "400"):
        solver.plan(solver.PlanningProblem(work, cluster, models))
    cluster, models = two_kinds()
    with refused(solver.PlanningError, "0.100", "0.9"):
        solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(deadline_s=0.1)))
    with refused(solver.PlanningError, "0.010"):
        solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(budget_gpu_s=0.01)))
    with refused(solver.PlanningError, "-06"):
        solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(budget_usd=1e-6)))


def test_deadlines_and_budgets_are_kept():
    work = lognormal_workload(32, 4, limit=1024)
    cluster, models = two_kinds(slots=64)
    free = solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(0.5)))
    within = solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(deadline_s=free.makespan_s)))
    assert within.makespan_s <= free.makespan_s * (1 + 1e-9)
    assert within.gpu_seconds <= free.gpu_seconds * 1.02
    paid = solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(budget_gpu_s=1.03 * free.gpu_seconds)))
    assert paid.gpu_seconds <= 1.03 * free.gpu_seconds * (1 + 1e-9)
    assert paid.makespan_s <= free.makespan_s * 1.02


def test_actors_are_placed_within_nodes_whatever_their_sizes():
    assert place([GpuPool("x", 2, 8)], [(0, 3), (0, 3), (0, 2), (0, 4), (0, 4)]) is not None
    assert place([GpuPool("x", 2, 6)], [(0, 4), (0, 4), (0, 4)]) is None
    places = place([GpuPool("x", 1, 2), GpuPool("y", 2, 4)], [(1, 4), (0, 1), (1, 2)])
    assert places == [(1, (2, 3, 4, 5)), (0, (0,)), (2, (6, 7))]


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
    plan = solver.plan(solver.PlanningProblem(workload, cluster, models, keep_together=together, share_prefill=shared))
    assert plan.value < 1.0  # the random split's
    assert plan.gap < (0.06 if slots > 256 else 0.6)


def test_sharing_long_prompts_is_worth_keeping_them_together():
    cluster, models = two_pools(slots=1024)
    short = lognormal_workload(24, 8, limit=1024)
    work = solver.Workload(20 * short.prompt_tokens, short.prompt_of, short.response_tokens, max_response_tokens=1024)
    values = [
        solver.plan(solver.PlanningProblem(work, cluster, models, share_prefill=True, keep_together=together)).value
        for together in (False, True)
    ]
    assert values[0] <= values[1] * 1.01


def test_a_prompt_whose_responses_cannot_stay_together_in_time_is_named():
    cluster, models = two_pools(slots=2)
    work = solver.Workload([100, 50], [0] * 6 + [1], [900] * 6 + [30], max_response_tokens=1024)
    with pytest.raises(solver.PlanningError, match="6 responses of prompt 0 "):
        solver.plan(solver.PlanningProblem(work, cluster, models, solver.Objective(deadline_s=5.0), keep_together=True))
    with refused(solver.PlanningError):
        solver.plan(solver.PlanningProblem(work, cluster, models, min_actors=3, keep_together=True))


def test_prompts_without_anything_to_generate_need_no_actor():
    cluster, models = two_pools(slots=8)
    work = solver.Workload([10, 20, 30], [0, 0, 1, 1, 2], [40, 0, 0, 0, 0], max_response_tokens=64)
    plan = solver.plan(solver.PlanningProblem(work, cluster, models, keep_together=True, share_prefill=True, min_actors=2))
    assert sorted(i for a in plan.actors for i in a.responses) == list(range(5))
    assert plan.lower_bound <= plan.value * (1 + 1e-12)


def test_a_wide_deadline_over_scenarios_is_kept():
    """Where the random split keeps it, too, nothing is refused."""
    model = solver.LatencyModel("x", 1, 5e-3, 1e-3, kind="x")
    cluster = solver.MixedCluster([solver.GpuPool("x", 1, 2, 3.6), solver.GpuPool("y", 1, 1, 36.0)])
    models = {("x", 1): model, ("y", 1): dataclasses.replace(model, kind="y", base_s=2e-3)}
    workload = solver.Workload([5], [0] * 4, [[9, 3, 20, 7], [20, 20, 1, 1], [2, 3, 4, 24]], max_response_tokens=LIMIT)
    for tail in (1.0, 0.4):
        free = solver.plan(solver.PlanningProblem(workload, cluster, models, solver.Objective(1.0, cvar_alpha=tail)))
        worst = solver.Objective(cvar_alpha=tail).risk(
            solver.evaluate(free, solver.PlanningProblem(workload, cluster, models)).makespans_s
        )
        objective = solver.Objective(cvar_alpha=tail, deadline_s=1.001 * worst)
        plan = solver.plan(solver.PlanningProblem(workload, cluster, models, objective))
        assert plan.value == pytest.approx(
            objective.risk(solver.evaluate(plan, solver.PlanningProblem(workload, cluster, models)).gpu_seconds_of)
        )
