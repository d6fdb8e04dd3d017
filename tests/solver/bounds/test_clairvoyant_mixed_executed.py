"""The bound on mixed clusters against whatever can be done there: every schedule of tiny workloads, and plans of several kinds
that are executed with rules that move responses between kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from every_schedule import Hand, schedules
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from solver_strategies import first_gpu, latencies, lognormal_workload, plan_generation, workloads

import solver
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling.fold import SquareRootFold
from rlhfless.scheduling.rlhfless import LocalCut
from rlhfless.scheduling.rlhfuse import GlobalCut
from solver.bounds.clairvoyant_mixed import mixed_clairvoyant_bound
from solver.model.cluster import GpuPool, MixedCluster

EXACT = 1 - 2e-9
COSTS = ("gpu_s", "usd")
PROFILES = {name: load_profile(f"{name}-qwen2.5-3b-tp{gpus}") for name, gpus in (("l40s", 2), ("h100", 1))}


def rules(workload, latency, actors):
    """No rule, the published cuts and the fold: each a decision to stop an actor and to hand over what it has."""
    total = len(workload)
    return {
        "none": None,
        "local cut": LocalCut(0.4),
        "global cut": GlobalCut(max(1, total // 2), total, actors),
        "fold": SquareRootFold(2.0, latency.affine, total, actors),
    }


def executed(plan, workload, latency, cluster):
    """Makespan, cost by what is counted, and moves."""
    prompts = workload.prompt_tokens[workload.prompt_of].tolist()
    requests = [
        Request(i, p, workload.max_response_tokens, target_tokens=n)
        for i, (p, n) in enumerate(zip(prompts, workload.response_tokens.tolist(), strict=True))
    ]
    record = run_step(plan, requests, SimulatedEngine, latency, cluster)
    held = [len(a["gpu_ids"]) * (a["end_s"] - a["start_s"]) for a in record.allocations]
    usd = sum(h * a["usd_per_gpu_s"] for h, a in zip(held, record.allocations, strict=True))
    return record.makespan_s, {"gpu_s": sum(held), "usd": usd}, record.moves


def bounds_of(workload, cluster, latency):
    """The bound on each count of cost."""
    return {
        cost: mixed_clairvoyant_bound(solver.PlanningProblem(workload, cluster, latency, solver.Objective(cost=cost)))
        for cost in COSTS
    }


def check_bounds(bounds, time_s, costs):
    for cost, bound in bounds.items():
        assert bound.cost(time_s * (1 + 1e-9) + 1e-12) * EXACT <= costs[cost] + 1e-12


def front(points):
    """Those that no other beats in both; the bound falls with time, so what holds for them holds for all."""
    kept = []
    for time_s, paid in sorted(points):
        if not kept or paid < kept[-1][1]:
            kept.append((time_s, paid))
    return kept


@st.composite
def two_kinds(draw):
    """One actor of each of two kinds, with slots, prices, sizes and warmth of their own."""
    models, pools = {}, []
    for kind in ("x", "y"):
        memory = draw(st.sampled_from([6, 8, 11, 1 << 40]))
        model = replace(draw(latencies(max_batch=draw(st.integers(1, 3)))), kind=kind, kv_capacity_tokens=memory)
        models[kind, model.gpus_per_actor] = model
        price, warm = draw(st.sampled_from([3.6, 36.0])), draw(st.sampled_from([0, 1]))
        pools.append(GpuPool(kind, 1, model.gpus_per_actor, price, prewarmed=warm))
    return MixedCluster(pools), models


@given(two_kinds(), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.booleans())
@settings(max_examples=20, deadline=None)
def test_no_schedule_of_a_tiny_workload_on_two_kinds_beats_it(kinds, lengths, one_prompt):
    """Migration between the kinds is free in it, after every token."""
    assume(max(lengths) > 0)
    cluster, models = kinds
    owner = [0] * len(lengths) if one_prompt else list(range(len(lengths)))
    work = solver.Workload([3] * (max(owner) + 1), owner, lengths, max_response_tokens=3)
    hands = []
    for pool, model in zip(cluster.pools, models.values(), strict=True):
        ready_s = model.sync_s + (0.0 if pool.prewarmed else model.start_s)
        hands.append(Hand(model, ready_s, (float(pool.gpus), pool.gpus * pool.usd_per_gpu_s)))
    bounds = bounds_of(work, cluster, models)
    found = schedules(work, hands, 6000)
    assert found
    for c, bound in enumerate(bounds.values(), start=1):
        for time_s, paid in front([(end[0], end[c]) for end in found]):
            assert bound.cost(time_s * (1 + 1e-9)) * EXACT <= paid


def test_on_two_kinds_some_schedule_comes_near_it():
    """So that a bound of nothing at all would be noticed: iterations without a base time leave nothing to share."""
    models = {
        ("x", 1): solver.LatencyModel("x", 1, 0.0, 1e-3, kind="x", max_batch=3),
        ("y", 1): solver.LatencyModel("y", 1, 0.0, 2e-3, kind="y", max_batch=3),
    }
    cluster = MixedCluster([GpuPool("x", 1, 1, 36.0), GpuPool("y", 1, 1, 3.6)])
    work = solver.Workload([0], [0, 0, 0], [3, 2, 2], max_response_tokens=3)
    hands = [Hand(model, 0.0, (pool.usd_per_gpu_s,)) for pool, model in zip(cluster.pools, models.values(), strict=True)]
    bound = mixed_clairvoyant_bound(solver.PlanningProblem(work, cluster, models, solver.Objective(cost="usd")))
    found = schedules(work, hands, 20_000)
    assert min(cost / bound.cost(time_s * (1 + 1e-9)) for time_s, cost in found) == pytest.approx(1.0)


@given(st.data(), two_kinds(), workloads(6), st.sampled_from(["none", "local cut", "global cut", "fold"]))
@settings(max_examples=20, deadline=None)
def test_no_executed_plan_of_small_workloads_beats_it(data, kinds, workload, rule):
    """Plans as they come, good or bad, with two actors of the second kind."""
    assume(not workload.generated_tokens.any())
    first, models = kinds
    least = int(workload.reserved_tokens.max())
    models = {key: replace(m, kv_capacity_tokens=max(m.kv_capacity_tokens, least)) for key, m in models.items()}
    cluster = MixedCluster([first.pools[0], replace(first.pools[1], nodes=2, prewarmed=0)])
    actor_of = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(workload), max_size=len(workload))))
    actors = []
    for k, (kind, gpus) in enumerate([*models, list(models)[1]]):
        pool = 0 if k == 0 else 1
        own = np.flatnonzero(actor_of == k)
        if len(own):
            start = first_gpu(cluster, pool) + (gpus if k == 2 else 0)
            actors.append(
                solver.ActorPlan(
                    kind, tuple(range(start, start + gpus)), k, tuple(own.tolist()),
                    tuple(np.unique(workload.prompt_of[own]).tolist()), models[kind, gpus].max_batch,
                    usd_per_gpu_s=cluster.pools[pool].usd_per_gpu_s,
                )
            )  # fmt: skip
    plan = solver.Plan(tuple(actors), "any", 0.0, 0.0, 0.0)
    plan = replace(plan, rule=rules(workload, next(iter(models.values())), len(actors))[rule])
    time_s, costs, _ = executed(plan, workload, models, cluster)
    bounds = bounds_of(workload, cluster, models)
    check_bounds(bounds, time_s, costs)
    cost = data.draw(st.sampled_from(COSTS))
    assert bounds[cost].least_time_s(costs[cost] * (1 + 1e-9)) <= time_s * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("slots", [24, 256])
def test_no_executed_plan_of_the_planner_beats_it_whatever_rule_it_runs_under(cost, slots):
    """Shipped profiles, charged by their tables; every rule but none moves responses, also from kind to kind."""
    models = {(m.kind, m.gpus_per_actor): replace(m, max_batch=slots) for m in PROFILES.values()}
    cluster = MixedCluster([GpuPool("l40s", 1, 8, 1.9), GpuPool("h100", 1, 4, 3.0)])
    workload = lognormal_workload(40, 4, limit=900, mean_log=5.0)
    plan = plan_generation(
        solver.PlanningProblem(workload, cluster, models, solver.Objective(0.8, cost=cost)), time_limit_s=0.4
    )
    wide, bounds = plan_with_both(workload, cluster, models), bounds_of(workload, cluster, models)
    moved = set()
    for one in (plan, wide):
        for name, rule in rules(workload, models["l40s", 2], len(one.actors)).items():
            time_s, costs, moves = executed(replace(one, rule=rule), workload, models, cluster)
            check_bounds(bounds, time_s, costs)
            moved |= {name} if moves else set()
    assert moved == {"local cut", "fold"} | ({"global cut"} if slots > 24 else set())  # which needs half of all slots


def plan_with_both(workload, cluster, models):
    """Responses dealt in turn to two actors of each kind."""
    actors = []
    for pool, (kind, gpus) in enumerate((("l40s", 2), ("h100", 1))):
        for k in range(2):
            first = first_gpu(cluster, pool) + k * gpus
            own = np.arange(2 * pool + k, len(workload), 4)
            actors.append(
                solver.ActorPlan(
                    kind, tuple(range(first, first + gpus)), pool, tuple(own.tolist()),
                    tuple(np.unique(workload.prompt_of[own]).tolist()), models[kind, gpus].max_batch,
                    usd_per_gpu_s=cluster.pools[pool].usd_per_gpu_s,
                )
            )  # fmt: skip
    return solver.Plan(tuple(actors), "dealt", 0.0, 0.0, 0.0)
