"""Defines meshes, strategies and layouts: on which GPUs a model call runs, and how it is cut over them.

A mesh is 1, 2, 4 or 8 aligned consecutive GPUs of a node, or whole consecutive nodes. A strategy cuts a model into ``pp``
stages of layers and ``tp`` parts of every weight, and runs ``dp`` copies of it. Rank r of a mesh has copy r // (tp pp), stage
(r // tp) % pp and part r % tp: so the parts of a weight are on neighbouring GPUs.

A shard of a GPU is a box: an interval of layers times an interval of the width of every weight, both as shares in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from solver.model.errors import PlanningError, as_given, is_whole

MAX_TENSOR_PARALLEL = 8
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Mesh:
    """The ``gpus`` consecutive GPUs from number ``first`` on."""

    first: int
    gpus: int

    @property
    def last(self) -> int:
        """Number of the GPU after its last one."""
        return self.first + self.gpus

    def overlaps(self, other: Mesh) -> bool:
        """Return whether a GPU belongs to both."""
        return self.first < other.last and other.first < self.last


@dataclass(frozen=True, order=True)
class Strategy:
    """A parallel strategy: ``dp`` copies (data parallel), each of ``pp`` pipeline stages, each sharded over ``tp`` GPUs (tensor
    parallel).
    """

    dp: int
    tp: int
    pp: int

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.dp * self.tp * self.pp

    def __str__(self) -> str:
        """Return ``dp x tp x pp`` in numbers, as plans print it."""
        return f"{self.dp}x{self.tp}x{self.pp}"


@dataclass(frozen=True, order=True)
class Layout:
    """Where and how a call runs: a mesh of GPUs, and the parallel strategy on it.

    Raises:
        PlanningError: the strategy needs another number of GPUs than the mesh has.
    """

    mesh: Mesh
    strategy: Strategy

    def __post_init__(self) -> None:
        if self.mesh.gpus != self.strategy.gpus:
            raise PlanningError(
                f"strategy {self.strategy} needs {self.strategy.gpus} GPUs, but the mesh has {self.mesh.gpus}; "
                "dp x tp x pp must be the number of GPUs"
            )


def meshes(gpus: int, gpus_per_node: int) -> tuple[Mesh, ...]:
    """Return all meshes of a cluster, the smallest first.

    Args:
        gpus: 1, 2, 4, or whole nodes. gpus_per_node: 1, 2, 4 or 8.

    Raises:
        PlanningError: the cluster has another number of GPUs.

    Example:
        >>> from solver.layouts import meshes
        >>> [f"{mesh.first}-{mesh.last - 1}" for mesh in meshes(4, 4)]
        ['0-0', '1-1', '2-2', '3-3', '0-1', '2-3', '0-3']
    """
    if not is_whole(gpus_per_node, 1) or gpus_per_node not in (1, 2, 4, 8):
        raise PlanningError(f"gpus_per_node is {as_given(gpus_per_node)}; 1, 2, 4 or 8 is needed")
    if not is_whole(gpus, 1) or (gpus % gpus_per_node and gpus not in (1, 2, 4)):
        raise PlanningError(f"gpus is {as_given(gpus)}; 1, 2, 4 or a multiple of the {gpus_per_node} GPUs of a node is needed")
    sizes = [size for size in (1, 2, 4, 8) if size <= min(gpus, gpus_per_node)]
    parts = [Mesh(first, size) for size in sizes for first in range(0, gpus, size)]
    nodes = gpus // gpus_per_node
    whole = [Mesh(at * gpus_per_node, k * gpus_per_node) for k in range(2, nodes + 1) for at in range(nodes - k + 1)]
    return (*parts, *whole)


def strategies(gpus: int, nodes: int = 1) -> tuple[Strategy, ...]:
    """Return all parallel strategies for this number of GPUs: tp up to 8, and stages of 1, 2, 4, 8 GPUs or whole nodes.

    Args:
        gpus: GPUs of the mesh. nodes: nodes of the cluster; there are at most as many pipeline stages, or 8.

    Example:
        >>> from solver.layouts import strategies
        >>> [str(strategy) for strategy in strategies(4)]
        ['4x1x1', '2x1x2', '1x1x4', '2x2x1', '1x2x2', '1x4x1']
    """
    found = []
    for tp in (1, 2, 4, MAX_TENSOR_PARALLEL):
        if gpus % tp:
            continue
        for pp in range(1, min(gpus // tp, max(nodes, 8)) + 1):
            stage = gpus // pp
            if gpus // tp % pp == 0 and (stage in (1, 2, 4) or stage % 8 == 0):
                found.append(Strategy(gpus // tp // pp, tp, pp))
    return tuple(found)


def missing_share(source: Layout, destination: Layout, gpus_per_node: int) -> tuple[FloatArray, FloatArray]:
    """Return the share of all weights that each GPU of ``destination`` has to receive if ``source`` holds the weights.

    Returns:
        (gpus,) shares that another GPU of its node holds, and (gpus,) shares that have to come from other nodes.
    """
    if source == destination:
        nothing = np.zeros(destination.mesh.gpus)
        return nothing, nothing.copy()
    common = _common(destination, source)
    shards = common.shape[1]
    source_gpu = np.arange(source.mesh.first, source.mesh.last)
    on_node = np.zeros((max(source.mesh.last, destination.mesh.last) // gpus_per_node + 1, shards), bool)
    on_node[source_gpu // gpus_per_node, np.arange(source.mesh.gpus) % shards] = True
    gpu = np.arange(destination.mesh.first, destination.mesh.last)
    of_gpu = common[np.arange(destination.mesh.gpus) % len(common)]
    held = (of_gpu * on_node[gpu // gpus_per_node]).sum(axis=1)  # shards of one layout are equal or disjoint
    inside = (source.mesh.first <= gpu) & (gpu < source.mesh.last)
    own = np.where(inside, of_gpu[np.arange(len(gpu)), (gpu - source.mesh.first) % shards], 0.0)
    size = 1 / len(common)
    return np.maximum(0.0, held - own), np.maximum(0.0, size - held)


def _common(one: Layout, other: Layout) -> FloatArray:
    """Return (shards of one, shards of the other) shares of all weights that two shards have in common.

    A shard's number is stage x tp + part.
    """
    layers = _common_of_cuts(one.strategy.pp, other.strategy.pp)
    width = _common_of_cuts(one.strategy.tp, other.strategy.tp)
    return np.asarray(np.kron(layers, width), np.float64)


@cache
def _common_of_cuts(one: int, other: int) -> FloatArray:
    """Return (one, other) the share of [0, 1] that the i-th of ``one`` equal parts has in common with the j-th of ``other``."""
    first, last = np.arange(one) / one, np.arange(1, one + 1) / one
    other_first, other_last = np.arange(other) / other, np.arange(1, other + 1) / other
    common = np.minimum(last[:, None], other_last) - np.maximum(first[:, None], other_first)
    return np.asarray(np.maximum(common, 0.0), np.float64)
