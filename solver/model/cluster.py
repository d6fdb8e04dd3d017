"""Describes the GPUs that a step may use: pools of nodes of one kind and market, GPUs per actor, prices, links.

``Cluster`` is one pool and one actor size. ``MixedCluster`` is several pools; the latency models given with it say which actor
sizes exist. GPU ids count through the nodes of the first pool, then of the second, and so on. An actor's GPUs are all in one
node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.plurals import counted

MOST_GPUS = 1_000_000
"""Of a pool: more than any cluster has; beyond it a typing mistake would take all memory."""


@dataclass(frozen=True)
class GpuPool:
    """A pool of ``nodes`` nodes with ``gpus_per_node`` GPUs of one kind, from one market.

    Attributes:
        usd_per_gpu_hour: price of a GPU for an hour.
        market: a label (``on-demand``, ``preemptible``) that every allocation gets.
        prewarmed: number of actors that need no cold start, because their containers are running.
        node_bytes_per_s, network_bytes_per_s: bandwidth between GPUs of a node and between nodes; None: transfer times come
            from the latency model.

    Raises:
        PlanningError: a count is below 1, there are more than ``MOST_GPUS``, or a price or a bandwidth makes no sense.
    """

    kind: str
    nodes: int
    gpus_per_node: int
    usd_per_gpu_hour: float = 0.0
    market: str = "on-demand"
    prewarmed: int = 0
    node_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise PlanningError(f"the cluster's {name} is {as_given(value)}; a whole number of at least 1 is needed")
            object.__setattr__(self, name, int(value))
        if self.gpus > MOST_GPUS:
            raise PlanningError(
                f"the cluster has {self.nodes:,} nodes of {counted(self.gpus_per_node, 'GPU')}; at most {MOST_GPUS:,} GPUs are "
                "possible"
            )
        if not is_number(self.usd_per_gpu_hour, 0):
            raise PlanningError(f"usd_per_gpu_hour is {as_given(self.usd_per_gpu_hour)}; a finite price of 0 or more is needed")
        if not is_whole(self.prewarmed, 0):
            raise PlanningError(f"prewarmed is {as_given(self.prewarmed)}; a whole number of actors of 0 or more is needed")
        object.__setattr__(self, "prewarmed", int(self.prewarmed))
        for name in ("node_bytes_per_s", "network_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not (is_number(value, 0) and value > 0):
                raise PlanningError(f"{name} is {as_given(value)}; a finite bandwidth above 0 bytes per second is needed")

    @property
    def gpus(self) -> int:
        """GPUs in the pool."""
        return self.nodes * self.gpus_per_node

    @property
    def usd_per_gpu_s(self) -> float:
        """Price of one GPU-second."""
        return self.usd_per_gpu_hour / 3600.0

    def max_actors(self, gpus_per_actor: int) -> int:
        """Return how many actors with this many GPUs fit, each within one node."""
        return self.nodes * (self.gpus_per_node // gpus_per_actor)


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal GPUs: ``nodes`` nodes of ``gpus_per_node`` GPUs; an actor takes ``gpus_per_actor`` GPUs of one node.

    The other attributes are those of ``GpuPool``.

    Raises:
        PlanningError: a count is below 1, an actor does not fit into a node, or the price is negative.

    Example:
        >>> import solver
        >>> solver.Cluster(nodes=2, gpus_per_node=8, gpus_per_actor=2).max_actors
        8
    """

    nodes: int
    gpus_per_node: int
    gpus_per_actor: int
    kind: str = "gpu"
    usd_per_gpu_hour: float = 0.0
    market: str = "on-demand"
    prewarmed: int = 0
    node_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.gpus_per_actor, 1):
            raise PlanningError(
                f"the cluster's gpus_per_actor is {as_given(self.gpus_per_actor)}; a whole number of at least 1 is needed"
            )
        pool = self.pools[0]  # checks the rest
        for name, value in (
            ("nodes", pool.nodes), ("gpus_per_node", pool.gpus_per_node), ("prewarmed", pool.prewarmed),
            ("gpus_per_actor", int(self.gpus_per_actor)),
        ):  # fmt: skip
            object.__setattr__(self, name, value)
        if self.gpus_per_actor > pool.gpus_per_node:
            raise PlanningError(
                f"an actor needs {counted(self.gpus_per_actor, 'GPU')} in one node, but a node has only {self.gpus_per_node}; "
                f"gpus_per_node of {self.gpus_per_actor} or more, or a smaller gpus_per_actor, is needed"
            )

    @property
    def pools(self) -> tuple[GpuPool]:
        """Return the cluster's only pool."""
        return (
            GpuPool(
                self.kind, self.nodes, self.gpus_per_node, self.usd_per_gpu_hour, self.market, self.prewarmed,
                self.node_bytes_per_s, self.network_bytes_per_s,
            ),
        )  # fmt: skip

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
        """Return the node and the GPU ids of an actor, by its index; nodes are filled one after the other."""
        node, slot = divmod(actor, self.actors_per_node)
        first = node * self.gpus_per_node + slot * self.gpus_per_actor
        return node, tuple(range(first, first + self.gpus_per_actor))


@dataclass(frozen=True)
class MixedCluster:
    """A cluster of several pools: GPU kinds, markets, or both. The latency models of the problem state which actor sizes exist.

    Raises:
        PlanningError: there is no pool.
    """

    pools: tuple[GpuPool, ...]

    def __init__(self, pools: Sequence[GpuPool]) -> None:
        if not isinstance(pools, Sequence) or not all(isinstance(pool, GpuPool) for pool in pools):
            raise PlanningError(f"the cluster's pools are {pools!r}; a list of GpuPool is needed")
        if not pools:
            raise PlanningError("the cluster has no pools; at least one is needed")
        object.__setattr__(self, "pools", tuple(pools))

    @property
    def gpus(self) -> int:
        """GPUs in the cluster."""
        return sum(pool.gpus for pool in self.pools)
