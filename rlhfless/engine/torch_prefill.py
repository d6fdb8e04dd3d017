"""Prefill: passes over many tokens of some rows, each token a row of the pass.

Knows the model's pass and the KV cache; nothing of responses or clocks. Where bits are promised every token attends by itself,
as decoding would have it; elsewhere a whole segment attends at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.kv_cache import KVCache, blocks

if TYPE_CHECKING:
    from rlhfless.engine.torch_forward import RowModel

CPU_PASS_TOKENS = 256  # of one pass; small, as every row holds its scores over its whole context
GPU_PASS_TOKENS = 8192


class Segment(NamedTuple):
    """Tokens of one cache row that follow each other: ``tokens`` (T,) from position ``start`` on."""

    row: int
    start: int
    tokens: Tensor


def prefill(model: RowModel, cache: KVCache, segments: Sequence[Segment]) -> None:
    """Compute keys and values of ``segments``, whose rows hold everything before them; many segments share a pass."""
    most = GPU_PASS_TOKENS if model.device.type == "cuda" else CPU_PASS_TOKENS
    batch: list[Segment] = []
    room = most
    for row, start, tokens in segments:
        at = 0
        while at < len(tokens):
            piece = tokens[at : at + room]
            batch.append(Segment(row, start + at, piece))
            at, room = at + len(piece), room - len(piece)
            if not room:
                _pass(model, cache, batch)
                batch, room = [], most
    if batch:
        _pass(model, cache, batch)


def _pass(model: RowModel, cache: KVCache, segments: Sequence[Segment]) -> None:
    tokens = torch.cat([s.tokens for s in segments])
    for hook in model.hooks:
        hook("prefill", tokens)
    count, device, stable = len(tokens), model.device, model.bit_stable
    padding = (0, model.padded(count, CPU_PASS_TOKENS) - count if stable else 0)
    positions = torch.cat([torch.arange(s.start, s.start + len(s.tokens), device=device) for s in segments])
    rows = torch.cat([torch.full((len(s.tokens),), s.row, device=device) for s in segments])
    tokens, rows = F.pad(tokens, padding), F.pad(rows, padding, value=segments[-1].row)
    positions = F.pad(positions, padding, value=cache.spare)
    attend_segment = tokens_by_themselves if stable else _causally
    parts, begin = [], 0
    for i, s in enumerate(segments):
        own = slice(begin, begin + len(s.tokens) + (padding[1] if i == len(segments) - 1 else 0))
        width = s.start + len(s.tokens)
        width = blocks(width) if stable else width
        parts.append((s.row, width, own, None if s.start == 0 and not stable else cache.mask(positions[own], width)))
        begin = own.stop

    def attend(layer: int, queries: Tensor) -> Tensor:
        return torch.cat([attend_segment(cache, layer, row, width, queries[own], mask) for row, width, own, mask in parts])

    model.compute(cache, tokens, positions, rows, attend)


def tokens_by_themselves(cache: KVCache, layer: int, row: int, width: int, queries: Tensor, mask: Tensor | None) -> Tensor:
    """Every token as decoding would have it: the same kernel, one row of a batch for each.

    Args:
        row: of the cache, of which the first ``width`` cells are attended over.
        queries: (n, kv_heads, queries of each, head_dim); mask: (n, 1, 1, width).
    """
    read = cache.read(layer, slice(row, row + 1), width)
    keys, values = (t.expand(len(queries), -1, -1, -1) for t in read)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def _causally(cache: KVCache, layer: int, row: int, width: int, queries: Tensor, mask: Tensor | None) -> Tensor:
    """The whole segment in one call; without a mask it begins its row."""
    count, kv_heads, shared, dim = queries.shape
    keys, values = cache.read(layer, slice(row, row + 1), width)
    q = queries.reshape(1, count, kv_heads * shared, dim).transpose(1, 2)
    mask = None if mask is None else mask[:, 0, 0]
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return out.transpose(1, 2).reshape(queries.shape)
