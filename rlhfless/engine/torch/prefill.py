"""Prefill: passes over many tokens of some rows, each token a row of the pass.

Where bit-identical results are promised every token attends by itself, as in decoding; elsewhere a whole segment attends at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.kv_cache import KVCache, blocks
from rlhfless.engine.torch.model import DecoderModel

CPU_PASS_TOKENS = 256  # of one pass; small, as every row holds its scores over its whole context
GPU_PASS_TOKENS = 8192
PIECE_TOKENS = 64  # that attend over as many cells; fewer would cost more calls than they save


class Segment(NamedTuple):
    """Consecutive tokens of one cache row: ``tokens`` (T,) from position ``start`` on."""

    row: int
    start: int
    tokens: Tensor


def prefill(model: DecoderModel, cache: KVCache, segments: Sequence[Segment]) -> None:
    """Compute keys and values of ``segments``, whose rows already contain everything before them; many segments share a
    pass.
    """
    pass_tokens = GPU_PASS_TOKENS if model.device.type == "cuda" else CPU_PASS_TOKENS
    batch: list[Segment] = []
    room = pass_tokens
    for row, start, tokens in segments:
        at = 0
        while at < len(tokens):
            piece = tokens[at : at + room]
            batch.append(Segment(row, start + at, piece))
            at, room = at + len(piece), room - len(piece)
            if not room:
                _pass(model, cache, batch)
                batch, room = [], pass_tokens
    if batch:
        _pass(model, cache, batch)


def _pass(model: DecoderModel, cache: KVCache, segments: Sequence[Segment]) -> None:
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
    pieces = [piece for s in segments for piece in (_pieces(s) if stable else [(s.row, s.start, s.start + len(s.tokens))])]
    parts, begin = [], 0
    for i, (row, start, end) in enumerate(pieces):
        part = slice(begin, begin + end - start + (padding[1] if i == len(pieces) - 1 else 0))
        width = blocks(end) if stable else end
        parts.append((row, width, part, None if start == 0 and not stable else cache.mask(positions[part], width)))
        begin = part.stop

    def attend(layer: int, queries: Tensor) -> Tensor:
        return torch.cat([attend_segment(cache, layer, row, width, queries[part], mask) for row, width, part, mask in parts])

    model.compute(cache, tokens, positions, rows, attend)


def _pieces(s: Segment) -> list[tuple[int, int, int]]:
    """Split a segment into parts; returns row, first and last position of each.

    Each part attends over as many cells as its last token needs; otherwise all tokens would attend over the whole segment. A
    row's bits do not depend on how many masked cells follow (``kv_cache``).
    """
    end = s.start + len(s.tokens)
    edges = [s.start, *range((s.start // PIECE_TOKENS + 1) * PIECE_TOKENS, end, PIECE_TOKENS), end]
    return [(s.row, a, b) for a, b in pairwise(edges)]


def tokens_by_themselves(cache: KVCache, layer: int, row: int, width: int, queries: Tensor, mask: Tensor | None) -> Tensor:
    """Attend every token as in decoding: the same kernel, one row of a batch for each.

    Args:
        row: of the cache, of which the first ``width`` cells are attended over.
        queries: (n, kv_heads, queries of each, head_dim); mask: (n, 1, 1, width).
    """
    read = cache.read(layer, slice(row, row + 1), width)
    keys, values = (t.expand(len(queries), -1, -1, -1) for t in read)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def _causally(cache: KVCache, layer: int, row: int, width: int, queries: Tensor, mask: Tensor | None) -> Tensor:
    """Attend the whole segment in one call; without a mask it begins its row."""
    count, kv_heads, shared, dim = queries.shape
    keys, values = cache.read(layer, slice(row, row + 1), width)
    q = queries.reshape(1, count, kv_heads * shared, dim).transpose(1, 2)
    mask = None if mask is None else mask[:, 0, 0]
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return out.transpose(1, 2).reshape(queries.shape)
