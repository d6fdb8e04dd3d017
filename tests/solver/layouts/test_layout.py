"""Meshes, strategies and shards: their numbers, and what a reallocation lacks, against a grid of cells."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.layouts.layout import Layout, Mesh, Strategy, meshes, missing_share, strategies
from solver.model.errors import PlanningError


@pytest.mark.parametrize(("gpus", "options"), [(8, 22), (16, 57), (32, 164)])
def test_the_number_of_options_on_meshes_of_half_a_node_or_more(gpus: int, options: int) -> None:
    found = [s for mesh in meshes(gpus, 8) if mesh.gpus >= 4 for s in strategies(mesh.gpus, gpus // 8)]
    assert len(found) == options


def test_strategies_use_every_gpu_once() -> None:
    for gpus in (1, 2, 4, 8, 16, 24, 32, 64):
        found = strategies(gpus, gpus // 8)
        assert len(set(found)) == len(found)
        assert all(strategy.gpus == gpus and strategy.tp <= 8 for strategy in found)


@pytest.mark.parametrize(("gpus", "per_node"), [(3, 8), (12, 8), (0, 8), (-8, 8), (8, 3), (2.5, 8), ("8", 8)])
def test_other_clusters_are_refused(gpus: object, per_node: object) -> None:
    with pytest.raises(PlanningError, match="is needed"):
        meshes(gpus, per_node)  # type: ignore[arg-type]


def test_a_strategy_needs_its_mesh() -> None:
    with pytest.raises(PlanningError, match="needs 4 GPUs, but the mesh has 8"):
        Layout(Mesh(0, 8), Strategy(1, 2, 2))


def cells(layout: Layout, gpu: int) -> set[tuple[int, int]]:
    """The cells of an 8 x 8 grid of (layer, width) that a GPU holds."""
    if not layout.mesh.first <= gpu < layout.mesh.last:
        return set()
    rank, tp, pp = gpu - layout.mesh.first, layout.strategy.tp, layout.strategy.pp
    part, stage = rank % tp, rank // tp % pp
    layers = range(round(8 * stage / pp), round(8 * (stage + 1) / pp))
    return set(product(layers, range(round(8 * part / tp), round(8 * (part + 1) / tp))))


LAYOUTS = [Layout(mesh, strategy) for mesh in meshes(16, 8) for strategy in strategies(mesh.gpus, 2)]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS))
def test_what_is_missing_is_what_a_grid_of_cells_lacks(source: Layout, destination: Layout) -> None:
    near, far = missing_share(source, destination, 8)
    for rank in range(destination.mesh.gpus):
        gpu = destination.mesh.first + rank
        needed, own = cells(destination, gpu), cells(source, gpu)
        on_node = set().union(*(cells(source, other) for other in range(gpu // 8 * 8, gpu // 8 * 8 + 8)))
        assert near[rank] == pytest.approx(len(needed & (on_node - own)) / 64)
        assert far[rank] == pytest.approx(len(needed - on_node) / 64)


def test_every_copy_holds_the_whole_model() -> None:
    for layout in LAYOUTS:
        held = [cells(layout, layout.mesh.first + rank) for rank in range(layout.mesh.gpus)]
        assert sum(len(part) for part in held) == 64 * layout.strategy.dp
        assert len(set().union(*held)) == 64
        assert all(held)
