"""A reallocation as arithmetic: boxes cover every weight, each rank receives just what it lacks, and senders are balanced.

The independent evaluator gives every number of a weight its index and asks who has it: ``torch.chunk`` cuts, sets compare.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.reallocation.moves import Moves  # noqa: E402
from rlhfless.training.reallocation.shards import (  # noqa: E402
    Shards,
    Weight,
    fully_sharded,
    lengths,
    tensor_parallel,
    within,
)
from solver.dataflow import Layout, Mesh, Strategy, missing_share  # noqa: E402

SHAPES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)
SPLITS = [(ranks // tp, tp) for ranks in (1, 2, 3, 4, 6, 8) for tp in range(1, ranks + 1) if ranks % tp == 0]


def held(shards: Shards, name: str, rank: int) -> Any:
    """The indices of a weight that a rank holds, as ``torch.chunk`` cuts it."""
    weight = shards.weights[name]
    indices = torch.arange(math.prod(weight.shape)).view(weight.shape)
    if name not in shards.dims:
        return indices
    cut = torch.chunk(indices, shards.parts, dim=shards.dims[name])
    part = shards.part_of[rank]
    return cut[part] if part < len(cut) else indices.narrow(shards.dims[name], 0, 0)


@st.composite
def layouts(draw: st.DrawFn, ranks: int, weights: dict[str, Weight]) -> Shards:
    """FSDP2 over all ranks, or copies in parts that are cut along any dimension or not at all."""
    if draw(st.booleans()):
        return fully_sharded(weights, ranks)
    dims = {name: draw(st.none() | st.integers(0, len(weight.shape) - 1)) for name, weight in weights.items()}
    tp = draw(st.sampled_from([tp for dp, tp in SPLITS if dp * tp == ranks]))
    return tensor_parallel(weights, {name: dim for name, dim in dims.items() if dim is not None}, ranks // tp, tp)


@st.composite
def two_layouts(draw: st.DrawFn) -> tuple[Shards, Shards]:
    """Two layouts of the same weights, of two number formats, on the same ranks."""
    weights = {f"w{i}": Weight(shape, draw(st.sampled_from([2, 4, 8]))) for i, shape in enumerate(draw(SHAPES))}
    ranks = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    return draw(layouts(ranks, weights)), draw(layouts(ranks, weights))


@given(two_layouts())
@settings(max_examples=150)
def test_every_rank_receives_what_it_lacks_once_from_one_that_has_it(both: tuple[Shards, Shards]) -> None:
    source, destination = both
    moves = Moves.of(source, destination)
    for name, weight in source.weights.items():
        indices = torch.arange(math.prod(weight.shape)).view(weight.shape)
        for shards in both:  # boxes are the chunks of torch, and all ranks together have the whole weight
            boxes = [indices[within(shards.box(name, r), tuple((0, n) for n in weight.shape))] for r in range(shards.ranks)]
            assert all(torch.equal(box, held(shards, name, r)) for r, box in enumerate(boxes))
            assert torch.equal(torch.cat([box.flatten() for box in boxes]).unique(), indices.flatten())
        for rank in range(source.ranks):
            has = set(held(source, name, rank).flatten().tolist())
            needs = set(held(destination, name, rank).flatten().tolist())
            got: list[int] = []
            for piece in moves.pieces:
                if (piece.name, piece.receiver) == (name, rank):
                    sent = indices[within(piece.box, tuple((0, n) for n in weight.shape))].flatten().tolist()
                    assert set(sent) <= set(held(source, name, piece.sender).flatten().tolist())
                    assert piece.sender != rank
                    got += sent
            assert sorted(got) == sorted(needs - has)


@given(two_layouts())
@settings(max_examples=80)
def test_received_bytes_are_the_formula_and_senders_of_the_same_part_are_balanced(both: tuple[Shards, Shards]) -> None:
    """What a rank receives is its new box without what its old one has of it, times the bytes of a number."""
    source, destination = both
    moves = Moves.of(source, destination)
    for rank in range(source.ranks):
        formula = 0
        for name, weight in source.weights.items():
            shared = math.prod(
                max(0, min(b, d) - max(a, c))
                for (a, b), (c, d) in zip(source.box(name, rank), destination.box(name, rank), strict=True)
            )
            formula += (math.prod(lengths(destination.box(name, rank))) - shared) * weight.item_bytes
        assert moves.received_bytes[rank] == formula
    assert sum(moves.sent_bytes) == sum(moves.received_bytes)
    largest = max(map(moves.bytes_of, moves.pieces), default=0)
    for ranks in source.ranks_of:
        sent = [moves.sent_bytes[rank] for rank in ranks]
        assert max(sent) - min(sent) <= largest
    assert sum(Moves.of(source, source).received_bytes) == 0


@given(st.sampled_from([2, 4, 8]), st.data())
@settings(max_examples=30)
def test_bytes_between_parallel_layouts_are_those_that_step_plans_charge(ranks: int, data: st.DataObject) -> None:
    """Where every weight can be cut evenly, ``solver.dataflow.missing_share`` is the share of the weights that is received."""
    splits = st.sampled_from([(ranks // tp, tp) for tp in (1, 2, 4, 8) if ranks % tp == 0])
    (dp, tp), (new_dp, new_tp) = data.draw(splits), data.draw(splits)
    weights = {"up": Weight((16, 4)), "down": Weight((4, 8)), "bias": Weight((8,))}
    dims = {"up": 0, "down": 1, "bias": 0}
    moves = Moves.of(tensor_parallel(weights, dims, dp, tp), tensor_parallel(weights, dims, new_dp, new_tp))
    mesh, total = Mesh(0, ranks), sum(weight.total_bytes for weight in weights.values())
    near, far = missing_share(Layout(mesh, Strategy(dp, tp, 1)), Layout(mesh, Strategy(new_dp, new_tp, 1)), 8)
    assert far.sum() == 0
    assert moves.received_bytes == pytest.approx((near * total).tolist())


def test_models_that_differ_are_refused_by_the_first_weight_that_differs() -> None:
    one = {"a": Weight((4, 2)), "b": Weight((3,))}
    for other, named in (
        ({"a": Weight((4, 2))}, ["'b'", "source only"]),
        ({**one, "c": Weight((1,))}, ["'c'", "destination only"]),
        ({"a": Weight((4, 3)), "b": Weight((5,))}, ["'a'", "(4, 2)", "(4, 3)"]),
        ({"a": Weight((4, 2)), "b": Weight((3,), 2)}, ["'b'", "4", "2"]),
    ):
        with refused(InputError, *named):
            Moves.of(fully_sharded(one, 2), fully_sharded(other, 2))
    with refused(InputError, "2 ranks", "to 4"):
        Moves.of(fully_sharded(one, 2), fully_sharded(one, 4))
    with refused(InputError, "'a'", "dimension 2"):
        tensor_parallel(one, {"a": 2}, 1, 2)
    with refused(InputError, "'z'"):
        tensor_parallel(one, {"z": 0}, 1, 2)
    with refused(InputError, "(0, 2)"):
        Shards(one, {}, (0, 2))
