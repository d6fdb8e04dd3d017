"""Attention of tokens by themselves, with the same bits in every batch: over a limited number of cells of the cache per call.

The tokens of a pass attend over as many cells as the longest context among them has, and masked cells add zeros. Still the
bits of a short context can change, since kernel libraries split a long sum into equal parts: MKL adds up 384 values (AVX-512)
or 256 (AVX2) in one go, and 416 values as twice 208. So a context of 300 tokens would have other bits beside one of 400.

Here a call attends over at most ``MAX_CELLS`` cells, whose values are added up in one go. Longer contexts take several calls,
whose results are merged by the logarithms of their sums of exponentials, as flash attention merges blocks (Dao et al., 2022,
algorithm 1). Merging a call of which a token sees no cell changes none of its bits. ``exact_cells`` checks on this machine that
the bits of a context do not depend on the cells after it, and takes fewer cells per call where they do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.kv_cache import BLOCK, blocks
from rlhfless.system.cpu_threads import computing_with

MAX_CELLS = 256
FEWEST_CELLS = BLOCK
LANES = 32  # numbers that torch computes side by side; a few last ones of a tensor can have other bits

Attended = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""Queries, keys, values, mask and cells of a call to attended values; see ``attention_by_calls``."""


def row_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return attended values of (n, kv_heads, q, head_dim) queries, those of each of the n tokens by themselves.

    Args:
        keys, values: (n, kv_heads, width, head_dim), on the CPU in float32; width is a multiple of ``BLOCK``.
        mask: (n, 1, 1, width): each token sees its first cells.
    """
    if keys.shape[2] <= FEWEST_CELLS:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return attention_by_calls(queries, keys, values, mask, exact_cells(*queries.shape[1:]))


def attention_by_calls(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, cells: int) -> Tensor:
    """Do what ``row_attention`` does with ``cells`` cells per call."""
    width = keys.shape[2]
    if width <= cells:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    out, log_sum = _call(queries, keys, values, mask, slice(0, cells))
    for begin in range(cells, width, cells):
        more, log_more = _call(queries, keys, values, mask, slice(begin, begin + cells))
        both = torch.logaddexp(log_sum, log_more)
        out = out * _weights(log_sum - both, out) + more * _weights(log_more - both, out)
        log_sum = both
    return out


def _call(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Attend over some cells; returns values and (n, whole vectors of ``LANES``) logarithms of sums, one for each query."""
    part_mask = mask[..., part]
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, keys[:, :, part], values[:, :, part], attn_mask=part_mask
    )
    log_sum = log_sum.flatten(1).masked_fill(part_mask[:, 0, 0, :1] < 0, -torch.inf)  # else 0 where no cell is seen
    return out, F.pad(log_sum, (0, -log_sum.shape[1] % LANES))


def _weights(log_share: Tensor, out: Tensor) -> Tensor:
    """Return (n, kv_heads, q, 1) factors of values."""
    _, kv_heads, count, _ = out.shape
    return log_share.exp()[:, : kv_heads * count].view(-1, kv_heads, count, 1)


@cache
def exact_cells(kv_heads: int, queries: int, head_dim: int) -> int:
    """Return the cells of a call for ``row_attention`` of this shape, checked in this process once."""
    with torch.inference_mode(), computing_with(1, torch.device("cpu")):
        return most_exact_cells(kv_heads, queries, head_dim, attention_by_calls)


def most_exact_cells(kv_heads: int, queries: int, head_dim: int, attended: Attended) -> int:
    """Return the most cells per call, at most ``MAX_CELLS``, with which no bit depends on the cells after a context.

    It is ``FEWEST_CELLS`` where no number of cells has this property.
    """
    cells = MAX_CELLS
    while cells > FEWEST_CELLS and not _exact(kv_heads, queries, head_dim, cells, attended):
        cells //= 2
    return cells


def _exact(kv_heads: int, queries: int, head_dim: int, cells: int, attended: Attended) -> bool:
    """Return whether contexts of some lengths, each alone and all together, have the same bits over every number of cells."""
    contexts = sorted([1, BLOCK + 1, cells // 2 + 3, cells - BLOCK, cells - 1, cells, cells + 1, cells + cells // 2 + 5])
    made, longest = torch.Generator().manual_seed(0), 2 * cells
    keys, values = torch.randn(2, 1, kv_heads, longest, head_dim, generator=made).expand(-1, len(contexts), -1, -1, -1)
    q = torch.randn(len(contexts), kv_heads, queries, head_dim, generator=made)
    mask = torch.zeros(len(contexts), 1, 1, longest)
    for row, context in enumerate(contexts):
        mask[row, ..., context:] = -torch.inf

    def over(width: int, rows: slice) -> Tensor:
        return attended(q[rows], keys[rows, :, :width], values[rows, :, :width], mask[rows, ..., :width], cells)

    alone = torch.cat([over(blocks(context), slice(row, row + 1)) for row, context in enumerate(contexts)])
    for width in range(BLOCK, longest + 1, BLOCK):
        fits = sum(context <= width for context in contexts)
        if not torch.equal(over(width, slice(0, fits)), alone[:fits]):
            return False
    return True
