"""Actors of any sizes are placed on nodes whenever they fit."""

from __future__ import annotations

from functools import cache

import numpy as np

import solver
from solver.model.node_placement import place


def fits(sizes: tuple[int, ...], nodes: int, room: int) -> bool:
    """Whether some placement exists: every choice of node for every actor, equal nodes once."""

    @cache
    def rest_fits(actor: int, free: tuple[int, ...]) -> bool:
        if actor == len(sizes):
            return True
        return any(
            rest_fits(actor + 1, tuple(sorted([*free[:k], free[k] - sizes[actor], *free[k + 1 :]])))
            for k in range(nodes)
            if free[k] >= sizes[actor]
        )

    return rest_fits(0, (room,) * nodes)


def test_a_placement_is_found_whenever_there_is_one():
    rng, fit = np.random.default_rng(0), 0
    for _ in range(2000):
        nodes, room = int(rng.integers(1, 6)), int(rng.integers(2, 13))
        left, sizes = nodes * room - int(rng.integers(0, 3)), []
        while left > 0:
            sizes.append(int(rng.integers(1, min(room, left) + 1)))
            left -= sizes[-1]
        pools = [solver.GpuPool("x", nodes, room, 1.0)]
        placed = place(pools, [(0, size) for size in sizes])
        assert (placed is not None) == fits(tuple(sorted(sizes, reverse=True)), nodes, room)
        if placed is not None:
            gpus = [gpu for _, ids in placed for gpu in ids]
            assert len(set(gpus)) == len(gpus)
            assert all(gpu // room == node for node, ids in placed for gpu in ids)
            fit += 1
    assert 1000 < fit < 2000


def test_thousands_of_actors_fill_one_node_after_the_other():
    """Also with a few that are larger, which come first."""
    cluster = solver.Cluster(2000, 4, 2)
    assert place(cluster.pools, [(0, 2)] * 4000) == [cluster.place(i) for i in range(4000)]
    assert place(cluster.pools, [(0, 2)] * 4001) is None
    mixed = place(cluster.pools, [(0, 1)] * 3996 + [(0, 4)] * 1001)
    assert mixed[-1] == (1000, (4000, 4001, 4002, 4003))
    assert mixed[0] == (1001, (4004,))
