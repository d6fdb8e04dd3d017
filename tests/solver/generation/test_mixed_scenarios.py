"""Mixed clusters through ``solver.plan``: one offer is one kind of actors, scenarios are bounded, fronts lie above their
curves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from solver_reference import partitions
from solver_strategies import lognormal_workload

import solver
from rlhfless.cli.plan import mixed_pools
from rlhfless.latency import ProfileError, load_profile
from solver.model.plan import ActorPlan, Plan

L40S, H100 = load_profile("l40s-qwen2.5-3b-tp2"), load_profile("h100-qwen2.5-3b-tp1")
POOLS = [solver.GpuPool("l40s", 2, 8, 1.9), solver.GpuPool("h100", 1, 4, 6.9)]
BOTH = {"keep_together": True, "share_prefill": True}
MODELS = {("l40s", 2): L40S, ("h100", 1): H100}


def scenarios(workload: solver.Workload, count: int = 4, sd: float = 0.3) -> solver.Workload:
    rng = np.random.default_rng(1)
    sampled = workload.response_tokens * rng.lognormal(0, sd, (count, len(workload)))
    return solver.Workload(
        workload.prompt_tokens, workload.prompt_of, workload.response_tokens, max_response_tokens=2048,
        scenarios=np.clip(sampled, 1, 2048).astype(int),
    )  # fmt: skip


def test_one_offer_is_planned_as_one_kind():
    workload = lognormal_workload(32, 4)
    mixed = solver.plan(solver.PlanningProblem(workload, solver.MixedCluster(POOLS[:1]), {("l40s", 2): L40S}))
    plain = solver.plan(solver.PlanningProblem(workload, solver.Cluster(2, 8, 2, "l40s", 1.9), L40S))
    assert [a.responses for a in mixed.actors] == [a.responses for a in plain.actors]
    assert (mixed.value, mixed.lower_bound, mixed.cost_usd) == (plain.value, plain.lower_bound, plain.cost_usd)


@pytest.mark.parametrize("cost", ["gpu_s", "usd"])
@pytest.mark.parametrize("tail", [1.0, 0.5])
def test_over_scenarios_value_and_bound_are_over_scenarios(cost, tail):
    workload = scenarios(lognormal_workload(32, 4))
    objective = solver.Objective(0.5, cost=cost, cvar_alpha=tail)
    plan = solver.plan(solver.PlanningProblem(workload, solver.MixedCluster(POOLS), MODELS, objective))
    taken = solver.evaluate(plan, solver.PlanningProblem(workload, solver.MixedCluster(POOLS), MODELS))
    paid = taken.gpu_seconds_of if cost == "gpu_s" else taken.cost_usd_of
    assert plan.value == pytest.approx(objective.value_over(taken.makespans_s, paid, plan.reference.norms(cost)))
    assert 0 < plan.lower_bound <= plan.value
    assert tail < 1.0 or plan.value <= 1.0 + 1e-9  # of the random split


def test_a_deadline_over_scenarios_is_kept_or_refused_in_one_sentence():
    workload, cluster = scenarios(lognormal_workload(32, 4)), solver.MixedCluster(POOLS)
    free = solver.plan(solver.PlanningProblem(workload, cluster, MODELS, solver.Objective(1.0)))
    enough = solver.Objective(deadline_s=1.5 * free.makespan_s)
    kept = solver.plan(solver.PlanningProblem(workload, cluster, MODELS, enough))
    assert kept.makespan_s <= 1.5 * free.makespan_s * (1 + 1e-9)
    assert 0 < kept.lower_bound <= kept.value
    assert kept.value == pytest.approx(kept.gpu_seconds)
    with refused(solver.PlanningError, "0.001"):
        impossible = solver.PlanningProblem(workload, cluster, MODELS, solver.Objective(deadline_s=0.001))
        solver.plan(impossible)


@pytest.mark.parametrize("options", [{}, {"keep_together": True}, {"share_prefill": True}, BOTH])
def test_small_scenarios_against_brute_force(options):
    workload = solver.Workload([5, 9], [0, 0, 1, 1], [[30, 12, 7, 3], [10, 14, 9, 22], [18, 6, 30, 2]], max_response_tokens=40)
    pools = [solver.GpuPool("a", 1, 2, 3.6), solver.GpuPool("b", 1, 1, 7.2)]
    slow = solver.LatencyModel(
        "slow", 1, 5e-3, 2e-4, 1e-6, prefill_base_s=2e-3, prefill_per_token_s=1e-3, start_s=0.02, kind="a"
    )
    models = {("a", 1): slow, ("b", 1): replace(slow, name="fast", base_s=2e-3, kind="b")}
    price = {pool.kind: pool.usd_per_gpu_s for pool in pools}
    every = []
    items = [[0, 1], [2, 3]] if options.get("keep_together") else [[0], [1], [2], [3]]
    for parts in partitions(len(items), 3):
        groups = [[i for item in part for i in items[item]] for part in parts]
        for kinds in set(itertools.permutations("aab", len(groups))):
            actors = [
                ActorPlan(
                    k, (i,), 0, tuple(g), (0,), 64, usd_per_gpu_s=price[k], shares_prompts=options.get("share_prefill", False)
                )
                for i, (g, k) in enumerate(zip(groups, kinds, strict=True))
            ]
            every.append(
                solver.evaluate(
                    Plan(tuple(actors), "any", 0.0, 0.0, 0.0),
                    solver.PlanningProblem(workload, solver.MixedCluster(pools), models),
                )
            )
    for objective in (solver.Objective(0.5), solver.Objective(0.3, cost="usd"), solver.Objective(0.5, cvar_alpha=0.4)):
        plan = solver.plan(solver.PlanningProblem(workload, solver.MixedCluster(pools), models, objective, **options))
        norms = plan.reference.norms(objective.cost)
        usd = objective.cost == "usd"
        optimum = min(objective.value_over(t.makespans_s, t.cost_usd_of if usd else t.gpu_seconds_of, norms) for t in every)
        assert plan.lower_bound <= optimum * (1 + 1e-9)
        assert optimum <= plan.value * (1 + 1e-9)
        assert plan.value <= optimum * 1.05


def test_dollars_without_prices_are_refused():
    free = solver.MixedCluster([replace(pool, usd_per_gpu_hour=0.0) for pool in POOLS])
    with refused(solver.PlanningError, "usd_per_gpu_hour"):
        solver.plan(solver.PlanningProblem(lognormal_workload(4, 2), free, MODELS, solver.Objective(cost="usd")))


def test_pools_in_words():
    first = solver.Cluster(2, 8, 2, "l40s", 1.9)
    words = ["8:h100-qwen2.5-3b-tp1,h100-qwen2.5-3b-tp2", "2:h100-qwen2.5-3b-tp1:2.5:preemptible"]
    cluster, models = mixed_pools(first, L40S, words)
    assert [(p.kind, p.gpus, p.market) for p in cluster.pools] == [
        ("l40s", 16, "on-demand"), ("h100", 8, "on-demand"), ("h100", 2, "preemptible"),
    ]  # fmt: skip
    assert cluster.pools[2].usd_per_gpu_hour == 2.5
    assert cluster.pools[1].usd_per_gpu_hour > 2.5
    assert sorted(models) == [("h100", 1), ("h100", 2), ("l40s", 2)]
    for wrong, *named in (
        ("h100",),
        ("8:h100-qwen2.5-3b-tp1:cheap", "'cheap'"),
        ("8:h100-qwen2.5-3b-tp1,l40s-qwen2.5-3b-tp2", "h100", "l40s"),
        ("12:h100-qwen2.5-3b-tp1", "12", "8"),
    ):
        with refused(ProfileError, f"--pool {wrong}", *named):
            mixed_pools(first, L40S, [wrong])
