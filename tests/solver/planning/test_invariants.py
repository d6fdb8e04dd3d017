"""What holds for every plan: limits kept, bounds that only fall with more of anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import instances, plan_generation

import solver
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.makespan_search import MakespanSearch
from solver.timing.evaluate import admission_of
from solver.timing.step_cost import Pricing

either = st.booleans().flatmap(lambda refill: instances(refill=refill))
NORMS = (1.0, 4.0)  # a reference held fixed


def bound(instance, objective, **options):
    """The bound of the search alone, for a reference that does not move with the problem."""
    workload, cluster, latency, admission = instance
    work = SortedWork.of(
        workload, latency, admission_of(latency, None, admission), max_actors=cluster.max_actors,
        prewarmed=cluster.prewarmed, **options,
    )  # fmt: skip
    pricing = replace(Pricing.of(solver.PlanningProblem(workload, cluster, latency, objective)), norms=NORMS)
    return MakespanSearch(work, pricing, lambda split, how: pytest.fail("a bound needs no plan")).bound_beyond(0, np.inf)


@given(either, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["actors", "slots", "memory", "prewarmed", "speed"]))
@settings(max_examples=40, deadline=None)
def test_more_of_anything_never_raises_the_bound(instance, time_weight, what):
    objective = solver.Objective(time_weight)
    latency, cluster = instance.latency, instance.cluster
    more = {
        "actors": lambda: instance._replace(cluster=replace(cluster, nodes=cluster.nodes + 1)),
        "slots": lambda: instance._replace(latency=replace(latency, max_batch=latency.max_batch + 1)),
        "memory": lambda: instance._replace(latency=replace(latency, kv_capacity_tokens=2 * latency.kv_capacity_tokens)),
        "prewarmed": lambda: instance._replace(cluster=replace(cluster, prewarmed=cluster.prewarmed + 1)),
        "speed": lambda: instance._replace(latency=replace(latency, base_s=latency.base_s / 2)),
    }[what]()
    assert bound(more, objective) <= bound(instance, objective) * (1 + 1e-6) + 1e-12


@given(either, st.sampled_from(["deadline_s", "budget_gpu_s"]), st.floats(1.05, 3.0))
@settings(max_examples=40, deadline=None)
def test_a_looser_limit_never_raises_the_bound(instance, limit, slack):
    split = solver.random_split(solver.PlanningProblem(*instance[:3], admission=instance.admission))
    tight = split.makespan_s if limit == "deadline_s" else split.gpu_seconds
    tight = max(tight, 1e-3)
    one, two = (solver.Objective(**{limit: tight * factor}) for factor in (1.0, slack))
    assert bound(instance, two) <= bound(instance, one) * (1 + 1e-6) + 1e-12


@given(either, st.booleans())
@settings(max_examples=30, deadline=None)
def test_keeping_prompts_together_or_fewer_actors_never_lowers_the_bound(instance, together):
    """Every plan of the narrower problem is one of the wider."""
    objective = solver.Objective(0.5)
    if together:
        narrower = bound(instance, objective, keep_together=True)
    else:
        narrower = bound(instance._replace(cluster=replace(instance.cluster, nodes=1)), objective)
    assert narrower >= bound(instance, objective) * (1 - 2e-2) - 1e-12  # intervals are halved a finite number of times


@given(either, st.sampled_from(["done", "generation", "step"]), st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_plan_keeps_every_limit(instance, release, together):
    workload, cluster, latency, admission = instance
    plan = plan_generation(
        solver.PlanningProblem(workload, cluster, latency, admission=admission, release=release, keep_together=together),
        time_limit_s=0.1,
    )
    assert len(plan.actors) <= cluster.max_actors
    taken = [gpu for a in plan.actors for gpu in a.gpu_ids]
    assert len(taken) == len(set(taken))
    for actor in plan.actors:
        assert len(actor.gpu_ids) == latency.gpus_per_actor
        assert {gpu // cluster.gpus_per_node for gpu in actor.gpu_ids} == {actor.node}
        assert actor.node < cluster.nodes
        assert actor.max_batch <= latency.max_batch
        assert actor.responses
    solver.evaluate(
        plan, solver.PlanningProblem(workload, cluster, latency, admission=admission)
    )  # which refuses what is not complete
