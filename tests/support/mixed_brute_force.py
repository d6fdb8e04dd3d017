"""Every plan of a small workload on several offers, and random small instances for it.

Shares with the solver only the latency model, the objective and the cluster's data.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from solver_reference import partitions, simulate
from solver_strategies import latencies, workloads

import solver
from solver.model.admission import Admission
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.offers import Offer, offers_of


class MixedInstance(NamedTuple):
    """A small planning problem on several offers."""

    workload: solver.Workload
    cluster: MixedCluster
    offers: tuple[Offer, ...]
    admission: str

    @property
    def latency(self) -> dict[tuple[str, int], solver.LatencyModel]:
        """The latency models by kind and GPUs of an actor."""
        return {(offer.kind, offer.gpus): offer.latency for offer in self.offers}


@st.composite
def mixed_instances(draw: st.DrawFn, *, refill: bool) -> MixedInstance:
    """Up to five responses on one or two pools with one or two actor sizes each; with ``refill`` slots or memory are few."""
    work = draw(workloads(4 if refill else 5))
    tightest = int(work.reserved_tokens.max())
    models = {}
    pools = []
    for kind in ("x", "y")[: draw(st.integers(1, 2))]:
        for gpus in (1, 2)[: draw(st.integers(1, 2))]:
            slots = draw(st.integers(1, 3)) if refill else 64
            memory = draw(st.sampled_from([tightest, 2 * tightest, 1 << 40])) if refill else 1 << 40
            base = draw(latencies(max_batch=slots, kv_capacity_tokens=memory))
            models[kind, gpus] = dataclasses.replace(base, kind=kind, gpus_per_actor=gpus, name=f"{kind}{gpus}")
        pools.append(
            GpuPool(
                kind, draw(st.integers(1, 2)), draw(st.sampled_from([2, 1, 3])), draw(st.sampled_from([1.0, 3.0])),
                prewarmed=draw(st.sampled_from([0, 1])),
            )
        )  # fmt: skip
    cluster = MixedCluster(pools)
    models = {key: model for key, model in models.items() if any(p.kind == key[0] and p.gpus_per_node >= key[1] for p in pools)}
    return MixedInstance(
        work, cluster, offers_of(cluster, models), draw(st.sampled_from(["reserve", "preempt"])) if refill else "reserve"
    )


def packs(cluster: MixedCluster, offers: list[Offer]) -> bool:
    """Whether actors of these offers fit into nodes, by trying every node for every actor."""
    free = [[pool.gpus_per_node] * pool.nodes for pool in cluster.pools]

    def put(i: int) -> bool:
        if i == len(offers):
            return True
        nodes = free[offers[i].pool]
        for node in range(len(nodes)):
            if nodes[node] >= offers[i].gpus:
                nodes[node] -= offers[i].gpus
                found = put(i + 1)
                nodes[node] += offers[i].gpus
                if found:
                    return True
        return False

    return put(0)


class EveryMixedPlan:
    """Makespan, GPU-seconds and dollars of every plan whose actors start at once.

    Of all admission orders of a group only the fastest is kept. ``keep_together``, ``share_prefill``, ``min_actors``,
    ``max_actors`` and ``release`` are those of the problem; actors count towards the least when they generate
    anything. rest_s: seconds of the step after generation.
    """

    def __init__(
        self,
        instance: MixedInstance,
        keep_together: bool = False,
        share_prefill: bool = False,
        *,
        min_actors: int = 1,
        max_actors: int | None = None,
        release: str = "done",
        rest_s: float = 0.0,
    ) -> None:
        self.workload, self.cluster, self.offers, self.admission = instance
        self.share_prefill = share_prefill
        self.least, self.most = min_actors, max_actors or sum(pool.gpus for pool in self.cluster.pools)
        self.release, self.rest_s = release, rest_s
        self.items = [[i] for i in range(len(self.workload))]
        if keep_together:
            owner = self.workload.prompt_of
            self.items = [np.flatnonzero(owner == prompt).tolist() for prompt in np.unique(owner)]
        self._busy: dict[tuple[int, tuple[int, ...]], float] = {}
        self.plans = list(self._every())

    def _every(self) -> Iterator[tuple[float, float, float]]:
        held, works = self.workload.reserved_tokens, self.workload.remaining_tokens > 0
        needed = min(self.least, sum(bool(works[item].any()) for item in self.items))
        for parts in partitions(len(self.items), self.most):
            groups = [[i for item in part for i in self.items[item]] for part in parts]
            if sum(bool(works[group].any()) for group in groups) < needed:
                continue
            for chosen in itertools.product(range(len(self.offers)), repeat=len(groups)):
                offers = [self.offers[r] for r in chosen]
                if any(
                    held[i] > offer.latency.kv_capacity_tokens
                    for offer, group in zip(offers, groups, strict=True)
                    for i in group
                ):
                    continue
                if not packs(self.cluster, offers):
                    continue
                busy = [self.busy_s(r, tuple(group)) for r, group in zip(chosen, groups, strict=True)]
                for warm in itertools.product((False, True), repeat=len(groups)):
                    used = [
                        sum(w for w, o in zip(warm, offers, strict=True) if o.pool == i) for i in range(len(self.cluster.pools))
                    ]
                    if any(n > pool.prewarmed for n, pool in zip(used, self.cluster.pools, strict=True)):
                        continue
                    done = [
                        b + o.latency.sync_s + (0.0 if w else o.latency.start_s)
                        for b, o, w in zip(busy, offers, warm, strict=True)
                    ]
                    last = max(done) + (self.rest_s if self.release == "step" else 0.0)
                    until = done if self.release == "done" else [last] * len(done)
                    gpu_s = sum(o.gpus * t for o, t in zip(offers, until, strict=True))
                    usd = sum(o.gpus * o.usd_per_gpu_s * t for o, t in zip(offers, until, strict=True))
                    yield max(done), gpu_s, usd

    def busy_s(self, r: int, group: tuple[int, ...]) -> float:
        """Seconds for which an actor of offer ``r`` decodes and prefills ``group``, in the fastest admission order."""
        if (r, group) not in self._busy:
            latency = self.offers[r].latency
            rule = Admission(latency.max_batch, latency.kv_capacity_tokens, self.admission)
            self._busy[r, group] = min(self._run(order, latency, rule) for order in itertools.permutations(group))
        return self._busy[r, group]

    def _run(self, order: tuple[int, ...], latency: solver.LatencyModel, rule: Admission) -> float:
        work, chosen = self.workload, list(order)
        columns = (work.remaining_tokens[chosen], work.context_tokens[chosen], work.reserved_tokens[chosen])
        return max(simulate(*(c.tolist() for c in columns), self._there(order), latency, rule)[1])

    def _there(self, order: tuple[int, ...]) -> list[int]:
        """Prompt tokens that need no prefill: of a prompt that an earlier response with something to generate computes."""
        work, computed = self.workload, set()
        there = []
        for i in order:
            prompt = int(work.prompt_of[i])
            there.append(int(work.prompt_tokens[prompt]) if self.share_prefill and prompt in computed else 0)
            if work.remaining_tokens[i] > 0:
                computed.add(prompt)
        return there

    def optimum(self, objective: solver.Objective, phases: solver.NonGenerationPhases, norms: tuple[float, float]) -> float:
        """The least value of any plan; infinite when none keeps the limit."""
        rate = phases.learner_rate(objective.cost, self.cluster.pools[0].usd_per_gpu_s)
        return min(
            objective.value(
                phases.step_time_s(t), (gpu_s if objective.cost == "gpu_s" else usd) + rate * phases.step_time_s(t), norms
            )
            for t, gpu_s, usd in self.plans
        )
