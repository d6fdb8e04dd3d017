"""Weights that processes (gloo) move between layouts: bit-equal there and back, and the bytes that step plans charge.

The arithmetic of moves has an independent evaluator: it gives every number of a weight its index and asks who has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import gloo_ranks  # noqa: E402

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training import reallocate  # noqa: E402
from rlhfless.training.demonstrations.processes import run_on_ranks  # noqa: E402
from rlhfless.training.demonstrations.reallocation import Moves, Reallocation, Shards, Weight  # noqa: E402
from rlhfless.training.models.tiny_model import tiny_qwen2  # noqa: E402
from solver.layouts import Layout, Mesh, Strategy, missing_share  # noqa: E402

SHAPES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)
RANKS = (1, 2, 3, 4, 6, 8)


def layout(dp: int, tp: int) -> Strategy:
    return Strategy(dp, tp, 1)


@st.composite
def two_layouts(draw: st.DrawFn) -> tuple[Shards, Shards]:
    """Two layouts of the same weights, of several number formats, on the same ranks; a weight may be whole in one of them."""
    weights = {f"w{i}": Weight(shape, draw(st.sampled_from([2, 4, 8]))) for i, shape in enumerate(draw(SHAPES))}
    dims = {name: draw(st.integers(0, len(weight.shape) - 1)) for name, weight in weights.items()}
    ranks = draw(st.sampled_from(RANKS))
    sizes = st.sampled_from([tp for tp in range(1, ranks + 1) if ranks % tp == 0])
    found = []
    for tp in (draw(sizes), draw(sizes)):
        found.append(Shards(weights, {name: dim for name, dim in dims.items() if draw(st.booleans())}, ranks // tp, tp))
    return found[0], found[1]


def held(shards: Shards, name: str, rank: int) -> Any:
    """The indices of a weight that a rank holds, as ``torch.chunk`` cuts it."""
    weight = shards.weights[name]
    indices = torch.arange(math.prod(weight.shape)).view(weight.shape)
    return gloo_ranks.cut(shards, name, indices, rank)


@given(two_layouts())
@settings(max_examples=150)
def test_every_rank_receives_what_it_lacks_once_from_one_that_has_it(both: tuple[Shards, Shards]) -> None:
    source, destination = both
    moves = Moves.of(source, destination)
    for name, weight in source.weights.items():
        indices = torch.arange(math.prod(weight.shape)).view(weight.shape)
        for shards in both:
            assert all(shards.shape(name, rank) == tuple(held(shards, name, rank).shape) for rank in range(shards.ranks))
        for rank in range(source.ranks):
            has = set(held(source, name, rank).flatten().tolist())
            needs = set(held(destination, name, rank).flatten().tolist())
            got: list[int] = []
            for piece in moves.pieces:
                if (piece.name, piece.receiver) == (name, rank):
                    sent = indices.narrow(piece.dim, piece.start, piece.stop - piece.start).flatten().tolist()
                    assert set(sent) <= set(held(source, name, piece.sender).flatten().tolist())
                    assert piece.sender != rank
                    got += sent
            assert sorted(got) == sorted(needs - has)


@given(two_layouts())
@settings(max_examples=80)
def test_received_bytes_are_what_is_lacking_and_senders_of_the_same_part_are_balanced(both: tuple[Shards, Shards]) -> None:
    source, destination = both
    moves = Moves.of(source, destination)
    for rank in range(source.ranks):
        lacking = 0
        for name, weight in source.weights.items():
            has, needs = (set(held(shards, name, rank).flatten().tolist()) for shards in both)
            lacking += len(needs - has) * weight.item_bytes
        assert moves.received_bytes[rank] == lacking
    assert sum(moves.sent_bytes) == sum(moves.received_bytes)
    largest = max(map(moves.bytes_of, moves.pieces), default=0)
    for part in range(source.tp):
        sent = moves.sent_bytes[part :: source.tp]
        assert max(sent) - min(sent) <= largest
    assert sum(Moves.of(source, source).received_bytes) == 0


@given(st.sampled_from([2, 4, 8]), st.data())
@settings(max_examples=30)
def test_bytes_between_layouts_are_those_that_step_plans_charge(ranks: int, data: st.DataObject) -> None:
    """Where every weight can be cut evenly, ``solver.layouts.missing_share`` is the share of the weights that is received."""
    splits = st.sampled_from([(ranks // tp, tp) for tp in (1, 2, 4, 8) if ranks % tp == 0])
    (dp, tp), (new_dp, new_tp) = data.draw(splits), data.draw(splits)
    weights = {"up": Weight((16, 4)), "down": Weight((4, 8)), "bias": Weight((8,))}
    dims = {"up": 0, "down": 1, "bias": 0}
    moves = Moves.of(Shards(weights, dims, dp, tp), Shards(weights, dims, new_dp, new_tp))
    mesh, total = Mesh(0, ranks), sum(weight.total_bytes for weight in weights.values())
    near, far = missing_share(Layout(mesh, layout(dp, tp)), Layout(mesh, layout(new_dp, new_tp)), 8)
    assert far.sum() == 0
    assert moves.received_bytes == pytest.approx((near * total).tolist())


def check(moves: Sequence[Reallocation], path: Sequence[Strategy], tolerance: float = 1e-4) -> None:
    """Moves follow the path and come back: bit-equal weights, the bytes of plans, and the logits of the whole model."""
    assert [(move.source, move.destination) for move in moves] == list(zip(path, [*path[1:], path[0]], strict=True))
    for move in moves:
        assert move.bit_equal, move
        assert move.received_bytes == pytest.approx(move.planned_bytes), move
        assert move.logits_difference < tolerance, move
    assert any(sum(move.received_bytes) > 0 for move in moves)


@pytest.mark.full
def test_two_processes_move_a_model_to_tensor_parallel_parts_and_back() -> None:
    path = [layout(2, 1), layout(1, 2)]
    check(reallocate(path), path)


@pytest.mark.full
def test_four_processes_move_a_model_along_a_path_and_back() -> None:
    """Tied embeddings of an even vocabulary, which are cut, too."""
    path = [layout(4, 1), layout(2, 2), layout(1, 4), layout(2, 2), layout(1, 4)]
    check(reallocate(path, model(vocabulary=40)), path)


@pytest.mark.full
def test_embeddings_of_their_own_and_a_shorter_number_format_are_moved() -> None:
    path = [layout(1, 2), layout(2, 1)]
    check(reallocate(path, model(vocabulary=40, tied=False)), path)
    check(reallocate(path, model(vocabulary=37).bfloat16()), path, tolerance=0.2)


def model(vocabulary: int, tied: bool = True) -> Any:
    """A small Qwen2 whose biases are not zero; a vocabulary that ``tp`` does not divide stays whole."""
    made = tiny_qwen2(CharTokenizer(), hidden=64, heads=8, kv_heads=4, intermediate=96)
    made.config.vocab_size, made.config.tie_word_embeddings = vocabulary, tied
    torch.manual_seed(1)
    found = type(made)(made.config).eval()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return found


@pytest.mark.full
def test_uneven_weights_of_any_number_format_are_bit_equal_there_and_back() -> None:
    for ranks in (2, 4):
        assert run_on_ranks("reallocation", ranks, gloo_ranks.there_and_back, (ranks, list(range(30)))) == [[]] * ranks


def test_what_does_not_fit_is_refused_before_a_process_starts() -> None:
    with refused(InputError, "path", "1"):
        reallocate([layout(2, 1)])
    with refused(InputError, "1x1x2", "2 pipeline stages"):
        reallocate([layout(2, 1), Strategy(1, 1, 2)])
    with refused(InputError, "4x1x1", "2 ranks"):
        reallocate([layout(2, 1), layout(4, 1)])
    narrow = tiny_qwen2(CharTokenizer(), heads=4, kv_heads=2)
    with refused(InputError, "tp is 4", "2 key-value heads", "'qwen2'"):
        reallocate([layout(4, 1), layout(1, 4)], narrow)
    narrow._tp_plan = {}
    with refused(InputError, "'qwen2'", "no tensor-parallel plan"):
        reallocate([layout(2, 1), layout(1, 2)], narrow)
