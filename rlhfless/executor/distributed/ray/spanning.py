"""Joins small Ray nodes into what a plan counts as one node, for actors with more GPUs than a Ray node has.

Such an actor is a Ray placement group with a bundle per GPU. Its process is in the first bundle, and the engine's
tensor-parallel ranks are in all of them. A plan's nodes have as many GPUs as such an actor: a joined node has room for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhfless.executor.distributed.ray.placement import RayNode
from solver.model.cluster import Cluster, MixedCluster

NODE_LABEL = "ray.io/node-id"


def joined(nodes: Sequence[RayNode], cluster: Cluster | MixedCluster) -> list[RayNode]:
    """Return the nodes, those that are too small for an actor of the cluster joined in order, where kinds are the same.

    A joined node has exactly the GPUs of an actor; nodes that are left over stay as they are. Clusters of several pools, and of
    nodes that hold several actors, are not joined.
    """
    if not isinstance(cluster, Cluster) or cluster.gpus_per_node != cluster.gpus_per_actor:
        return list(nodes)
    needed = cluster.gpus_per_actor
    found = [node for node in nodes if node.gpus >= needed]
    for kinds in sorted({node.kinds for node in nodes}, key=sorted):
        waiting: list[RayNode] = []
        for node in (node for node in nodes if node.gpus < needed and node.kinds == kinds):
            waiting.append(node)
            if sum(int(part.gpus) for part in waiting) >= needed:
                found.append(_join(waiting, needed))
                waiting = []
        found += waiting
    return found


def _join(parts: Sequence[RayNode], gpus: int) -> RayNode:
    """Return the parts as one node with so many GPUs; of the last part it may use fewer than there are."""
    address, ids = ("+".join(texts) for texts in zip(*((part.address, part.node_id) for part in parts), strict=True))
    return RayNode(ids, address, gpus, parts[0].kinds, tuple(parts))


def group_on(node: RayNode) -> PlacementGroup:
    """Ask Ray for a placement group with a bundle for every GPU of a joined node, on its parts in order."""
    places = [part for part in node.parts for _ in range(int(part.gpus))][: int(node.gpus)]
    labels = [{NODE_LABEL: part.node_id} for part in places]
    return placement_group([{"GPU": 1.0} for _ in places], "PACK", bundle_label_selector=labels)


def in_first_bundle(group: PlacementGroup) -> dict[str, Any]:
    """Return the options of an actor in the first bundle of a group, whose own actors are in the group, too."""
    strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    return {"num_gpus": 0, "scheduling_strategy": strategy}
