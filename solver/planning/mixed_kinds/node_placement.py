"""Packs actors of several sizes into the nodes of the pools."""

from __future__ import annotations

from collections.abc import Sequence

from solver.model.cluster import GpuPool


def place(pools: Sequence[GpuPool], actors: Sequence[tuple[int, int]]) -> list[tuple[int, tuple[int, ...]]] | None:
    """Return node and GPU ids, counted through all pools, of actors given as (pool, GPUs); None if they do not fit.

    Larger actors are placed first, each into the fullest node that has room. Where sizes divide one another this finds a
    placement whenever one exists; otherwise a search over nodes follows.
    """
    places: list[tuple[int, tuple[int, ...]]] = [(0, ())] * len(actors)
    first_node = first_gpu = 0
    for i, pool in enumerate(pools):
        chosen = sorted((j for j, (p, _) in enumerate(actors) if p == i), key=lambda j: (-actors[j][1], j))
        nodes = _pack([actors[j][1] for j in chosen], pool.nodes, pool.gpus_per_node)
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


def _pack(sizes: list[int], nodes: int, room: int, most_steps: int = 20_000) -> list[int] | None:
    """Return nodes for actors of falling size, or None."""
    if sum(sizes) > nodes * room or any(size > room for size in sizes):
        return None
    free = [room] * nodes
    chosen: list[int] = []
    steps = 0

    def put(i: int) -> bool:
        nonlocal steps
        if i == len(sizes):
            return True
        steps += 1
        if steps > most_steps:
            return False
        tried: set[int] = set()
        for node in sorted(range(nodes), key=lambda node: free[node]):
            if free[node] >= sizes[i] and free[node] not in tried:
                tried.add(free[node])
                free[node] -= sizes[i]
                chosen.append(node)
                if put(i + 1):
                    return True
                free[node] += sizes[i]
                chosen.pop()
        return False

    return list(chosen) if put(0) else None
