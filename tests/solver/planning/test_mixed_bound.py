"""No plan whatever costs less than the bounds of mixed planning say, also where prices and speeds differ a hundredfold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import mixed_problem, plan_generation

import solver
from solver.model.offers import offers_of
from solver.model.plan import ActorPlan, Plan
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.length_classes import Classes
from solver.planning.mixed_kinds.lp_bound import Relaxation
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.work_budget import WorkBudget


def plan_on(groups, kinds, pools, models):
    price = {pool.kind: pool.usd_per_gpu_s for pool in pools}
    actors = [
        ActorPlan(kind, (i,), 0, tuple(group), (), models[kind, 1].max_batch, usd_per_gpu_s=price[kind])
        for i, (group, kind) in enumerate(zip(groups, kinds, strict=True))
    ]
    return Plan(tuple(actors), "any", 0.0, 0.0, 0.0)


@given(st.integers(0, 10**6), st.sampled_from(["gpu_s", "usd"]), st.sampled_from([1000, 8]))
@settings(max_examples=40, deadline=None)
def test_no_plan_on_any_offers_costs_less(seed, cost, slots):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 60))
    workload = solver.Workload(
        [10], [0] * count, rng.integers(1, 10 ** int(rng.integers(1, 4)) + 1, count), max_response_tokens=2000
    )
    pools = [solver.GpuPool(k, 1, int(rng.integers(1, 4)), 36.0 * 10 ** rng.uniform(-2, 2)) for k in ("a", "b", "c")]
    models = {
        (pool.kind, 1): solver.LatencyModel(
            pool.kind, 1, 10 ** rng.uniform(-3.5, -1), 10 ** rng.uniform(-5, -2.5), start_s=rng.choice([0.0, 0.3]),
            prefill_base_s=rng.choice([0.0, 0.004]), join_s=rng.choice([0.0, 0.003]), max_batch=slots, kind=pool.kind,
        )
        for pool in pools
    }  # fmt: skip
    cluster = solver.MixedCluster(pools)
    work = MixedWork.of(mixed_problem(workload, offers_of(cluster, models), cluster, solver.Objective(cost=cost)))
    sequences, linear = Sequences(work), Relaxation(work, Classes.of(work, 12))
    room = [pool.kind for pool in pools for _ in range(pool.gpus)]
    for _ in range(4):
        kinds = list(rng.permutation(room)[: int(rng.integers(1, len(room) + 1))])
        order = np.argsort(-workload.response_tokens) if rng.random() < 0.7 else rng.permutation(count)
        groups = [g for g in np.split(order, np.sort(rng.integers(0, count + 1, len(kinds) - 1))) if len(g)]
        taken = solver.evaluate(
            plan_on(groups, kinds[: len(groups)], pools, models), solver.PlanningProblem(workload, cluster, models)
        )
        paid = taken.gpu_seconds if cost == "gpu_s" else taken.cost_usd
        assert sequences.at(taken.makespan_s).cost <= paid * (1 + 1e-9)
        assert linear.at(taken.makespan_s).cost <= paid * (1 + 1e-9)


def test_a_further_actor_that_the_cover_does_not_need_may_be_cheaper():
    """The fast GPU could do everything in time; the slow one costs a hundredth and does all but the longest."""
    models = {
        ("fast", 1): solver.LatencyModel("fast", 1, 1e-3, 1e-3, kind="fast", max_batch=1000),
        ("slow", 1): solver.LatencyModel("slow", 1, 20e-3, 1e-3, kind="slow", max_batch=1000),
    }
    cluster = solver.MixedCluster([solver.GpuPool("fast", 1, 1, 36000.0), solver.GpuPool("slow", 1, 1, 360.0)])
    workload = solver.Workload([10] * 101, np.arange(101), [1000] + [100] * 100, max_response_tokens=2000)
    plan = plan_generation(
        solver.PlanningProblem(workload, cluster, models, solver.Objective(deadline_s=13.0, cost="usd")), time_limit_s=2.0
    )
    assert plan.value == pytest.approx(21.2)
    assert plan.lower_bound <= 21.2 + 1e-9


def test_sequences_are_followed_while_there_is_work_to_spend():
    """Without a limit on work the bound follows every sequence, so it is far above what is known before the first one."""
    tokens = np.random.default_rng(0).lognormal(5, 1, 40).astype(int).clip(1, 2000)
    workload = solver.Workload([10], [0] * 40, tokens, max_response_tokens=2000)
    pools = [solver.GpuPool("a", 1, 3, 3.0), solver.GpuPool("b", 1, 3, 9.0)]
    models = {
        (kind, 1): solver.LatencyModel(kind, 1, base_s, 1e-3, max_batch=64, kind=kind)
        for kind, base_s in (("a", 0.02), ("b", 0.01))
    }
    cluster = solver.MixedCluster(pools)
    work = MixedWork.of(mixed_problem(workload, offers_of(cluster, models), cluster))
    makespan_s = 1.2 * work.shortest_makespan_s
    followed, stopped = (Sequences(work, work_budget=WorkBudget(most_s)).at(makespan_s).cost for most_s in (np.inf, 0.0))
    assert followed > 1.05 * stopped
