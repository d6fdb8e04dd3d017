"""Places a plan's actors on nodes, near the prefill actor, and times the arrival of their prefixes.

Inputs: a plan with its prefixes, the cluster and its links; ``evaluate`` times the result.

Locality-aware placement (RLHFless, arXiv 2602.22718) runs the prefill actor on the learner's GPUs. These are allocated for the
whole step anyway and are not billed again. The longest group decodes in the same node, heavier groups nearer than lighter ones.
Here that order is the start, and any change that shortens the makespan is taken. With a busy link in the node, the network may
serve some actors sooner. Without a learner the prefill actor gets GPUs of its own next to the longest group. It is then an
``ActorPlan`` without responses, held until its last transfer is over, so that ``solver.evaluate`` bills it.

**Timing.** The prefill actor serves the longest group first, then the next. It has two links that work in parallel, one to the
GPUs of its own node and one to all other nodes; each sends one transfer at a time. Actor i can receive when it is ready (start
and weight sync) and its prefixes are computed; its ``receive_s`` ends when they have arrived. The paper's inequality
``L_model(i) + L_kv(i) + L_decode(i) <= L_prefill + L_decode(1)`` says that the longest group, actor 1, is the last to finish.
The slack is that difference, with the waits that the paper leaves out: for the prefill and for a busy link. Where no slack is
below 0 the other actors add nothing to the makespan; a late one lengthens it, and ``deduplicate`` prices that.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from solver.model.cluster import Cluster, GpuPool, MixedCluster
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel
from solver.model.offers import latency_of
from solver.model.plan import ActorPlan, Plan, Prefill
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, IntArray
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.timing.build_plan import timed
from solver.timing.evaluate import admission_of, evaluate, ready_s

MAX_ENUMERATED_ACTORS = 6  # up to so many, every set of actors near the prefill actor is tried


# --- nodes and links --------------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A node of a cluster: its pool, the index of that pool, and the id of its first GPU."""

    pool: GpuPool
    pool_index: int
    first_gpu: int


def nodes_of(cluster: Cluster | MixedCluster) -> list[Node]:
    """Return the nodes of a cluster, which count through its pools in order."""
    nodes, gpu = [], 0
    for i, pool in enumerate(cluster.pools):
        for _ in range(pool.nodes):
            nodes.append(Node(pool, i, gpu))
            gpu += pool.gpus_per_node
    return nodes


def bandwidth_bytes_per_s(source: GpuPool, target: GpuPool, same_node: bool) -> float | None:
    """Return bytes per second within a node, or between nodes of two pools (the slower end counts).

    None if the bandwidth of a pool is not known.
    """
    speeds = [source.node_bytes_per_s] if same_node else [pool.network_bytes_per_s for pool in (source, target)]
    return None if None in speeds else min(s for s in speeds if s is not None)


def transfer_coefficients(latency: LatencyModel, bytes_per_s: float | None) -> tuple[float, float]:
    """Return (base seconds, seconds per KV token) of a transfer.

    Over the link if its bandwidth and the bytes of a token are known, else from the latency model.
    """
    if bytes_per_s is None or latency.kv_bytes_per_token <= 0:
        return latency.transfer_base_s, latency.transfer_per_kv_token_s
    return latency.transfer_base_s, latency.kv_bytes_per_token / bytes_per_s


def schedule_transfers(
    release_s: ArrayLike, transfer_s: ArrayLike, tail_s: ArrayLike, links: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return (N,) when each transfer starts and ends.

    A free link serves, of the transfers that can start, the one with the longest tail (Schrage's rule). That is optimal for the
    last end when all can start at once (Jackson's rule).

    Args:
        release_s: (N,) when it can start: the prefill is done and the receiver is ready.
        transfer_s: (N,) how long it takes. tail_s: (N,) the receiver's time after it. links: (N,) index of its link.
    """
    release, length, tail = (np.asarray(v, dtype=float) for v in (release_s, transfer_s, tail_s))
    start = release.copy()
    end = release.copy()
    for link in set(links):
        waiting = sorted((i for i in range(len(release)) if links[i] == link and length[i] > 0), key=lambda i: -release[i])
        ready: list[tuple[float, int]] = []
        now = 0.0
        while waiting or ready:
            if not ready:
                now = max(now, float(release[waiting[-1]]))
            while waiting and release[waiting[-1]] <= now:
                heapq.heappush(ready, (-float(tail[waiting[-1]]), waiting.pop()))
            transfer = heapq.heappop(ready)[1]
            start[transfer], now = now, now + float(length[transfer])
            end[transfer] = now
    return start, end


def prefill_done_s(tokens: ArrayLike, latency: LatencyModel, ready_s: float, streamed: bool) -> FloatArray:
    """Return (N,) when the prefill actor has computed the prefixes of each decode actor.

    Args:
        tokens: (N,) tokens that it computes for each actor and has not computed for an earlier one. Actors are in the order in
            which it serves them.
        ready_s: when it can start. streamed: one call per actor with new tokens, whose caches are sent at once; else one call
            for all, after which everything is sent (the paper's timing).
    """
    new_tokens = np.asarray(tokens)
    if not streamed:
        total = int(new_tokens.sum())
        return np.full(len(new_tokens), ready_s + (float(latency.prefill_s(total)) if total else 0.0))
    return np.asarray(ready_s + np.cumsum(np.where(new_tokens > 0, latency.prefill_s(new_tokens), 0.0)))


# --- placement ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placement:
    """A placed plan of N decode actors.

    Attributes:
        plan: the N actors, then the prefill actor where it has GPUs of its own.
        longest: the actor with the longest decode. prefill_node: where the prefill actor runs; None when there is none.
        prefill_gpu_ids: its own GPUs, none on the learner's. prefill_s: when its last prefix is computed.
        transfer_s: (N,) seconds of each actor's transfer. arrives_s: (N,) when it can decode, from the start of the step.
        slack_s: (N,) seconds by which each actor is done before the longest group; below 0 it is late.
    """

    plan: Plan
    longest: int
    prefill_node: int | None
    prefill_gpu_ids: tuple[int, ...]
    prefill_s: float
    transfer_s: FloatArray
    arrives_s: FloatArray
    slack_s: FloatArray

    @property
    def late(self) -> tuple[int, ...]:
        """Return the actors that break the inequality: they are done after the longest group."""
        return tuple(np.flatnonzero(self.slack_s < -1e-9).tolist())

    def __repr__(self) -> str:
        where = "no prefill actor"
        if self.prefill_node is not None:
            gpus = f"GPUs {','.join(map(str, self.prefill_gpu_ids))}" if self.prefill_gpu_ids else "the learner's GPUs"
            where = f"prefill on {gpus} in node {self.prefill_node}, done at {self.prefill_s:.2f} s"
        lines = [
            f"Placement: {where}; actor {self.longest} has the longest group; {counted(len(self.late), 'actor')} later than it"
        ]
        for i, (actor, t, at, slack) in enumerate(
            zip(self.plan.actors, self.transfer_s, self.arrives_s, self.slack_s, strict=False)
        ):
            lines.append(
                f"  actor {i}: node {actor.node}, transfer {t:.3f} s, decodes from {at:.2f} s to {actor.predicted_s:.2f} s, "
                f"slack {slack:.2f} s"
            )
        return "\n".join([*lines[:9], *([f"  ... and {len(lines) - 9} more actors"] if len(lines) > 9 else [])])


def check_nodes(cluster: Cluster | MixedCluster, actors: Sequence[ActorPlan], learner_node: int | None) -> None:
    """Refuse nodes, of actors or of the learner, that the cluster does not have.

    Raises:
        PlanningError: it has no such node.
    """
    nodes = len(nodes_of(cluster))
    if learner_node is not None and not 0 <= learner_node < nodes:
        raise PlanningError(f"learner_node is {as_given(learner_node)}; the cluster has nodes 0 to {nodes - 1}")
    for i, actor in enumerate(actors):
        if not 0 <= actor.node < nodes:
            raise PlanningError(f"actor {i} is on node {actor.node}; the cluster has nodes 0 to {nodes - 1}")


def retimed(plan: Plan, problem: PlanningProblem) -> Plan:
    """Return the plan with the times that ``evaluate`` gives it.

    If they differ from the plan's own, its value and its bound are removed. They were for other waits, and bounds charge every
    response its own prefill.
    """
    evaluated = timed(plan, problem)
    if (evaluated.makespan_s, evaluated.gpu_seconds) == (plan.makespan_s, plan.gpu_seconds):
        return evaluated
    return replace(evaluated, value=None, lower_bound=None, status="heuristic")


def place(
    plan: Plan,
    problem: PlanningProblem,
    *,
    tree: PrefixTree | None = None,
    learner_node: int | None = None,
    prefill_latency: LatencyModel | None = None,
    streamed: bool = True,
    late_start: bool = False,
) -> Placement:
    """Return the plan with its actors on nodes and the waits for their prefixes, timed by ``evaluate``.

    Args:
        plan: for ``problem``. Its actors' ``prefixes`` and ``prefix_tokens`` say what each receives, and so what is computed; a
            plan without any is placed all the same.
        tree: the workload's prefix tree, so that shared tokens are computed and sent once; None when prompts share nothing.
        learner_node: node of the learner's GPUs, which the prefill actor uses; None gives it GPUs of its own.
        prefill_latency: times of the prefill actor; None takes those of the longest group's actor.
        streamed: caches are sent as soon as an actor's prefixes are computed; else after the whole prefill, as in the paper.
        late_start: allocate an actor's GPUs only so early that it is ready when its transfer starts.

    Raises:
        PlanningError: the actors do not fit, or an argument makes no sense.
    """
    check_problem(problem)
    check_nodes(problem.cluster, plan.actors, learner_node)
    if not any(a.responses for a in plan.actors):
        raise PlanningError("the plan has no actors with responses; there is nothing to place")
    tree = PrefixTree.of_lengths(problem.workload.prompt_tokens) if tree is None else tree
    return _Placer(problem, tree, learner_node, prefill_latency, streamed, late_start).place(plan)


class _Timed(NamedTuple):
    """Actors on nodes with (N,) seconds of their transfers; the smaller ``score`` (makespan, GPU-seconds) is better."""

    nodes: list[int]
    transfer_s: FloatArray
    arrives_s: FloatArray
    start_s: FloatArray
    done_s: FloatArray
    score: tuple[float, float]


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Puts actors on nodes, given the set of those that are near the prefill actor.

    Actors stay in their pool. Those that are not near use the other nodes, large ones first, and the near node only if no other
    has room.

    Attributes:
        sizes: GPUs of each actor. pools: index of the pool of each. order: the actors, heaviest first.
        near_node: the prefill actor's node. reserved_gpus: GPUs of it that the prefill actor takes.
    """

    nodes: Sequence[Node]
    sizes: Sequence[int]
    pools: Sequence[int]
    order: Sequence[int]
    near_node: int
    reserved_gpus: int

    @property
    def candidates(self) -> tuple[int, ...]:
        """Return the actors that could be near, heaviest first."""
        return tuple(i for i in self.order if self.pools[i] == self.nodes[self.near_node].pool_index)

    def heaviest_near(self) -> list[list[int]]:
        """Return the node of each actor with the heaviest that fit near, with one less near, down to none."""
        room, near = self.nodes[self.near_node].pool.gpus_per_node - self.reserved_gpus, []
        for i in self.candidates:
            if self.sizes[i] <= room:
                near.append(i)
                room -= self.sizes[i]
        found = [self.with_near(near[:count]) for count in range(len(near), -1, -1)]
        return [nodes for nodes in found if nodes is not None]

    def with_near(self, near: Collection[int]) -> list[int] | None:
        """Return the node of each actor with the ``near`` ones near, and others only if they must; None if they do not fit."""
        free = [node.pool.gpus_per_node for node in self.nodes]
        free[self.near_node] -= self.reserved_gpus + sum(self.sizes[i] for i in near)
        if free[self.near_node] < 0:
            return None
        placed = dict.fromkeys(near, self.near_node)
        far_first = sorted(range(len(self.nodes)), key=lambda n: n == self.near_node)
        for i in sorted((i for i in self.order if i not in placed), key=lambda i: -self.sizes[i]):
            fitting = (n for n in far_first if self.nodes[n].pool_index == self.pools[i] and free[n] >= self.sizes[i])
            node = next(fitting, None)
            if node is None:
                return None
            placed[i] = node
            free[node] -= self.sizes[i]
        return [placed[i] for i in range(len(self.sizes))]

    def fastest(self, timed: Callable[[list[int]], _Timed], given: list[int]) -> _Timed:
        """Return the placement of the smallest score; of equal ones the first.

        Tries the m heaviest actors near for every m, and for up to ``MAX_ENUMERATED_ACTORS`` actors every set of near ones;
        then moves single actors near or away while that helps. Actors that do not pack in this order stay on the ``given``
        nodes.
        """
        starts, candidates = self.heaviest_near(), self.candidates
        if not starts:
            return timed(given)
        if len(candidates) <= MAX_ENUMERATED_ACTORS:
            sets = itertools.product((True, False), repeat=len(candidates))
            every = (self.with_near(tuple(itertools.compress(candidates, is_near))) for is_near in sets)
            starts += [nodes for nodes in every if nodes is not None]
        best = min(map(timed, starts), key=lambda placed: placed.score)
        improved = len(candidates) > MAX_ENUMERATED_ACTORS
        while improved:
            improved = False
            for actor in candidates:
                nodes = self.with_near({i for i in candidates if best.nodes[i] == self.near_node} ^ {actor})
                if nodes is not None and (candidate := timed(nodes)).score < best.score:
                    best, improved = candidate, True
        return best

    def gpu_ids(self, nodes: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the GPU ids of actors on nodes; a node's GPUs are assigned in the order of the actors.

        Raises:
            PlanningError: a node has fewer GPUs than its actors take.
        """
        used, ids = [0] * len(self.nodes), []
        for node, size in zip(nodes, sizes, strict=True):
            first, room = self.nodes[node].first_gpu + used[node], self.nodes[node].pool.gpus_per_node
            used[node] += size
            if used[node] > room:
                raise PlanningError(f"the actors on node {node} take {counted(used[node], 'GPU')}, but the node has {room}")
            ids.append(tuple(range(first, first + size)))
        return ids


@dataclass(frozen=True, eq=False)
class _Placer:
    """Places plans for the fixed arguments of ``place``."""

    problem: PlanningProblem
    tree: PrefixTree
    learner_node: int | None
    prefill_latency: LatencyModel | None
    streamed: bool
    late_start: bool

    def place(self, plan: Plan) -> Placement:
        """Return the placement of least makespan, then of least GPU-seconds, then with most of the heaviest actors near."""
        actors = tuple(replace(a, receive_s=0.0) for a in plan.actors if a.responses)  # drops the actor of an earlier prefill
        problem = self.problem
        models = [latency_of(problem.latency, a.kind, len(a.gpu_ids)) for a in actors]
        ready = np.array([ready_s(m, a.prewarmed) for a, m in zip(actors, models, strict=True)])
        start = np.array([a.start_s for a in actors])
        decode = evaluate(replace(plan, actors=actors), problem).done_s - start - ready
        order = np.argsort(-decode, kind="stable")
        longest = int(order[0])
        has_prefixes = any(len(a.prefixes) for a in actors)
        needs_gpus = has_prefixes and self.learner_node is None
        prefill_actor = self._prefill_actor_like(actors[longest], models[longest]) if needs_gpus else None
        prefill_gpus = 0 if prefill_actor is None else len(prefill_actor.gpu_ids)
        places = self._nodes(actors, order.tolist(), prefill_gpus)
        source = places.near_node
        new_tokens, received, computed_tokens = self._tokens(actors, order)
        begin_s = 0.0 if prefill_actor is None else ready_s(models[longest], prefill_actor.prewarmed)
        computed = np.empty(len(actors))
        computed[order] = prefill_done_s(new_tokens[order], self.prefill_latency or models[longest], begin_s, self.streamed)
        near, far = (self._link_times(actors, models, source, received, same_node) for same_node in (True, False))
        gpus = np.array(places.sizes)

        def timed_on(nodes: list[int]) -> _Timed:
            is_near = np.array(nodes) == source
            can_receive = start + ready + np.where(is_near, near[1], far[1])
            release = np.where(received > 0, np.maximum(can_receive, computed), can_receive)
            transfer = np.where(is_near, near[0], far[0])
            sent_at, arrives = schedule_transfers(release, transfer, decode, is_near.tolist())
            starts = start + np.maximum(sent_at - can_receive, 0.0) if self.late_start else start
            done = arrives + decode
            score = float(done.max()), float((gpus * (done - starts)).sum())
            return _Timed(nodes, transfer, arrives, starts, done, score)

        best = places.fastest(timed_on, [a.node for a in actors])
        sizes, nodes = gpus.tolist(), list(best.nodes)
        if prefill_actor is not None:
            sizes, nodes = [*sizes, prefill_gpus], [*nodes, source]
        ids = places.gpu_ids(nodes, sizes)
        wait = np.maximum(best.arrives_s - best.start_s - ready, 0.0)
        placed = [
            replace(a, node=node, gpu_ids=gpu, start_s=s, receive_s=w)
            for a, node, gpu, s, w in zip(actors, best.nodes, ids, best.start_s.tolist(), wait.tolist(), strict=False)
        ]
        prefill_s = float(computed.max()) if has_prefixes else 0.0
        if prefill_actor is not None:  # held until its last transfer ends
            until = max(float(best.arrives_s[received > 0].max(initial=0.0)), prefill_s)
            placed.append(replace(prefill_actor, node=source, gpu_ids=ids[-1], receive_s=until - begin_s))
        prefill = _prefill(actors, computed_tokens, prefill_s) if has_prefixes else None
        return Placement(
            retimed(replace(plan, actors=tuple(placed), prefill=prefill), problem), longest,
            source if has_prefixes or self.learner_node is not None else None, () if prefill_actor is None else ids[-1],
            prefill_s, best.transfer_s, best.arrives_s, best.done_s[longest] - best.done_s,
        )  # fmt: skip

    def _nodes(self, actors: Sequence[ActorPlan], order: Sequence[int], prefill_gpus: int) -> _Nodes:
        """Return the nodes for actors near the learner, or near a prefill actor in the pool of the heaviest.

        Raises:
            PlanningError: there is no room for the prefill actor.
        """
        nodes = nodes_of(self.problem.cluster)
        pools = [nodes[a.node].pool_index for a in actors]
        first_of_pool = next(n for n, node in enumerate(nodes) if node.pool_index == pools[order[0]])
        near = first_of_pool if self.learner_node is None else self.learner_node
        places = _Nodes(nodes, [len(a.gpu_ids) for a in actors], pools, order, near, prefill_gpus)
        if prefill_gpus and not places.heaviest_near():
            raise PlanningError(
                f"the cluster has no {counted(prefill_gpus, 'GPU')} of {actors[order[0]].kind} left for a prefill actor next "
                f"to {counted(len(actors), 'actor')}; give the learner's node as learner_node, or plan with one actor less"
            )
        return places

    def _tokens(self, actors: Sequence[ActorPlan], order: IntArray) -> tuple[IntArray, IntArray, int]:
        """Return (N,) tokens that the prefill actor computes for each actor in that order, (N,) tokens that each
        receives, and the total that it computes."""
        covered = np.array([self.tree.covered(a.prefixes, a.prefix_tokens) for a in actors])
        new_tokens: IntArray = np.zeros(len(actors), np.int64)
        computed: IntArray = np.zeros(len(self.tree), np.int64)
        for i in order.tolist():
            new_tokens[i] = np.maximum(covered[i] - computed, 0).sum()
            computed = np.maximum(computed, covered[i])
        return new_tokens, covered.sum(axis=1), int(computed.sum())

    def _link_times(
        self, actors: Sequence[ActorPlan], models: Sequence[LatencyModel], source: int, received: IntArray, same_node: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return (N,) seconds of each actor's transfer over the link within or between nodes, and the (N,) delay of its
        weights beyond the latency model's sync.

        The delay needs the weights' bytes, the link and the learner's node; otherwise it is 0.
        """
        nodes = nodes_of(self.problem.cluster)
        transfer_s, weight_delay_s = [], []
        for actor, model, tokens in zip(actors, models, received.tolist(), strict=True):
            speed = bandwidth_bytes_per_s(nodes[source].pool, nodes[actor.node].pool, same_node)
            base, per_token = transfer_coefficients(model, speed)
            transfer_s.append(base + per_token * tokens if tokens else 0.0)
            sends_weights = speed and self.learner_node is not None
            weight_delay_s.append(max(0.0, model.weight_bytes / speed - model.sync_s) if sends_weights and speed else 0.0)
        return np.array(transfer_s), np.array(weight_delay_s)

    def _prefill_actor_like(self, actor: ActorPlan, model: LatencyModel) -> ActorPlan:
        """Return a prefill actor of the same kind and size as a decode actor, to be placed on GPUs of its own."""
        slots = admission_of(model).max_batch
        return replace(
            actor, responses=(), prompts=(), prefixes=(), prefix_tokens=(), max_batch=slots, start_s=0.0, prewarmed=False
        )  # fmt: skip


def _prefill(actors: Sequence[ActorPlan], computed_tokens: int, done_s: float) -> Prefill:
    """Return the prefixes computed once: of every prompt the longest prefix that an actor receives."""
    longest: dict[int, int] = {}
    for actor in actors:
        for prompt, tokens in zip(actor.prefixes, actor.prefix_tokens, strict=True):
            longest[prompt] = max(tokens, longest.get(prompt, 0))
    prompts = tuple(sorted(longest))
    return Prefill(prompts, tuple(longest[p] for p in prompts), computed_tokens, done_s)
