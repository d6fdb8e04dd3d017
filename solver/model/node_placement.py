"""Packs actors of several sizes into the nodes of the pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from solver.model.cluster import GpuPool

MOST_STEPS = 20_000  # of the search over nodes, where actors do not fit at once


def place(pools: Sequence[GpuPool], actors: Sequence[tuple[int, int]]) -> list[tuple[int, tuple[int, ...]]] | None:
    """Return node and GPU ids, counted through all pools, of actors given as (pool, GPUs); None if they do not fit.

    Larger actors are placed first, each into the fullest node that has room. Where sizes divide one another this finds a
    placement whenever one exists; otherwise a search over nodes follows. Actors of one size fill one node after the other.
    """
    places: list[tuple[int, tuple[int, ...]]] = [(0, ())] * len(actors)
    first_node = first_gpu = 0
    for i, pool in enumerate(pools):
        chosen = sorted((j for j, (p, _) in enumerate(actors) if p == i), key=lambda j: (-actors[j][1], j))
        nodes = _packed([actors[j][1] for j in chosen], pool.nodes, pool.gpus_per_node)
        if nodes is None:
            return None
        taken = [0] * pool.nodes
        for j, node in zip(chosen, nodes, strict=True):
            start = first_gpu + node * pool.gpus_per_node + taken[node]
            taken[node] += actors[j][1]
            places[j] = (first_node + node, tuple(range(start, start + actors[j][1])))
        first_node += pool.nodes
        first_gpu += pool.gpus
    return places


def _packed(sizes: list[int], nodes: int, room: int) -> list[int] | None:
    """Return nodes for actors of falling size, or None."""
    if sum(sizes) > nodes * room or any(size > room for size in sizes):
        return None
    free = [room] * nodes
    chosen: list[int] = []

    def roomy(size: int) -> Iterator[int]:
        """Return one node for every number of free GPUs that is enough, the fullest first."""
        return iter([free.index(gpus) for gpus in sorted(set(free)) if gpus >= size])

    choices: list[Iterator[int]] = []
    for _ in range(len(sizes) + MOST_STEPS):
        if len(chosen) == len(sizes):
            return chosen
        if len(choices) == len(chosen):
            choices.append(roomy(sizes[len(chosen)]))
        node = next(choices[-1], None)
        if node is not None:
            free[node] -= sizes[len(chosen)]
            chosen.append(node)
            continue
        choices.pop()
        if not chosen:
            return None
        free[chosen[-1]] += sizes[len(chosen) - 1]
        chosen.pop()
    return chosen if len(chosen) == len(sizes) else None
