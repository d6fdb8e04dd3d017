"""Maps each node of a plan's cluster to a node of a Ray cluster.

Inputs: Ray's list of nodes, and the number of GPUs per node of the plan's cluster. A plan counts nodes and GPUs through the
pools of its cluster. A pool's nodes are Ray nodes with enough GPUs, of the pool's kind where Ray knows it
(``accelerator_type``). Within a node Ray picks the devices, so a plan's GPU ids are names for the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.plurals import counted

TYPE = "accelerator_type:"


class FewerGpus(PlanningError):
    """A plan's cluster is larger than Ray's.

    Attributes:
        largest: GPUs, and GPUs per node, of the largest cluster with actors of that size that fits on Ray's nodes. None where
            none fits, or the plan's cluster has several pools.
    """

    largest: tuple[int, int] | None = None


class RayNode(NamedTuple):
    """A node that is alive. ``kinds`` are the GPU kinds that Ray knows of; empty where Ray reports none."""

    node_id: str
    address: str
    gpus: float
    kinds: frozenset[str] = frozenset()

    @classmethod
    def listed(cls, nodes: Iterable[Mapping[str, Any]]) -> list[RayNode]:
        """Return the nodes of ``ray.nodes()`` that are alive and have GPUs, in an order that does not change while they
        live.
        """
        gpu_nodes = []
        for node in nodes:
            has = node["Resources"]
            if node["Alive"] and has.get("GPU", 0) > 0:
                kinds = frozenset(_plain(name.removeprefix(TYPE)) for name in has if name.startswith(TYPE))
                gpu_nodes.append(cls(node["NodeID"], node["NodeManagerAddress"], has["GPU"], kinds))
        return sorted(gpu_nodes, key=lambda node: (node.address, node.node_id))

    def is_kind(self, kind: str) -> bool:
        """Return whether the node may have this kind of GPU: Ray says ``H100``, a profile ``h100_sxm``, a cluster without a
        kind ``gpu``.
        """
        return not self.kinds or kind == Cluster.kind or any(_plain(kind).startswith(prefix) for prefix in self.kinds)


def place_nodes(
    cluster: Cluster | MixedCluster, nodes: Sequence[RayNode], before: Mapping[int, RayNode] | None = None
) -> dict[int, RayNode]:
    """Return a Ray node for every node of the cluster.

    Args:
        nodes: those that are alive.
        before: the last result: a node that still lives keeps its number, so that actors on it can be used again.

    Raises:
        FewerGpus: the Ray cluster is smaller than the plan's.
    """
    free = list(nodes)
    wanted = [(pool.kind, pool.gpus_per_node) for pool in cluster.pools for _ in range(pool.nodes)]
    placed: dict[int, RayNode] = {}
    for number, node in (before or {}).items():
        if number < len(wanted) and node in free and node.is_kind(wanted[number][0]) and node.gpus >= wanted[number][1]:
            placed[number] = node
            free.remove(node)
    # nodes that know their kind first, and the smallest that will do: what fits anywhere is left for the others
    for number in sorted(set(range(len(wanted))) - set(placed), key=lambda i: (-wanted[i][1], i)):
        kind, gpus = wanted[number]
        fits = [node for node in free if node.gpus >= gpus and node.is_kind(kind)]
        if not fits:
            available = ", ".join(f"{node.address} with {node.gpus:g}{_kinds(node)}" for node in nodes) or "none"
            largest = largest_cluster(cluster, nodes) if isinstance(cluster, Cluster) else None
            planned = f"{counted(len(wanted), 'node')} with {_counts(wanted)}"
            error = FewerGpus(
                f"the plan's cluster has {planned}, but Ray's GPU nodes ({available}) do not provide them; plan for "
                f"{_remedy(cluster, nodes, largest)}"
            )
            error.largest = largest
            raise error
        placed[number] = min(fits, key=lambda node: (not node.kinds, node.gpus, nodes.index(node)))
        free.remove(placed[number])
    return dict(sorted(placed.items()))


def place_beside(
    wanted: Mapping[int, int], cluster: Cluster | MixedCluster, nodes: Sequence[RayNode], placed: Mapping[int, RayNode]
) -> dict[int, RayNode]:
    """Return a Ray node for nodes beside the cluster, where there is one with enough GPUs left.

    Args:
        wanted: GPUs by number of the node. nodes: those that are alive. placed: the Ray nodes of the cluster's nodes.
    """
    left = {node.node_id: node.gpus for node in nodes}
    sizes = [pool.gpus_per_node for pool in cluster.pools for _ in range(pool.nodes)]
    for number, node in placed.items():
        if number < len(sizes) and node.node_id in left:
            left[node.node_id] -= sizes[number]
    found = {}
    for number, gpus in sorted(wanted.items()):
        fits = [node for node in nodes if left[node.node_id] >= gpus and node.is_kind(cluster.pools[0].kind)]
        if fits:
            found[number] = min(fits, key=lambda node: (left[node.node_id], nodes.index(node)))
            left[found[number].node_id] -= gpus
    return found


def largest_cluster(cluster: Cluster, nodes: Sequence[RayNode]) -> tuple[int, int] | None:
    """Return GPUs, and GPUs per node, of the largest cluster up to this one's size that fits on the nodes; None where no actor
    fits.

    Among clusters with equally many GPUs it prefers this cluster's node size, else the largest nodes.
    """
    has = [int(node.gpus) for node in nodes if node.is_kind(cluster.kind)]
    sizes = {
        min(gpus, cluster.gpus) // cluster.gpus_per_actor * cluster.gpus_per_actor for gpus in [*has, cluster.gpus_per_node]
    }
    fitting = [(size * min(sum(gpus >= size for gpus in has), cluster.gpus // size), size) for size in sizes if size]
    best = max(
        fitting,
        key=lambda cluster_size: (cluster_size[0], cluster_size[1] == cluster.gpus_per_node, cluster_size[1]),
        default=(0, 0),
    )
    return best if best[0] else None


def _remedy(cluster: Cluster | MixedCluster, nodes: Sequence[RayNode], largest: tuple[int, int] | None) -> str:
    """Return what could be planned for instead of this cluster, as part of a sentence."""
    if largest is not None:
        return f"{counted(largest[0], 'GPU')} in nodes of {largest[1]}"
    most = max((int(node.gpus) for node in nodes if node.is_kind(cluster.pools[0].kind)), default=0)
    if isinstance(cluster, Cluster) and most:
        return f"actors of at most {counted(most, 'GPU')}, as all GPUs of an actor are in one node"
    return "the GPUs that `ray status` shows"


def _plain(kind: str) -> str:
    return re.sub(r"[^a-z0-9]", "", kind.lower())


def _kinds(node: RayNode) -> str:
    return f" ({'/'.join(sorted(node.kinds))})" if node.kinds else ""


def _counts(wanted: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{gpus} {kind}" for kind, gpus in wanted)
