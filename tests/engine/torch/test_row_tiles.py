"""Products in tiles of rows: the same bits at every place and beside all others, also where kernels promise nothing."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402
from torch_models import EOS, VOCAB, tiny_model  # noqa: E402

from rlhfless.engine.protocol import Request  # noqa: E402
from rlhfless.engine.torch.engine import TorchEngine  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel, one_thread  # noqa: E402
from rlhfless.engine.torch.row_attention import (  # noqa: E402
    CELLS,
    attention_by_calls,
    most_exact_cells,
    row_attention,
)
from rlhfless.engine.torch.row_tiles import TILE, RowTiles  # noqa: E402
from solver import LatencyModel  # noqa: E402
from solver.model.admission import Admission  # noqa: E402

SHAPES = [(64, 64), (100, 36), (512, 128), (256, 1024), (1152, 896)]
COUNTS = [*range(1, 36), 43, 63, 64, 65, 100, 128, 200, 256, 300]
CPU = torch.device("cpu")


def by_neighbours(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A kernel whose rows depend on the rows beside them, in the last bits."""
    return F.linear(x, weight, bias) + 1e-6 * x.sum()


def by_place(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A kernel whose rows depend on where they stand in the call."""
    return F.linear(x, weight, bias) * (1 + 1e-6 * torch.arange(len(x))[:, None])


def by_size(x: Tensor, weight: Tensor, bias: Tensor | None, largest: int) -> Tensor:
    """A kernel that adds up in another order in calls above a size, and in those of an odd number of rows."""
    return F.linear(x, weight, bias) + 1e-6 * (len(x) > largest or len(x) % 2)


def weights(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(outputs)
    return torch.randn(outputs, inputs, generator=made), torch.randn(outputs, generator=made)


KERNELS = [
    *((F.linear, None, shape) for shape in SHAPES),
    (by_neighbours, 1, SHAPES[0]),
    (by_place, 1, SHAPES[0]),
    (partial(by_size, largest=24), TILE, SHAPES[0]),
]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("product", "tile", "shape"), KERNELS)
@torch.inference_mode()
def test_a_row_has_the_same_bits_at_every_place_and_beside_all_others(
    product: Callable[..., Tensor], tile: int | None, shape: tuple[int, int], with_bias: bool
) -> None:
    """``tile`` is what a kernel allows; torch's own allow what they allow."""
    weight, bias = weights(*shape)
    tiles, given, rng = RowTiles(product), bias if with_bias else None, np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(300, shape[1])).astype(np.float32))
    with one_thread(CPU):
        assert tiles.tile(weight, given) in ((TILE, 1) if tile is None else (tile,))
        alone = torch.cat([tiles(row[None], weight, given) for row in x])
        torch.testing.assert_close(alone, F.linear(x, weight, given), atol=2e-3, rtol=1e-3)
        for count in COUNTS:
            chosen = rng.permutation(300)[:count]
            assert torch.equal(tiles(x[chosen], weight, given), alone[chosen]), count


@pytest.mark.parametrize(("largest", "count", "calls"), [(24, 24, 1), (24, 25, 2), (24, 100, 5), (256, 100, 1), (16, 64, 4)])
@torch.inference_mode()
def test_a_batch_goes_in_the_fewest_calls_that_were_tried(largest: int, count: int, calls: int) -> None:
    sizes: list[int] = []

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        sizes.append(len(x))
        return by_size(x, weight, bias, largest)

    (weight, _), tiles = weights(64, 64), RowTiles(noted)
    tiles(torch.ones(count, 64), weight, None)
    sizes.clear()
    tiles(torch.ones(count, 64), weight, None)
    assert len(sizes) == calls, "what was tried once is remembered"
    assert all(size <= largest and size % 2 == 0 for size in sizes)
    assert count <= sum(sizes)


def test_another_process_tries_its_own_kernels() -> None:
    weight, _ = weights(64, 64)
    tiles = RowTiles(by_neighbours)
    assert tiles.tile(weight, None) == 1
    sent = pickle.loads(pickle.dumps(tiles))
    before = torch.get_num_threads()
    assert sent.tile(weight, None) == 1, "it has the product, and tries it"
    assert torch.get_num_threads() == before
    assert pickle.loads(pickle.dumps(RowTiles())).tile(weight, None) in (TILE, 1)


@pytest.mark.parametrize("product", [by_neighbours, by_place, partial(by_size, largest=16)])
def test_tokens_are_the_same_in_every_batch_of_kernels_that_break_the_promise(product: Callable[..., Tensor]) -> None:
    rng = np.random.default_rng(0)
    model = DecoderModel(tiny_model())
    model.tiles = RowTiles(product)
    asked = [Request(i, n, 20, prompt_ids=rng.integers(1, VOCAB, n), seed=i) for i, n in enumerate([3, 30, 9, 17, 5])]

    def run(*batches: list[Request]) -> dict[int, tuple[list[int], list[float]]]:
        found = {}
        for batch in batches:
            engine = TorchEngine(model, Admission(5, 10**6), LatencyModel("test", 1, 1.0, 0.1), eos_id=EOS)
            engine.add(batch)
            found |= {c.response: (c.token_ids.tolist(), c.logprobs.tolist()) for c in engine.advance(math.inf).completions}
        return found

    assert run(asked) == run(*([request] for request in asked)) == run(asked[:2], asked[:1:-1])


ATTENTION_SHAPES = [(2, 2, 16), (2, 7, 64), (4, 1, 32), (1, 8, 16), (3, 5, 24)]


@pytest.mark.parametrize("shape", ATTENTION_SHAPES)
@torch.inference_mode()
def test_attention_has_the_same_bits_over_every_width_and_beside_all_others(shape: tuple[int, int, int]) -> None:
    kv_heads, queries, dim = shape
    longest, rng = 2 * CELLS[0], np.random.default_rng(0)
    contexts = np.sort(np.concatenate([rng.integers(1, longest, 12), [1, 255, 256, 257, 512, 513, longest]]))
    made = torch.Generator().manual_seed(0)
    q = torch.randn(len(contexts), kv_heads, queries, dim, generator=made)
    keys, values = torch.randn(2, len(contexts), kv_heads, longest, dim, generator=made)
    mask = torch.where(torch.arange(longest) < torch.from_numpy(contexts)[:, None], 0.0, -torch.inf)[:, None, None]

    def over(width: int, rows: slice) -> Tensor:
        return row_attention(q[rows], keys[rows, :, :width], values[rows, :, :width], mask[rows, ..., :width])

    with one_thread(CPU):
        ends = [-(-int(context) // 32) * 32 for context in contexts]
        alone = torch.cat([over(end, slice(row, row + 1)) for row, end in enumerate(ends)])
        expected = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-4)
        for width in range(32, longest + 1, 32):
            fits = sum(end <= width for end in ends)
            assert torch.equal(over(width, slice(0, fits)), alone[:fits]), width


@pytest.mark.parametrize(("most", "chosen"), [(200, 128), (100, 64), (8, CELLS[-1])])
def test_calls_have_as_many_cells_as_kernels_add_up_in_one_go(most: int, chosen: int) -> None:
    """The bits of this kernel depend on all cells where a call has more than ``most``."""

    def attended(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, cells: int) -> Tensor:
        return attention_by_calls(q, keys, values, mask, cells) + 1e-6 * keys.shape[2] * (cells > most)

    with one_thread(CPU):
        assert most_exact_cells(2, 16, attended) == chosen
