"""The bound on mixed clusters: below every plan that is evaluated with tables, and for one kind near the bound of one kind."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import latencies, lognormal_workload, workloads

import solver
from rlhfless.latency import load_profile
from solver.bounds.clairvoyant_mixed import mixed_clairvoyant_bound
from solver.model.plan import ActorPlan, Plan

NAMES = ("l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1", "h100-qwen2.5-3b-tp2")


def plan_of(groups, offers, workload):
    """A plan with these groups on these (kind, latency, price) offers; GPU ids do not matter here."""
    actors = [
        ActorPlan(
            kind, tuple(range(latency.gpus_per_actor)), 0, tuple(group), tuple(workload.prompt_of[group].tolist()),
            latency.max_batch, usd_per_gpu_s=price,
        )
        for group, (kind, latency, price) in zip(groups, offers, strict=True)
    ]  # fmt: skip
    return Plan(tuple(actors), "any", 0.0, 0.0, 0.0)


@given(st.data(), workloads(6), st.sampled_from(["gpu_s", "usd"]))
@settings(max_examples=20, deadline=None)
def test_no_plan_lies_below_it(data, workload, cost):
    models = [
        replace(data.draw(latencies(max_batch=data.draw(st.sampled_from([1, 3, 32])))), kind=kind) for kind in ("a", "b", "c")
    ]
    pools = [solver.GpuPool(m.kind, 3, m.gpus_per_actor, data.draw(st.sampled_from([3.6, 36.0]))) for m in models]
    cluster = solver.MixedCluster(pools)
    latency = {(m.kind, m.gpus_per_actor): m for m in models}
    bound = mixed_clairvoyant_bound(solver.PlanningProblem(workload, cluster, latency, solver.Objective(cost=cost)))
    actor_of = data.draw(st.lists(st.integers(0, 2), min_size=len(workload), max_size=len(workload)))
    kind_of = data.draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
    groups = [[i for i, a in enumerate(actor_of) if a == j] for j in range(3)]
    used = [(group, kind_of[j]) for j, group in enumerate(groups) if group]
    offers = [(models[k].kind, models[k], pools[k].usd_per_gpu_s) for _, k in used]
    taken = solver.evaluate(plan_of([g for g, _ in used], offers, workload), solver.PlanningProblem(workload, cluster, latency))
    paid = taken.gpu_seconds if cost == "gpu_s" else taken.cost_usd
    assert bound.cost(taken.makespan_s * (1 + 1e-9) + 1e-12) <= paid * (1 + 1e-9) + 1e-12
    assert bound.least_time_s(paid * (1 + 1e-9)) <= taken.makespan_s * (1 + 1e-6) + 1e-9


def test_with_one_kind_it_is_about_the_bound_of_one_kind():
    """Lower where slots bind: it shares base time by load or by head, not by load up to a reference and by head beyond."""
    workload, cluster, latency = lognormal_workload(64, 8), solver.Cluster(4, 8, 2), load_profile(NAMES[0])
    one = solver.clairvoyant_bound(solver.PlanningProblem(workload, cluster, latency, admission="preempt"), work=0)
    mixed = mixed_clairvoyant_bound(solver.PlanningProblem(workload, cluster, latency))
    for time_s in np.geomspace(1.05, 4, 8) * one.shortest_s():
        assert 0.9 * one.gpu_seconds(time_s) <= mixed.cost(time_s) <= 1.02 * one.gpu_seconds(time_s)


def test_it_falls_with_time_and_with_every_further_pool():
    workload = lognormal_workload(64, 8)
    models = {(m.kind, m.gpus_per_actor): m for m in map(load_profile, NAMES)}
    l40s, h100 = solver.GpuPool("l40s", 2, 8, 1.9), solver.GpuPool("h100", 1, 8, 6.9)
    few = mixed_clairvoyant_bound(
        solver.PlanningProblem(workload, solver.MixedCluster([l40s]), models, solver.Objective(cost="usd"))
    )
    more = mixed_clairvoyant_bound(
        solver.PlanningProblem(workload, solver.MixedCluster([l40s, h100]), models, solver.Objective(cost="usd"))
    )
    times = np.geomspace(6, 60, 12)
    costs = [more.cost(t) for t in times]
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(costs))
    assert all(m <= f * (1 + 1e-9) for f, m in ((few.cost(t), more.cost(t)) for t in times))
    assert math.isinf(more.cost(0.1))


def test_an_unknown_cost_is_refused():
    with refused(solver.PlanningError, "gpu_s"):
        mixed_clairvoyant_bound(
            solver.PlanningProblem(
                lognormal_workload(2, 1), solver.Cluster(1, 2, 2), load_profile(NAMES[0]), solver.Objective(cost="eur")
            )
        )
