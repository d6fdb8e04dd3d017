"""Prefill: passes over many tokens of some rows, each token a row of the pass.

Where bit-identical results are promised every token attends by itself, as in decoding; elsewhere a whole segment attends at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from rlhfless.engine.torch.attention import PLAIN, AttentionForm, Masks, segment_attention
from rlhfless.engine.torch.kv_cache import KVCache, blocks
from rlhfless.engine.torch.row_attention import row_attention
from rlhfless.engine.torch.row_model import RowModel

CPU_PASS_TOKENS = 256  # of one pass; small, as every row holds its scores over its whole context
GPU_PASS_TOKENS = 8192
PIECE_TOKENS = 64  # that attend over as many cells; fewer would cost more calls than they save


class Segment(NamedTuple):
    """Consecutive tokens of one cache row: ``tokens`` (T,) from position ``start`` on."""

    row: int
    start: int
    tokens: Tensor


def prefill(model: RowModel, cache: KVCache, segments: Sequence[Segment]) -> None:
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


def _pass(model: RowModel, cache: KVCache, segments: Sequence[Segment]) -> None:
    tokens = torch.cat([s.tokens for s in segments])
    for hook in model.hooks:
        hook("prefill", tokens)
    device, stable = model.device, model.bit_stable
    positions = torch.cat([torch.arange(s.start, s.start + len(s.tokens), device=device) for s in segments])
    rows = torch.cat([torch.full((len(s.tokens),), s.row, device=device) for s in segments])
    pieces = [piece for s in segments for piece in (_pieces(s) if stable else [(s.row, s.start, s.start + len(s.tokens))])]
    parts, begin = [], 0
    for row, start, end in pieces:
        part = slice(begin, begin + end - start)
        width = blocks(end) if stable else end
        parts.append((row, width, part, Masks(cache, positions[part], width, causal=start == 0)))
        begin = part.stop

    def by_themselves(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
        assert form is PLAIN, "other forms promise no bits"
        alone = [tokens_by_themselves(cache, layer, row, w, queries[part], masks.of(None)) for row, w, part, masks in parts]
        return torch.cat(alone)

    def causally(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
        def of(row: int, width: int, part: slice, masks: Masks) -> Tensor:
            return segment_attention(queries[part], *cache.read(layer, slice(row, row + 1), width), masks, form)

        return torch.cat([of(*segment) for segment in parts])

    model.compute(cache, tokens, positions, rows, by_themselves if stable else causally)


def _pieces(s: Segment) -> list[tuple[int, int, int]]:
    """Split a segment into parts; returns row, first and last position of each.

    Each part attends over as many cells as its last token needs; otherwise all tokens would attend over the whole segment. A
    row's bits do not depend on how many masked cells follow (``kv_cache``).
    """
    end = s.start + len(s.tokens)
    edges = [s.start, *range((s.start // PIECE_TOKENS + 1) * PIECE_TOKENS, end, PIECE_TOKENS), end]
    return [(s.row, a, b) for a, b in pairwise(edges)]


def tokens_by_themselves(cache: KVCache, layer: int, row: int, width: int, queries: Tensor, mask: Tensor) -> Tensor:
    """Attend every token as in decoding: the same kernel, one row of a batch for each.

    Args:
        row: of the cache, of which the first ``width`` cells are attended over.
        queries: (n, kv_heads, queries of each, head_dim); mask: (n, 1, 1, width).
    """
    read = cache.read(layer, slice(row, row + 1), width)
    keys, values = (t.expand(len(queries), -1, -1, -1) for t in read)
    return row_attention(queries, keys, values, mask)
