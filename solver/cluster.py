"""The GPUs that a step may use: nodes, GPUs per node, GPUs per actor, price.

Knows nothing of time. One GPU kind and one actor size. GPU ids count through the nodes: node n holds the ids
``n * gpus_per_node ... (n + 1) * gpus_per_node - 1``, and an actor's GPUs lie in one node.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.errors import PlanningError


@dataclass(frozen=True)
class Cluster:
    """``nodes`` nodes of ``gpus_per_node`` GPUs each, of which every actor takes ``gpus_per_actor`` in one node.

    Raises:
        PlanningError: a count is below 1, an actor does not fit into a node, or the price is negative.
    """

    nodes: int
    gpus_per_node: int
    gpus_per_actor: int
    kind: str = "gpu"
    usd_per_gpu_hour: float = 0.0
    market: str = "on-demand"

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "gpus_per_actor"):
            if getattr(self, name) < 1:
                raise PlanningError(f"the cluster's {name} is {getattr(self, name)}; at least 1 is needed")
        if self.gpus_per_actor > self.gpus_per_node:
            raise PlanningError(
                f"an actor wants {self.gpus_per_actor} GPUs but a node has only {self.gpus_per_node}: its GPUs must lie in "
                f"one node, so gpus_per_actor may be at most {self.gpus_per_node}"
            )
        if not self.usd_per_gpu_hour >= 0:
            raise PlanningError(f"usd_per_gpu_hour is {self.usd_per_gpu_hour}; a price of 0 or more is needed")

    @property
    def gpus(self) -> int:
        """GPUs in the cluster."""
        return self.nodes * self.gpus_per_node

    @property
    def actors_per_node(self) -> int:
        """Actors that fit into one node."""
        return self.gpus_per_node // self.gpus_per_actor

    @property
    def max_actors(self) -> int:
        """Actors that fit into the cluster."""
        return self.nodes * self.actors_per_node

    @property
    def usd_per_gpu_s(self) -> float:
        """Price of one GPU-second."""
        return self.usd_per_gpu_hour / 3600.0

    def place(self, actor: int) -> tuple[int, tuple[int, ...]]:
        """Node and GPU ids of the actor-th actor, nodes filled one after the other."""
        node, slot = divmod(actor, self.actors_per_node)
        first = node * self.gpus_per_node + slot * self.gpus_per_actor
        return node, tuple(range(first, first + self.gpus_per_actor))
