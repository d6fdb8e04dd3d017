"""Attention of decode passes over the blocks in use of a ``BlockCache``, by torch's FlexAttention.

A block mask names the blocks of each row. Full ones are read without a mask, and of the last one the tokens up to the query.
So a pass reads what its rows hold, not the batch's widest row. On a GPU the kernel is compiled. On the CPU torch computes the
same masks without skipping anything, which is slower than ``attention.py``: there it is for tests.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from rlhfless.engine.torch.attention import PLAIN, AttentionForm
from rlhfless.engine.torch.block_cache import BlockCache

QUERY_BLOCK = 128  # of the mask; a row has fewer queries
SHAPES = 64  # for which a kernel may be compiled
UNFUSED = "flex_attention called without torch.compile"


def block_mask(cache: BlockCache, positions: Tensor, width: int) -> BlockMask:
    """Return the blocks that the first rows of the cache attend to.

    Args:
        positions: (R, q) of the queries of each row, ascending; beyond ``width`` they are padding, which may see anything.
        width: cells, more than every position of a response.
    """
    size, count = cache.block_tokens, -(-width // cache.block_tokens)
    table = cache.table[: len(positions), :count]
    real = torch.where(positions < width, positions, -1)
    full = (positions[:, 0].clamp(max=width - 1) + 1) // size * (real[:, 0] >= 0)
    partial = real.amax(1) // size + 1 - full
    places = (full[:, None] + torch.arange(count, device=table.device)).clamp(max=count - 1)
    owner, place = cache.owner, cache.place

    def sees(row: Tensor, head: Tensor, query: Tensor, cell: Tensor) -> Tensor:
        block = cell // size
        return (owner[block] == row) & (place[block] * size + cell % size <= positions[row, query])

    return BlockMask.from_kv_blocks(
        _counts(partial), _indices(table.gather(1, places), cache), _counts(full), _indices(table, cache), (QUERY_BLOCK, size),
        sees, (positions.shape[1], len(owner) * size), compute_q_blocks=False,
    )  # fmt: skip


def _counts(blocks: Tensor) -> Tensor:
    return blocks.to(torch.int32)[:, None, None]


def _indices(blocks: Tensor, cache: BlockCache) -> Tensor:
    """Return a list of blocks for each row; the CPU's kernel asks for lists as long as the pool."""
    if cache.data.device.type == "cpu":
        blocks = torch.nn.functional.pad(blocks, (0, len(cache.owner) - blocks.shape[1]))
    return blocks.to(torch.int32)[:, None, None]


def block_attention(cache: BlockCache, positions: Tensor, width: int) -> Callable[[int, Tensor, AttentionForm], Tensor]:
    """Return the attention of a pass over R rows, as ``RowModel.compute`` takes it; arguments are those of ``block_mask``."""
    mask, (rows, columns) = block_mask(cache, positions, width), positions.shape
    call = _compiled() if cache.data.device.type == "cuda" else _unfused

    def attend(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
        assert form is PLAIN, "models with other forms have rows of fixed length"
        _, kv_heads, shared, dim = queries.shape
        by_head = queries.view(rows, columns, kv_heads * shared, dim).transpose(1, 2)
        out = call(by_head, *cache.pool(layer), block_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(queries.shape)

    return attend


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    """Return the compiled kernel; a shape for which it cannot be compiled is an error, not a slower way."""
    compiled = torch.compile(flex_attention, fullgraph=True)
    return lambda *tensors, **how: _with_room_for_shapes(compiled, *tensors, **how)


def _unfused(*tensors: Tensor, **how: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=UNFUSED)
        return _with_room_for_shapes(flex_attention, *tensors, **how)


def _with_room_for_shapes(call: Callable[..., Any], *tensors: Tensor, **how: Any) -> Tensor:
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        out: Tensor = call(*tensors, **how)
    return out
