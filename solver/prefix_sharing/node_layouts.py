"""Enumerates the ways to put a plan's actors on a cluster's nodes, heavy actors near one node, and finds the fastest.

Inputs: pools, nodes and GPU counts, and for the search a function that times a layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.plan import ActorPlan
from solver.model.plurals import counted
from solver.model.workload import FloatArray

MAX_ENUMERATED_ACTORS = 6  # up to so many, every set of near actors is tried


def _node_table(cluster: Cluster | MixedCluster) -> list[tuple[int, int, int]]:
    """Return (pool, first GPU, GPUs) of every node."""
    table, gpu = [], 0
    for i, pool in enumerate(cluster.pools):
        for _ in range(pool.nodes):
            table.append((i, gpu, pool.gpus_per_node))
            gpu += pool.gpus_per_node
    return table


@dataclass(frozen=True, eq=False)
class TimedLayout:
    """The node of each actor, with (N,) times in seconds; the smaller ``score`` (makespan, GPU-seconds) is better."""

    nodes: list[int]
    transfer_s: FloatArray
    arrives_s: FloatArray
    start_s: FloatArray
    done_s: FloatArray
    score: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Layouts:
    """The ways to put actors on nodes, each given by the set of actors that are near.

    Actors stay in their pool. Those that are not near use the other nodes, large ones first, and the near one only if no other
    node has room.

    Attributes:
        actors: the decode actors. node_table: (pool, first GPU, GPUs) of every node. pools: the pool of each actor.
        order: the actors, heaviest first. near_node: the node to be near to.
        reserved_gpus: GPUs of it that the prefill actor takes. candidates: actors that could be near, heaviest first.
    """

    actors: Sequence[ActorPlan]
    node_table: Sequence[tuple[int, int, int]]
    pools: Sequence[int]
    order: Sequence[int]
    near_node: int
    reserved_gpus: int
    candidates: tuple[int, ...]

    @classmethod
    def of(
        cls,
        actors: Sequence[ActorPlan],
        cluster: Cluster | MixedCluster,
        order: Sequence[int],
        learner_node: int | None,
        reserved_gpus: int,
    ) -> Layouts:
        """Return the layouts of actors, heaviest first by ``order``, near the learner or in the heaviest actor's pool.

        Raises:
            PlanningError: an actor lies on no node of the cluster, or there is no room for the prefill actor.
        """
        table = _node_table(cluster)
        if misplaced := [i for i, a in enumerate(actors) if not 0 <= a.node < len(table)]:
            raise PlanningError(
                f"actor {misplaced[0]} is on node {actors[misplaced[0]].node}; the cluster has nodes 0 to {len(table) - 1}"
            )
        pools = [table[a.node][0] for a in actors]
        near = next(n for n, (p, _, _) in enumerate(table) if p == pools[order[0]]) if learner_node is None else learner_node
        in_near_pool = tuple(i for i in order if pools[i] == table[near][0])
        layouts = cls(actors, table, pools, order, near, reserved_gpus, in_near_pool)
        if reserved_gpus and not layouts.heaviest_near():
            raise PlanningError(
                f"the cluster has no {counted(reserved_gpus, 'GPU')} of {actors[order[0]].kind} left for a prefill actor next "
                f"to {counted(len(actors), 'actor')}; give the learner's node as learner_node, or plan with one actor less"
            )
        return layouts

    def heaviest_near(self) -> list[list[int]]:
        """Return layouts as the node of each actor: with the heaviest that fit near, with one less near, down to none."""
        room, near = self.node_table[self.near_node][2] - self.reserved_gpus, []
        for i in self.candidates:
            if len(self.actors[i].gpu_ids) <= room:
                near.append(i)
                room -= len(self.actors[i].gpu_ids)
        layouts = [self.with_near(near[:count]) for count in range(len(near), -1, -1)]
        return [nodes for nodes in layouts if nodes is not None]

    def with_near(self, near: Collection[int]) -> list[int] | None:
        """Return the node of each actor with the ``near`` ones near, and others only if they must; None if they do not fit."""
        free = [gpus for _, _, gpus in self.node_table]
        free[self.near_node] -= self.reserved_gpus
        nodes = [-1] * len(self.actors)
        for i in near:
            nodes[i] = self.near_node
            free[self.near_node] -= len(self.actors[i].gpu_ids)
        if free[self.near_node] < 0:
            return None
        far_first = [n for n in range(len(self.node_table)) if n != self.near_node] + [self.near_node]
        for i in sorted((i for i in self.order if nodes[i] < 0), key=lambda i: -len(self.actors[i].gpu_ids)):
            size = len(self.actors[i].gpu_ids)
            node = next((n for n in far_first if self.node_table[n][0] == self.pools[i] and free[n] >= size), None)
            if node is None:
                return None
            nodes[i] = node
            free[node] -= size
        return nodes

    def fastest(self, timed: Callable[[list[int]], TimedLayout]) -> TimedLayout:
        """Return the layout of the smallest score; of equal ones the first.

        Tries the m heaviest actors near for every m. Then every set of near actors, for up to ``MAX_ENUMERATED_ACTORS`` actors;
        for more, moves single actors near or away while that helps.
        """
        starts = [timed(nodes) for nodes in self.heaviest_near()]
        if not starts:  # large and small actors that do not pack in this order stay on their nodes
            return timed([a.node for a in self.actors])
        best = min(starts, key=lambda layout: layout.score)
        if len(self.candidates) <= MAX_ENUMERATED_ACTORS:
            for is_near in itertools.product((True, False), repeat=len(self.candidates)):
                nodes = self.with_near(tuple(itertools.compress(self.candidates, is_near)))
                best = best if nodes is None else min(best, timed(nodes), key=lambda layout: layout.score)
            return best
        improved = True
        while improved:
            improved = False
            for actor in self.candidates:
                near = {i for i in self.candidates if best.nodes[i] == self.near_node}
                nodes = self.with_near(near ^ {actor})
                if nodes is not None and (candidate := timed(nodes)).score < best.score:
                    best, improved = candidate, True
        return best


def gpu_ids_on(cluster: Cluster | MixedCluster, nodes: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the GPU ids of actors of the given sizes on the given nodes; a node's GPUs are assigned in the order of
    the actors.

    Raises:
        PlanningError: a node has fewer GPUs than its actors take.
    """
    table = _node_table(cluster)
    used = [0] * len(table)
    ids = []
    for node, size in zip(nodes, sizes, strict=True):
        first = table[node][1] + used[node]
        used[node] += size
        if used[node] > table[node][2]:
            raise PlanningError(
                f"the actors on node {node} take {counted(used[node], 'GPU')}, but the node has {table[node][2]}"
            )
        ids.append(tuple(range(first, first + size)))
    return ids
