"""Places a plan's actors on nodes and times the arrival of their prefixes: near the prefill actor, and that one with the
learner.

Inputs: a plan with its prefixes, the cluster and its links; ``evaluate`` times the result.

Locality-aware placement (RLHFless, arXiv 2602.22718): the prefill actor runs on the learner's GPUs, which are allocated for the
whole step anyway and are not billed again; the longest group decodes in the same node, heavier groups nearer than lighter ones.
Here that order is the start, and any change that shortens the makespan is taken: with a busy link in the node, the network may
serve some actors sooner. Without a learner the prefill actor gets GPUs of its own next to the longest group. It is then an
``ActorPlan`` without responses, held until its last transfer is over, so that ``solver.evaluate`` bills it.

**Timing.** The prefill actor serves the longest group first, then the next. Actor i can receive when it is ready (start
and weight sync) and its prefixes are computed; its ``receive_s`` ends when they have arrived (``kv_transfer``). The paper's
inequality ``L_model(i) + L_kv(i) + L_decode(i) <= L_prefill + L_decode(1)`` says that the longest group, actor 1, is the last
to finish; the slack is that difference, with the waits that the paper leaves out: for the prefill and for a busy link.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases
from solver.model.offers import Latencies, latency_of
from solver.model.plan import ActorPlan, Plan, Prefill
from solver.model.workload import FloatArray, IntArray, Workload
from solver.prefix_sharing.kv_transfer import bandwidth_bytes_per_s, computed_s, pool_of_node, served, transfer_coefficients
from solver.prefix_sharing.node_layouts import Layouts, gpu_ids_on
from solver.prefix_sharing.placement_result import Placement
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.prefix_sharing.transfer_hiding import without_late
from solver.timing.build_plan import timed
from solver.timing.evaluate import admission_of, evaluate, ready_s

OVERLAP = ("priced", "hard")
MOST_TRIED = 6  # actors of which every set is tried near


def check_options(cluster: Cluster | MixedCluster, learner_node: int | None, overlap: str) -> None:
    """Refuse options that ``place`` cannot work with.

    Raises:
        PlanningError: the learner's node is not in the cluster, or ``overlap`` is unknown.
    """
    if overlap not in OVERLAP:
        raise PlanningError(f"overlap is {overlap!r}; one of {', '.join(OVERLAP)} is needed")
    nodes = sum(pool.nodes for pool in cluster.pools)
    if learner_node is not None and not 0 <= learner_node < nodes:
        raise PlanningError(f"learner_node is {as_given(learner_node)}; the cluster has nodes 0 to {nodes - 1}")


def retimed(plan: Plan, workload: Workload, latency: Latencies, phases: NonGenerationPhases, admission: str) -> Plan:
    """Return the plan with the times that ``evaluate`` gives it.

    If they differ from the plan's own, its value and its bound are removed: they were for other waits, and bounds charge every
    response its own prefill.
    """
    again = timed(plan, workload, latency, phases, admission=admission)
    if (again.makespan_s, again.gpu_seconds) == (plan.makespan_s, plan.gpu_seconds):
        return again
    return replace(again, value=None, lower_bound=None, status="heuristic")


def place(
    plan: Plan,
    workload: Workload,
    cluster: Cluster | MixedCluster,
    latency: Latencies,
    *,
    tree: PrefixTree | None = None,
    learner_node: int | None = None,
    prefill_latency: LatencyModel | None = None,
    overlap: str = "priced",
    streamed: bool = True,
    late_start: bool = False,
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    admission: str = "reserve",
) -> Placement:
    """Return the plan with its actors on nodes and the waits for their prefixes, timed by ``evaluate``.

    Args:
        plan: its actors' ``prefixes`` and ``prefix_tokens`` say what each receives, and so what is computed; a plan without any
            is placed all the same.
        tree: the workload's prefix tree, so that shared tokens are computed and sent once; None when prompts share nothing.
        learner_node: node of the learner's GPUs, which the prefill actor uses; None gives it GPUs of its own.
        prefill_latency: times of the prefill actor; None takes those of the longest group's actor.
        overlap: ``priced`` lets a late actor lengthen the makespan; ``hard`` moves its longest responses to the longest group
            until the inequality holds, as far as that does not lengthen the makespan, and refuses otherwise.
        streamed: caches leave as soon as an actor's prefixes are computed; else after the whole prefill, as in the paper.
        late_start: take an actor's GPUs only so early that it is up when its transfer begins.

    Raises:
        PlanningError: the actors do not fit, an argument makes no sense, or the inequality cannot be kept.
    """
    check_options(cluster, learner_node, overlap)
    if not any(a.responses for a in plan.actors):
        raise PlanningError("the plan has no actors with responses; there is nothing to place")
    tree = PrefixTree.of_lengths(workload.prompt_tokens) if tree is None else tree
    placer = _Placer(
        workload, cluster, latency, tree, learner_node, prefill_latency, streamed, late_start, phases, admission
    )  # fmt: skip
    if overlap == "priced":
        return placer.best(plan)
    eager = replace(placer, late_start=False)  # starting late changes no arrival
    kept = without_late(eager.best(plan), eager.best, workload, latency)
    return replace(placer.best(kept.plan), moved=kept.moved)


@dataclass(frozen=True, eq=False)
class _Times:
    """One layout with its (N,) times; the smaller ``score`` (makespan, GPU-seconds) is better."""

    nodes: list[int]
    transfer_s: FloatArray
    arrives_s: FloatArray
    start_s: FloatArray
    done_s: FloatArray
    score: tuple[float, float]


def _search(layouts: Layouts, times: Callable[[list[int]], _Times]) -> _Times:
    """Return the best layout; of equal ones the first.

    Tried are the m heaviest actors near for every m. Then every set of near actors, for up to ``MOST_TRIED`` actors; for more,
    single actors are moved near or away while that helps.
    """
    found = [times(nodes) for nodes in layouts.heaviest()]
    if not found:  # large and small actors that do not pack in this order: leave them where they are
        return times([a.node for a in layouts.actors])
    best = min(found, key=lambda t: t.score)
    if len(layouts.candidates) <= MOST_TRIED:
        sets = itertools.product((True, False), repeat=len(layouts.candidates))
        for near in sets:
            nodes = layouts.with_near(tuple(itertools.compress(layouts.candidates, near)))
            best = best if nodes is None else min(best, times(nodes), key=lambda t: t.score)
        return best
    improved = True
    while improved:
        improved = False
        for actor in layouts.candidates:
            there = {i for i in layouts.candidates if best.nodes[i] == layouts.near_node}
            nodes = layouts.with_near(there ^ {actor})
            if nodes is not None and (other := times(nodes)).score < best.score:
                best, improved = other, True
    return best


def _prefill(actors: Sequence[ActorPlan], computed_tokens: int, done_s: float) -> Prefill:
    """Return the prefixes computed once: of every prompt the longest prefix that an actor receives."""
    longest: dict[int, int] = {}
    for actor in actors:
        for prompt, tokens in zip(actor.prefixes, actor.prefix_tokens, strict=True):
            longest[prompt] = max(tokens, longest.get(prompt, 0))
    prompts = tuple(sorted(longest))
    return Prefill(prompts, tuple(longest[p] for p in prompts), computed_tokens, done_s)


@dataclass(frozen=True, eq=False)
class _Placer:
    """Places plans for the fixed arguments of ``place``."""

    workload: Workload
    cluster: Cluster | MixedCluster
    latency: Latencies
    tree: PrefixTree
    learner_node: int | None
    prefill_latency: LatencyModel | None
    streamed: bool
    late_start: bool
    phases: NonGenerationPhases
    admission: str

    def best(self, plan: Plan) -> Placement:
        """Return the placement of least makespan, then of least GPU-seconds, then with most of the heaviest actors near."""
        actors = tuple(replace(a, receive_s=0.0) for a in plan.actors if a.responses)  # an earlier prefill actor has none
        models = [latency_of(self.latency, a.kind, len(a.gpu_ids)) for a in actors]
        ready = np.array([ready_s(m, a.prewarmed) for a, m in zip(actors, models, strict=True)])
        start = np.array([a.start_s for a in actors])
        taken = evaluate(replace(plan, actors=actors), self.workload, self.latency, self.phases, admission=self.admission)
        decode = taken.done_s - start - ready
        order = np.argsort(-decode, kind="stable")
        longest = int(order[0])
        used = any(len(a.prefixes) for a in actors)
        own = self._own_actor(actors[longest], models[longest]) if used and self.learner_node is None else None
        layouts = Layouts.of(actors, self.cluster, order.tolist(), self.learner_node, 0 if own is None else len(own.gpu_ids))
        source = layouts.near_node
        new, received, computed_tokens = self._tokens(actors, order)
        begin_s = 0.0 if own is None else ready_s(models[longest], own.prewarmed)
        computed = np.empty(len(actors))
        computed[order] = computed_s(new[order], self.prefill_latency or models[longest], begin_s, self.streamed)
        near, far = self._over_links(actors, models, source, received)
        gpus = np.array([len(a.gpu_ids) for a in actors])

        def times(nodes: list[int]) -> _Times:
            is_near = np.array(nodes) == source
            up = start + ready + np.where(is_near, near[1], far[1])
            release = np.where(received > 0, np.maximum(up, computed), up)
            transfer = np.where(is_near, near[0], far[0])
            begun, arrives = served(release, transfer, decode, is_near.tolist())
            starts = start + np.maximum(begun - up, 0.0) if self.late_start else start
            done = arrives + decode
            return _Times(nodes, transfer, arrives, starts, done, (float(done.max()), float((gpus * (done - starts)).sum())))

        best = _search(layouts, times)
        sizes = [*gpus.tolist(), *([] if own is None else [len(own.gpu_ids)])]
        ids = gpu_ids_on(self.cluster, [*best.nodes, *([] if own is None else [source])], sizes)
        wait = np.maximum(best.arrives_s - best.start_s - ready, 0.0)
        placed = [
            replace(a, node=node, gpu_ids=gpu, start_s=s, receive_s=w)
            for a, node, gpu, s, w in zip(actors, best.nodes, ids, best.start_s.tolist(), wait.tolist(), strict=False)
        ]
        prefill_s = float(computed.max()) if used else 0.0
        if own is not None:  # held until its last transfer is over
            until = max(float(best.arrives_s[received > 0].max(initial=0.0)), prefill_s)
            placed.append(replace(own, node=source, gpu_ids=ids[-1], receive_s=until - begin_s))
        prefill = _prefill(actors, computed_tokens, prefill_s) if used else None
        now = replace(plan, actors=tuple(placed), prefill=prefill)
        now = retimed(now, self.workload, self.latency, self.phases, self.admission)
        return Placement(
            now, longest, source if used or self.learner_node is not None else None, () if own is None else ids[-1], prefill_s,
            best.transfer_s, best.arrives_s, best.done_s[longest] - best.done_s,
        )  # fmt: skip

    def _tokens(self, actors: Sequence[ActorPlan], order: IntArray) -> tuple[IntArray, IntArray, int]:
        """Return (N,) tokens that the prefill actor computes for each actor in that order, (N,) tokens that each
        receives, and the total that it computes."""
        covered = np.array([self.tree.covered(a.prefixes, a.prefix_tokens) for a in actors])
        new: IntArray = np.zeros(len(actors), np.int64)
        seen: IntArray = np.zeros(len(self.tree), np.int64)
        for i in order.tolist():
            new[i] = np.maximum(covered[i] - seen, 0).sum()
            seen = np.maximum(seen, covered[i])
        return new, covered.sum(axis=1), int(seen.sum())

    def _over_links(
        self, actors: Sequence[ActorPlan], models: Sequence[LatencyModel], source: int, received: IntArray
    ) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Return, for near and for far: (N,) seconds of each actor's transfer, and the (N,) delay of its weights beyond the
        latency model's sync.

        The delay needs the weights' bytes, the link and the learner's node; otherwise it is 0.
        """
        source_pool = pool_of_node(self.cluster, source)
        found = []
        for near in (True, False):
            transfer, extra = [], []
            for actor, model, tokens in zip(actors, models, received.tolist(), strict=True):
                speed = bandwidth_bytes_per_s(source_pool, pool_of_node(self.cluster, actor.node), near)
                base, per_token = transfer_coefficients(model, speed)
                transfer.append(base + per_token * tokens if tokens else 0.0)
                known = speed is not None and self.learner_node is not None
                extra.append(max(0.0, model.weight_bytes / speed - model.sync_s) if known and speed else 0.0)
            found.append((np.array(transfer), np.array(extra)))
        return found[0], found[1]

    def _own_actor(self, beside: ActorPlan, model: LatencyModel) -> ActorPlan:
        """Return a prefill actor on GPUs of its own, of the same kind and size as the actor ``beside`` it."""
        slots = admission_of(model).max_batch
        return replace(
            beside, responses=(), prompts=(), prefixes=(), prefix_tokens=(), max_batch=slots, start_s=0.0, prewarmed=False
        )  # fmt: skip
