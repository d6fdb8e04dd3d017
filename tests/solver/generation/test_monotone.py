"""With the reference held fixed, more GPUs, slots, memory or budget never raise a proven optimum, nor a relaxation's bound.

Values are compared where they need no reference: the cost under a deadline, the time under a budget, and the time or the cost
alone (weights 1 and 0, times the reference).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mixed_brute_force import MixedInstance, mixed_instances
from solver_strategies import instances, l40s, lognormal_workload, problem_of

import solver
from rlhfless.latency import load_profile
from solver.bounds.sequences import SequenceBound
from solver.model.offers import offers_of
from solver.timing.items import Items

either = st.booleans().flatmap(lambda refill: instances(refill=refill))
either_mixed = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))
PROVED = 3e-6  # what a proof may leave open, relative
OBJECTIVES = ("time", "cost", "deadline_s", "budget_gpu_s")


def optimum(plan_of, kind, limit):
    """Seconds or GPU-seconds of the best plan when that is proved; infinite when none keeps the limit; None when unknown."""
    objective = solver.Objective({"time": 1.0, "cost": 0.0}[kind]) if limit is None else solver.Objective(**{kind: limit})
    try:
        plan = plan_of(objective)
    except solver.PlanningError:
        return math.inf
    unit = 1.0 if limit is not None else plan.reference.norms("gpu_s")[kind == "cost"]
    return plan.value * unit if plan.status == "optimal" else None


def plan_of(instance):
    return lambda objective: solver.plan(problem_of(instance, objective))


def larger(instance, what):
    """The same work on a cluster that has more of one thing."""
    latency, cluster = instance.latency, instance.cluster
    return {
        "GPUs": lambda: instance._replace(cluster=dataclasses.replace(cluster, nodes=cluster.nodes + 1)),
        "slots": lambda: instance._replace(latency=dataclasses.replace(latency, max_batch=latency.max_batch + 1)),
        "memory": lambda: instance._replace(
            latency=dataclasses.replace(latency, kv_capacity_tokens=2 * latency.kv_capacity_tokens)
        ),
        "prewarmed": lambda: instance._replace(cluster=dataclasses.replace(cluster, prewarmed=cluster.prewarmed + 1)),
        "speed": lambda: instance._replace(latency=dataclasses.replace(latency, base_s=latency.base_s / 2)),
        "limit": lambda: instance,
    }[what]()


def limits(data, kind, what, free, shares):
    """A share of the time or cost of the plan that ``free`` gives, as deadline or budget, and a wider one where it is the limit
    that grows; None twice for other objectives."""
    assume(what != "limit" or kind in ("deadline_s", "budget_gpu_s"))
    if kind not in ("deadline_s", "budget_gpu_s"):
        return None, None
    plan = free()
    limit = max(plan.makespan_s if kind == "deadline_s" else plan.gpu_seconds, 1e-3) * data.draw(st.sampled_from(shares))
    return limit, limit * (data.draw(st.floats(1.01, 2.0)) if what == "limit" else 1.0)


def assert_never_raised(plan, plan_with_more, kind, limit, wider):
    """The proven optimum of a problem is not above that of one with less of something."""
    before = optimum(plan, kind, limit)
    assume(before is not None and not math.isinf(before))
    after = optimum(plan_with_more, kind, wider)
    assert after is None or after <= before * (1 + PROVED)


@given(st.data(), either, st.sampled_from(OBJECTIVES), st.sampled_from(["GPUs", "slots", "memory", "limit"]))
@settings(max_examples=25, deadline=None)
def test_more_of_anything_never_raises_a_proven_optimum(data, instance, kind, what):
    limit, wider = limits(
        data,
        kind,
        what,
        lambda: solver.random_split(solver.PlanningProblem(*instance[:3], admission=instance.admission)),
        [0.7, 0.85, 1.0],
    )
    assert_never_raised(plan_of(instance), plan_of(larger(instance, what)), kind, limit, wider)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_optima_are_proved_often_enough_for_that_to_say_something(kind):
    latency = l40s(per_response_s=5e-3, start_s=0.1)
    instance = (lognormal_workload(2, 3), solver.Cluster(1, 4, 2), latency, "reserve")
    split = solver.random_split(solver.PlanningProblem(*instance[:3]))
    limit = {"deadline_s": split.makespan_s, "budget_gpu_s": split.gpu_seconds}.get(kind)
    found = []
    for nodes in (1, 2):
        cluster = solver.Cluster(nodes, 4, 2)
        found.append(
            optimum(lambda o, c=cluster: solver.plan(solver.PlanningProblem(instance[0], c, instance[2], o)), kind, limit)
        )
    assert None not in found
    assert found[1] <= found[0] * (1 + PROVED)
    assert kind != "time" or found[1] < found[0]


def larger_mixed(instance: MixedInstance, what: str) -> MixedInstance:
    """The same work on pools that have more of one thing, everywhere."""
    change = {
        "slots": lambda m: dataclasses.replace(m, max_batch=m.max_batch + 1),
        "memory": lambda m: dataclasses.replace(m, kv_capacity_tokens=2 * m.kv_capacity_tokens),
        "speed": lambda m: dataclasses.replace(m, base_s=m.base_s / 2),
    }.get(what, lambda m: m)
    models = {(offer.kind, offer.gpus): change(offer.latency) for offer in instance.offers}
    pools = instance.cluster.pools
    if what == "GPUs":
        pools = [dataclasses.replace(pool, nodes=pool.nodes + 1) for pool in pools]
    if what == "prewarmed":
        pools = [dataclasses.replace(pool, prewarmed=pool.prewarmed + 1) for pool in pools]
    cluster = solver.MixedCluster(pools)
    return instance._replace(cluster=cluster, offers=offers_of(cluster, models))


@given(st.data(), either_mixed, st.sampled_from(OBJECTIVES), st.sampled_from(["GPUs", "slots", "memory", "prewarmed", "limit"]))
@settings(max_examples=25, deadline=None)
def test_more_of_anything_never_raises_a_proven_optimum_on_mixed_clusters(data, instance, kind, what):
    limit, wider = limits(data, kind, what, lambda: plan_of(instance)(solver.Objective(0.5)), [0.9, 1.0, 1.2])
    assert_never_raised(plan_of(instance), plan_of(larger_mixed(instance, what)), kind, limit, wider)


MORE = ["GPUs", "slots", "memory", "prewarmed", "speed"]


@given(st.one_of(either, either_mixed), st.sampled_from([1.02, 1.3, 2.0, 4.0]), st.sampled_from(MORE))
@settings(max_examples=40, deadline=None)
def test_more_of_anything_never_raises_the_bound_of_plans(instance, factor, what):
    """At one makespan; the reference, which would move the value, plays no part."""
    more = larger_mixed(instance, what) if isinstance(instance, MixedInstance) else larger(instance, what)
    old, new = (SequenceBound(Items.of(problem_of(i))) for i in (instance, more))
    makespan_s = factor * old.shortest_makespan_s + 1e-4
    assert new.at(makespan_s) <= old.at(makespan_s) * (1 + 1e-9) + 1e-12


@given(st.one_of(either, either_mixed), st.sampled_from([1.02, 1.3, 2.0, 4.0]), st.sampled_from(["together", "actors"]))
@settings(max_examples=30, deadline=None)
def test_keeping_prompts_together_or_fewer_actors_never_lowers_the_bound_of_plans(instance, factor, what):
    """Every plan of the narrower problem is one of the wider."""
    wide = problem_of(instance)
    narrow = problem_of(instance, keep_together=True) if what == "together" else problem_of(instance, max_actors=1)
    old, new = (SequenceBound(Items.of(problem)) for problem in (wide, narrow))
    makespan_s = factor * new.shortest_makespan_s + 1e-4
    assert old.at(makespan_s) <= new.at(makespan_s) * (1 + 1e-9) + 1e-12


@given(either, st.floats(1.001, 6.0), st.sampled_from(["GPUs", "slots"]))
@settings(max_examples=30, deadline=None)
def test_more_gpus_or_slots_never_raise_the_bound_of_any_schedule(instance, factor, what):
    workload, _, _, _ = instance
    one, two = (
        solver.bound(solver.PlanningProblem(workload, i.cluster, i.latency, admission="preempt"))
        for i in (instance, larger(instance, what))
    )
    shortest_s = one.shortest_s()
    time_s = factor * max(shortest_s, 1e-6)
    assert two.gpu_seconds(time_s) <= one.gpu_seconds(time_s) * (1 + 1e-9)
    assert two.shortest_s() <= shortest_s * (1 + 1e-9)


@pytest.mark.parametrize("slots", [8, 31, 64, 128, 200])
def test_more_slots_never_raise_the_bound_of_any_schedule_of_a_whole_step(slots):
    work, profile = lognormal_workload(100, 4, limit=2000, mean_log=5.5), load_profile("l40s-qwen2.5-3b-tp2").affine
    few, more = (dataclasses.replace(profile, max_batch=s) for s in (slots, slots + slots // 4))
    one, two = (
        solver.bound(solver.PlanningProblem(work, solver.Cluster(10, 8, 2), latency, admission="preempt"))
        for latency in (few, more)
    )
    for time_s in np.geomspace(1.02, 6, 12) * one.shortest_s():
        assert two.gpu_seconds(time_s) <= one.gpu_seconds(time_s) * (1 + 1e-9)
