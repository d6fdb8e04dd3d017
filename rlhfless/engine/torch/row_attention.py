"""Attention of tokens by themselves, with the same bits in every batch: over a limited number of cells of the cache per call.

The tokens of a pass attend over as many cells as the longest context among them has, and masked cells add zeros. Still the
bits of a short context can change, since kernel libraries split a long sum into equal parts: MKL adds up 384 values (AVX-512)
or 256 (AVX2) in one go, and 416 values as twice 208. So a context of 300 tokens would have other bits beside one of 400.

Here a call attends over at most so many cells that their values are added up in one go. Longer contexts take several calls,
whose results are merged by the logarithms of their sums of exponentials, as flash attention merges blocks (Dao et al., 2022,
algorithm 1). Merging a call of which a token sees no cell changes none of its bits. ``exact_cells`` finds the number of cells:
it tries on this machine whether the bits of a context depend on the cells after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.kv_cache import BLOCK, blocks
from rlhfless.system.cpu_threads import computing_with

CELLS = (512, 384, 256, 128, 64, BLOCK)
"""Numbers of cells per call that are tried, most first; torch's kernel has blocks of 512."""
LANES = 32  # numbers that torch computes side by side; a few last ones of a tensor can have other bits
TRIED_EVERY = 37  # lengths of contexts, in tokens

Attended = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""Queries, keys, values, mask and cells of a call to attended values; see ``attention_by_calls``."""


def row_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return attended values of (n, kv_heads, q, head_dim) queries, those of each of the n tokens by themselves.

    Args:
        keys, values: (n, kv_heads, width, head_dim), on the CPU in float32; width is a multiple of ``BLOCK``.
        mask: (n, 1, 1, width): each token sees its first cells, one or more.
    """
    if keys.shape[2] <= CELLS[-1]:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return attention_by_calls(queries, keys, values, mask, exact_cells(*queries.shape[2:]))


def attention_by_calls(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, cells: int) -> Tensor:
    """Do what ``row_attention`` does with ``cells`` cells per call."""
    width = keys.shape[2]
    if width <= cells:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    count, kv_heads, q, _ = queries.shape
    out, log_sum = _call(queries, keys, values, mask, slice(0, cells))
    for begin in range(cells, width, cells):
        more, log_more = _call(queries, keys, values, mask, slice(begin, begin + cells))
        log_ratio = (log_more - log_sum).masked_fill_(mask[:, :, 0, begin : begin + 1] < 0, -torch.inf)
        log_ratio = F.pad(log_ratio.flatten(1), (0, -kv_heads * q % LANES))
        share = torch.sigmoid(log_ratio)[:, : kv_heads * q].view(count, kv_heads, q, 1)
        out = more.sub_(out).mul_(share).add_(out)
        if begin + cells < width:
            log_sum = log_sum + F.softplus(log_ratio)[:, : kv_heads * q].view(count, kv_heads, q)
    return out


def _call(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Attend over some cells; returns values and the (n, kv_heads, q) logarithms of sums, 0 where no cell is seen."""
    attended, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        queries, keys[:, :, part], values[:, :, part], attn_mask=mask[..., part]
    )
    return attended, log_sum


@cache
def exact_cells(queries: int, head_dim: int) -> int:
    """Return the cells of a call for ``row_attention`` with so many queries per KV head, found in this process once."""
    with torch.inference_mode(), computing_with(1, torch.device("cpu")):
        return most_exact_cells(queries, head_dim, attention_by_calls)


def most_exact_cells(queries: int, head_dim: int, attended: Attended) -> int:
    """Return the most cells per call, of ``CELLS``, with which no bit depends on the cells after a context; else the fewest."""
    return next((cells for cells in CELLS[:-1] if _exact(queries, head_dim, cells, attended)), CELLS[-1])


def _exact(queries: int, head_dim: int, cells: int, attended: Attended) -> bool:
    """Return whether contexts of many lengths, each alone and all together, have the same bits over every number of cells."""
    longest, made = 2 * cells, torch.Generator().manual_seed(0)
    contexts = sorted([*range(1, longest, TRIED_EVERY), cells - 1, cells, cells + 1, longest])
    keys, values = torch.randn(2, 1, 1, longest, head_dim, generator=made).expand(-1, len(contexts), -1, -1, -1)
    q = torch.randn(len(contexts), 1, queries, head_dim, generator=made)
    seen = torch.arange(longest) < torch.tensor(contexts)[:, None]
    mask = torch.where(seen, 0.0, -torch.inf)[:, None, None]

    def over(width: int, rows: slice) -> Tensor:
        return attended(q[rows], keys[rows, :, :width], values[rows, :, :width], mask[rows, ..., :width], cells)

    alone = torch.cat([over(blocks(context), slice(row, row + 1)) for row, context in enumerate(contexts)])
    for width in range(BLOCK, longest + 1, BLOCK):
        fits = sum(context <= width for context in contexts)
        if not torch.equal(over(width, slice(0, fits)), alone[:fits]):
            return False
    return True
