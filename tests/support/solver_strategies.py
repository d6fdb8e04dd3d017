"""Random small instances: latency models with every term, admission with few slots and little memory, workloads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import solver

LIMIT = 24  # response limit of small instances


@st.composite
def mixed_latencies(draw: st.DrawFn, *, max_batch: int = 64, kv_capacity_tokens: int = 1 << 40) -> solver.LatencyModel:
    """``latencies`` with mixed prefill, from budgets that bind in nearly every iteration to one that never does."""
    latency = draw(latencies(max_batch=max_batch, kv_capacity_tokens=kv_capacity_tokens))
    return latency.with_mixed_prefill(max_batch + draw(st.sampled_from([0, 1, 3, 10, 64])))


class Instance(NamedTuple):
    """A small planning problem."""

    workload: solver.Workload
    cluster: solver.Cluster
    latency: solver.LatencyModel
    admission: str


class AnyInstance(Protocol):
    """A small planning problem on one kind of actors (``Instance``) or several (``mixed_brute_force.MixedInstance``)."""

    @property
    def workload(self) -> solver.Workload: ...
    @property
    def cluster(self) -> solver.Cluster | solver.MixedCluster: ...
    @property
    def latency(self) -> Any: ...
    @property
    def admission(self) -> str: ...


def problem_of(instance: AnyInstance, *args: Any, min_actors: int = 1, **options: Any) -> solver.PlanningProblem:
    """The problem of planning an instance, with no more actors required than there are items.

    An instance on which as many actors cannot fit is no example of a test.
    """
    work, models = instance.workload, instance.latency
    items = len(np.unique(work.prompt_of)) if options.get("keep_together") else len(work)
    problem = solver.PlanningProblem(work, instance.cluster, models, *args, admission=instance.admission, **options)
    pools = {offer.pool for offer in problem.offers}
    assume(min_actors <= sum(max(offer.max_actors for offer in problem.offers if offer.pool == pool) for pool in pools))
    return replace(problem, min_actors=min(min_actors, items))


@st.composite
def latencies(draw: st.DrawFn, *, max_batch: int = 64, kv_capacity_tokens: int = 1 << 40) -> solver.LatencyModel:
    """Affine models in which the base, the batch, the KV and the prefill term each can be the largest or absent."""

    def seconds(*choices: float) -> float:
        return draw(st.sampled_from(choices))

    return solver.LatencyModel(
        "small",
        gpus_per_actor=draw(st.integers(1, 2)),
        base_s=seconds(1e-3, 5e-3, 2e-2),
        per_response_s=seconds(3e-3, 1e-4, 0.0),
        per_kv_token_s=seconds(1e-4, 1e-6, 0.0),
        prefill_base_s=seconds(0.0, 4e-3),
        prefill_per_token_s=seconds(0.0, 2e-4),
        join_s=seconds(0.0, 3e-3),
        start_s=seconds(0.0, 0.05),
        sync_s=seconds(0.0, 0.01),
        max_batch=max_batch,
        kv_capacity_tokens=kv_capacity_tokens,
    )


@st.composite
def workloads(draw: st.DrawFn, most: int = 6) -> solver.Workload:
    """Up to ``most`` responses to up to three prompts, zero lengths, zero prompts and half-generated ones included."""
    count = draw(st.sampled_from([most, *range(1, most)]))
    prompts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
    return solver.Workload(
        prompts,
        draw(st.lists(st.integers(0, len(prompts) - 1), min_size=count, max_size=count)),
        draw(st.lists(st.integers(0, LIMIT), min_size=count, max_size=count)),
        draw(st.sampled_from([0, 0, 5])),
        max_response_tokens=LIMIT,
    )


@st.composite
def instances(draw: st.DrawFn, *, refill: bool, mixed: bool = False) -> Instance:
    """Small planning problems; with ``refill`` slots (1 to 3) or memory are too few for everyone at once; with ``mixed``
    prompts are fed in chunks."""
    work = draw(workloads(5 if refill or mixed else 6))
    tightest = int(work.reserved_tokens.max())
    slots = draw(st.integers(1, 3)) if refill else 64
    memory = draw(st.sampled_from([tightest, 2 * tightest, 1 << 40])) if refill else 1 << 40
    if mixed:
        slots = min(slots, 6)  # all that there are, and so few that budgets bind
    latency = draw((mixed_latencies if mixed else latencies)(max_batch=slots, kv_capacity_tokens=memory))
    nodes = draw(st.sampled_from([3, 2, 1]))
    cluster = solver.Cluster(nodes, latency.gpus_per_actor, latency.gpus_per_actor)
    return Instance(work, cluster, latency, draw(st.sampled_from(["reserve", "preempt"])) if refill else "reserve")


def lognormal_workload(
    prompts: int, samples: int, *, seed: int = 0, mean_log: float = 6.0, sd_log: float = 0.7, limit: int = 2048
) -> solver.Workload:
    """A step with the long tail of real logs."""
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(mean_log, sd_log, (prompts, samples)), 1, limit).astype(int)
    return solver.Workload.grid(rng.integers(50, 200, prompts), tokens, max_response_tokens=limit)


def l40s(**changes: float) -> solver.LatencyModel:
    """The size of Qwen2.5-3B on two L40S."""
    options: dict[str, float] = {
        "base_s": 5.59e-3, "per_response_s": 2.23e-5, "per_kv_token_s": 2.49e-8, "prefill_per_token_s": 1e-5, "start_s": 2.0,
    }  # fmt: skip
    return solver.LatencyModel("l40s", 2, **{**options, **changes})  # type: ignore[arg-type]


def first_gpu(cluster: solver.MixedCluster, pool: int) -> int:
    """Id of the first GPU of a pool."""
    return sum(p.gpus for p in cluster.pools[:pool])
