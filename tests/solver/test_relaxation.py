"""The relaxation lies below every plan there is: checked against all partitions of small workloads in all admission orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_reference import EveryPlan
from solver_strategies import Instance, instances, l40s, lognormal_workload

import solver
from solver.assemble import assemble
from solver.evaluate import admission_of, ready_s
from solver.relaxation import SortedWork
from solver.rounding import next_fit

either = st.booleans().flatmap(lambda refill: instances(refill=refill))


def sorted_work(instance: Instance, most_actors: int | None = None) -> SortedWork:
    latency = instance.latency
    rule = admission_of(latency, None, instance.admission)
    return SortedWork.of(instance.workload, latency, rule, ready_s(latency), most_actors or instance.cluster.max_actors)


def every_plan(instance: Instance) -> EveryPlan:
    rule = admission_of(instance.latency, None, instance.admission)
    return EveryPlan(instance.workload, instance.cluster, instance.latency, rule)


@given(either)
@settings(max_examples=150, deadline=None)
def test_no_plan_is_cheaper_or_has_fewer_actors_than_the_relaxation_at_its_makespan(instance):
    work = sorted_work(instance)
    for groups, makespan_s, gpu_s in every_plan(instance).plans:
        relaxed = work.relaxed(makespan_s)
        assert relaxed is not None
        assert relaxed.actor_s * instance.cluster.gpus_per_actor <= gpu_s * (1 + 1e-9) + 1e-12
        assert relaxed.actors <= len(groups)


@given(either)
@settings(max_examples=100, deadline=None)
def test_with_a_least_number_of_actors_it_lies_below_every_plan_that_has_as_many(instance):
    """Plans with an actor of zero lengths only are left out: the same plan without that actor is no worse."""
    work = sorted_work(instance)
    remaining = instance.workload.remaining_tokens
    for groups, makespan_s, gpu_s in every_plan(instance).plans:
        if all(remaining[group].any() for group in groups):
            relaxed = work.relaxed(makespan_s, len(groups))
            assert relaxed is not None
            assert relaxed.actors == len(groups)
            assert relaxed.actor_s * instance.cluster.gpus_per_actor <= gpu_s * (1 + 1e-9) + 1e-12


@given(either)
@settings(max_examples=80, deadline=None)
def test_more_time_or_more_actors_never_cost_more(instance):
    one = sorted_work(instance)
    two = sorted_work(instance, instance.cluster.max_actors + 1)
    last = np.inf
    for makespan_s in np.linspace(0.5 * one.shortest_makespan_s, 1.2 * one.longest_makespan_s, 60):
        relaxed, wider = one.relaxed(float(makespan_s)), two.relaxed(float(makespan_s))
        cost = np.inf if relaxed is None else relaxed.actor_s
        assert cost <= last * (1 + 1e-12)
        assert wider is not None or relaxed is None
        assert relaxed is None or wider == relaxed
        last = cost


@given(either)
@settings(max_examples=80, deadline=None)
def test_nothing_is_faster_than_the_shortest_makespan_nor_is_one_actor_slower_than_the_longest(instance):
    work = sorted_work(instance)
    plans = every_plan(instance)
    assert min(makespan_s for _, makespan_s, _ in plans.plans) >= work.shortest_makespan_s * (1 - 1e-9)
    if instance.admission == "reserve":  # under `preempt` evicted responses are computed again, which is not counted
        assert plans.busy_s(tuple(range(len(instance.workload)))) <= work.longest_makespan_s * (1 + 1e-9)


@given(instances(refill=True), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_next_fit_keeps_the_makespan_it_is_given(instance, share):
    """Also where slots are refilled, in the order of falling length; under ``preempt`` evictions may break it."""
    reserve = instance._replace(admission="reserve")
    work = sorted_work(reserve)
    makespan_s = work.shortest_makespan_s + share * (work.longest_makespan_s - work.shortest_makespan_s)
    groups = next_fit(work, makespan_s)
    if groups is not None:
        plan = assemble("next-fit", [work.order[a:b] for a, b in groups], reserve.workload, reserve.cluster, reserve.latency)
        assert plan.makespan_s <= makespan_s * (1 + 1e-8) + 1e-12


@pytest.mark.parametrize("samples", [1, 8])
def test_next_fit_at_the_makespan_plus_the_largest_load_costs_no_more_than_the_relaxation(samples):
    """The rounding theorem, where slots and memory do not bind."""
    workload = lognormal_workload(64, samples)
    latency = l40s(max_batch=10_000)
    work = SortedWork.of(workload, latency, admission_of(latency), ready_s(latency), 1000)
    largest = float(np.diff(work.load).max())
    cluster = solver.Cluster(1000, 2, 2)
    for makespan_s in np.geomspace(work.shortest_makespan_s, work.longest_makespan_s, 25):
        groups = next_fit(work, float(makespan_s) + largest)
        relaxed = work.relaxed(float(makespan_s))
        plan = assemble("next-fit", [work.order[a:b] for a, b in groups], workload, cluster, latency)
        assert plan.gpu_seconds <= 2 * relaxed.actor_s * (1 + 1e-9)
