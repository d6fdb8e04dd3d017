"""The relaxation lies below every plan there is: checked against all partitions of small workloads in all admission orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_reference import EveryPlan
from solver_strategies import Instance, instances, l40s, lognormal_workload

import solver
from solver.planning.single_kind.fill import fill
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.relaxation import relaxed
from solver.planning.single_kind.rounding import next_fit
from solver.planning.single_kind.slot_waves import waves
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of

either = st.booleans().flatmap(lambda refill: instances(refill=refill))


def sorted_work(instance: Instance, max_actors: int | None = None) -> SortedWork:
    latency = instance.latency
    rule = admission_of(latency, None, instance.admission)
    return SortedWork.of(instance.workload, latency, rule, max_actors=max_actors or instance.cluster.max_actors)


def every_plan(instance: Instance) -> EveryPlan:
    rule = admission_of(instance.latency, None, instance.admission)
    return EveryPlan(instance.workload, instance.cluster, instance.latency, rule)


@given(either)
@settings(max_examples=40, deadline=None)
def test_no_plan_is_cheaper_or_has_fewer_actors_than_the_relaxation_at_its_makespan(instance):
    work = sorted_work(instance)
    for groups, makespan_s, gpu_s in every_plan(instance).plans:
        least = relaxed(work, makespan_s)
        assert least is not None
        assert least.actor_s * instance.cluster.gpus_per_actor <= gpu_s * (1 + 1e-9) + 1e-12
        assert least.actors <= len(groups)


@given(either)
@settings(max_examples=40, deadline=None)
def test_with_a_least_number_of_actors_it_lies_below_every_plan_that_has_as_many(instance):
    """Plans with an actor of zero lengths only are left out: the same plan without that actor is no worse."""
    work = sorted_work(instance)
    remaining = instance.workload.remaining_tokens
    for groups, makespan_s, gpu_s in every_plan(instance).plans:
        if all(remaining[group].any() for group in groups):
            least = relaxed(work, makespan_s, len(groups))
            assert least is not None
            assert least.actors == len(groups)
            assert least.actor_s * instance.cluster.gpus_per_actor <= gpu_s * (1 + 1e-9) + 1e-12


@given(either)
@settings(max_examples=40, deadline=None)
def test_more_time_or_more_actors_never_cost_more(instance):
    one = sorted_work(instance)
    two = sorted_work(instance, instance.cluster.max_actors + 1)
    last = np.inf
    for makespan_s in np.linspace(0.5 * one.shortest_makespan_s, 1.2 * one.longest_makespan_s, 60):
        least, wider = relaxed(one, float(makespan_s)), relaxed(two, float(makespan_s))
        cost = np.inf if least is None else least.actor_s
        assert cost <= last * (1 + 1e-12)
        assert wider is not None or least is None
        assert least is None or wider == least
        last = cost


@given(either)
@settings(max_examples=40, deadline=None)
def test_nothing_is_faster_than_the_shortest_makespan_nor_is_one_actor_slower_than_the_longest(instance):
    work = sorted_work(instance)
    plans = every_plan(instance)
    assert min(makespan_s for _, makespan_s, _ in plans.plans) >= work.shortest_makespan_s * (1 - 1e-9)
    if instance.admission == "reserve":  # under `preempt` evicted responses are computed again, which is not counted
        assert plans.busy_s(tuple(range(len(instance.workload)))) <= work.longest_makespan_s * (1 + 1e-9)


@given(instances(refill=True), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_next_fit_and_filling_keep_the_makespan_they_are_given(instance, share):
    """Also where slots are refilled, in the order of falling length; under ``preempt`` evictions may break it."""
    reserve = instance._replace(admission="reserve")
    work = sorted_work(reserve)
    makespan_s = work.shortest_makespan_s + share * (work.longest_makespan_s - work.shortest_makespan_s)
    edges = next_fit(work, makespan_s)
    rounded = [] if edges is None else [[np.arange(a, b) for a, b in itertools.pairwise(edges)]]
    filled = fill(work, makespan_s)
    for groups in rounded if filled is None else [*rounded, filled]:
        chosen = [work.responses(group) for group in groups]
        plan = assemble("rounded", chosen, solver.PlanningProblem(reserve.workload, reserve.cluster, reserve.latency))
        assert plan.makespan_s <= makespan_s * (1 + 1e-8) + 1e-12


@given(instances(refill=True), st.floats(0, 1.2))
@settings(max_examples=40, deadline=None)
def test_waves_hold_every_item_once_and_take_no_longer_than_one_after_the_other(instance, share):
    """With a prefill call for every response in place of the calls that are guessed; ``preempt`` may evict."""
    reserve = instance._replace(admission="reserve")
    work = sorted_work(reserve)
    makespan_s = work.shortest_makespan_s + share * (work.longest_makespan_s - work.shortest_makespan_s)
    shared = waves(work, makespan_s)
    if shared is None:
        return
    groups, about_s = shared
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(work)))
    assert len(groups) <= work.max_actors
    plan = assemble(
        "waves", [work.responses(g) for g in groups], solver.PlanningProblem(reserve.workload, reserve.cluster, reserve.latency)
    )
    ready_s = work.ready_of(0)
    for actor, group, about in zip(plan.actors, groups, about_s, strict=True):
        assert actor.predicted_s - ready_s <= (about + work.call_s * len(group)) * (1 + 1e-8) + 1e-12


@pytest.mark.parametrize(("slots", "actors"), [(16, 8), (16, 64), (64, 4)])
def test_waves_come_close_to_the_relaxation_at_their_makespan(slots, actors):
    """As many as there are, or too few to keep the makespan: what refilling wastes is little, on all actors alike."""
    workload, latency = lognormal_workload(512, 8), l40s(max_batch=slots, prefill_base_s=5e-3)
    cluster = solver.Cluster(actors, 2, 2)
    work = SortedWork.of(workload, latency, admission_of(latency), max_actors=actors)
    groups, about_s = waves(work, 1.1 * max(work.shortest_makespan_s, float(work.slot_load[-1]) / actors))
    plan = assemble("waves", [work.responses(g) for g in groups], solver.PlanningProblem(workload, cluster, latency))
    least = relaxed(work, plan.makespan_s)
    assert plan.gpu_seconds <= 2 * least.actor_s * 1.03
    assert plan.makespan_s == pytest.approx(about_s.max() + work.ready_of(0), rel=0.02)


@given(st.data(), st.integers(2, 24), st.sampled_from([0.0, 4e-3, 5e-2]), st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=40, deadline=None)
def test_it_lies_below_random_plans_that_refill_in_any_order(data, slots, call_s, rule):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    count, actors = int(rng.integers(slots, 160)), int(rng.integers(1, 9))
    workload = solver.Workload(
        [7, 30], rng.integers(0, 2, count), np.ceil(rng.lognormal(3, 0.8, count)), max_response_tokens=400
    )
    memory = int(rng.choice([500 * slots, 200 * slots, 500]))
    latency = l40s(max_batch=slots, prefill_base_s=call_s, kv_capacity_tokens=max(memory, 430), start_s=0.01)
    work = SortedWork.of(workload, latency, admission_of(latency, None, rule), max_actors=actors)
    order = rng.permutation(count) if rng.random() < 0.5 else np.argsort(-workload.remaining_tokens)
    owner = rng.integers(0, actors, count)
    groups = [order[owner == k] for k in range(actors) if (owner == k).any()]
    plan = assemble("random", groups, solver.PlanningProblem(workload, solver.Cluster(actors, 2, 2), latency, admission=rule))
    least = relaxed(work, plan.makespan_s)
    assert least is not None
    assert least.actors <= len(groups)
    assert 2 * least.actor_s <= plan.gpu_seconds * (1 + 1e-9)


@pytest.mark.parametrize("samples", [1, 8])
def test_next_fit_at_the_makespan_plus_the_largest_load_costs_no_more_than_the_relaxation(samples):
    """The rounding theorem, where slots and memory do not bind."""
    workload = lognormal_workload(64, samples)
    latency = l40s(max_batch=10_000)
    work = SortedWork.of(workload, latency, admission_of(latency), max_actors=1000)
    largest = float(np.diff(work.load).max())
    cluster = solver.Cluster(1000, 2, 2)
    for makespan_s in np.geomspace(work.shortest_makespan_s, work.longest_makespan_s, 25):
        edges = next_fit(work, float(makespan_s) + largest)
        least = relaxed(work, float(makespan_s))
        plan = assemble(
            "next-fit",
            [work.order[a:b] for a, b in itertools.pairwise(edges)],
            solver.PlanningProblem(workload, cluster, latency),
        )
        assert plan.gpu_seconds <= 2 * least.actor_s * (1 + 1e-9)


def test_equal_responses_need_as_many_actors_as_their_even_split_has():
    """Every second of that makespan is used by every actor, the prefill call included, so one actor fewer cannot do it."""
    latency = l40s(base_s=0.01, per_response_s=1e-3, per_kv_token_s=0.0, prefill_base_s=0.5)
    actors, each, tokens = 4, 8, 10
    workload = solver.Workload.grid(np.full(actors * each, 50), np.full((actors * each, 1), tokens))
    work = SortedWork.of(workload, latency, admission_of(latency), max_actors=actors * each)
    groups = [np.arange(actors * each)[i::actors] for i in range(actors)]
    plan = assemble("even", groups, solver.PlanningProblem(workload, solver.Cluster(1, 2 * actors, 2), latency))
    least = relaxed(work, plan.makespan_s)
    assert least is not None
    assert least.actors == actors
    assert least.actor_s * 2 == pytest.approx(plan.gpu_seconds)


@given(st.integers(0, 1 << 20), st.sampled_from([0.0, 5e-2]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_prompts_that_stay_together_cost_no_less_than_their_responses_apart(seed, call_s, shared):
    """A plan of whole prompts is also one of responses; random ones, admitted in any order, lie above both relaxations."""
    rng = np.random.default_rng(seed)
    prompts, samples, actors, slots = (int(rng.integers(*ends)) for ends in ((2, 24), (2, 6), (1, 6), (1, 12)))
    tokens = np.clip(rng.lognormal(3, 1.0, (prompts, samples)), 0, 400).astype(int)
    workload = solver.Workload.grid(rng.integers(0, 40, prompts), tokens, max_response_tokens=400)
    latency = l40s(max_batch=slots, prefill_base_s=call_s)
    together, apart = (
        SortedWork.of(
            workload, latency, admission_of(latency), max_actors=actors, keep_together=keep, share_prefill=shared
        )
        for keep in (True, False)
    )  # fmt: skip
    owner = rng.integers(0, actors, prompts)[workload.prompt_of]
    groups = [rng.permutation(np.flatnonzero(owner == k)) for k in range(actors) if (owner == k).any()]
    problem = solver.PlanningProblem(workload, solver.Cluster(actors, 2, 2), latency, share_prefill=shared)
    plan = assemble("random", groups, problem)
    least, of_responses = relaxed(together, plan.makespan_s), relaxed(apart, plan.makespan_s)
    assert least is not None
    assert of_responses is not None
    assert of_responses.actor_s <= least.actor_s * (1 + 1e-9)
    assert least.actor_s <= plan.gpu_seconds / 2 * (1 + 1e-9)
    assert of_responses.actors <= least.actors <= len(groups)
