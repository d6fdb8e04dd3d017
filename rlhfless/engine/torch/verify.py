"""Feeds the last token of every response of a batch and the tokens drafted after it, in one pass.

Where bit-identical results are promised, only these tokens are fed, and each attends by itself, as in decoding: then drafts
change no bit of a log-probability. A draft's tokens attend by columns (one call for all first tokens, one for all second ones,
...), or by responses where these are fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rlhfless.engine.torch.kv_cache import KVCache, blocks
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.prefill import CPU_PASS_TOKENS, tokens_by_themselves

COLUMNS = (1, 2, 3, 5, 9, 17, 33)  # to which rectangles are rounded, so that few shapes have to be prepared


class Inputs(NamedTuple):
    """(N,) ids to feed, (N,) their positions, and (N, numbers) sampling noise (None: the likeliest token is taken). Also (N,)
    whether the end of text is forbidden (None: nowhere), and the ids without padding (None: padding is at the end).
    """

    tokens: Tensor
    positions: Tensor
    noise: Tensor | None
    forced: Tensor | None
    fed: Tensor | None = None


class Places(NamedTuple):
    """The places of a pass, in the order in which they are fed.

    Attributes:
        rows: (N,) row of the cache of each; columns: (N,) 0 for the last token of a response, k for its k-th drafted token.
        by_row: whether all places of a row follow each other; otherwise all places of a column do.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    by_row: bool


def places_of(draft_tokens: Sequence[int]) -> Places:
    """Return the places of a pass that feeds this many drafted tokens in each row."""
    fed = np.array(draft_tokens) + 1
    column = np.arange(fed.max())
    if len(fed) <= len(column):
        rows, columns = np.nonzero(column < fed[:, None])
        return Places(rows, columns, True)
    columns, rows = np.nonzero(column[:, None] < fed)
    return Places(rows, columns, False)


class _Piece(NamedTuple):
    """Places that attend in one call: those of one row, or of rows ``first`` to ``last`` in one column.

    Attributes:
        part: of the places. mask: of each, or of every row from ``first`` to ``last``.
        among: which of these rows they are; None: all.
    """

    part: slice
    first: int
    last: int
    width: int
    mask: Tensor
    among: Tensor | None


def verify(model: DecoderModel, cache: KVCache, tokens: Tensor, positions: Tensor, places: Places, slots: int) -> Tensor:
    """Feed tokens at places of the cache; returns their (N + padding, hidden) states after the last layer.

    A pass of more tokens than bits are known to be stable for is split. Every place comes after those it attends to.

    Args:
        tokens, positions: (N,) ids and their positions in their contexts.
        slots: of the actor.
    """
    for hook in model.hooks:
        hook("decode", tokens)
    count = len(tokens)
    room = max(CPU_PASS_TOKENS, slots)
    rows = torch.from_numpy(places.rows)
    parts = []
    for begin in range(0, count, room):
        part = slice(begin, min(begin + room, count))
        inside = Places(places.rows[part], places.columns[part], places.by_row)
        parts.append(_pass(model, cache, tokens[part], positions[part], rows[part], inside, slots))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pass(
    model: DecoderModel, cache: KVCache, tokens: Tensor, positions: Tensor, rows: Tensor, places: Places, slots: int
) -> Tensor:
    count = len(tokens)
    padding = model.padded(count, slots) - count
    pieces = list(_pieces(cache, positions, places))
    if padding:  # is for the matrix kernels; it attends to nothing
        tokens, rows = F.pad(tokens, (0, padding)), F.pad(rows, (0, padding))
        positions = F.pad(positions, (0, padding), value=cache.spare)

    def attend(layer: int, queries: Tensor) -> Tensor:
        attended = torch.zeros_like(queries) if padding else torch.empty_like(queries)
        for piece in pieces:
            attended[piece.part] = _attended(cache, layer, queries[piece.part], piece, places.by_row)
        return attended

    return model.compute(cache, tokens, positions, rows, attend)


def _pieces(cache: KVCache, positions: Tensor, places: Places) -> list[_Piece]:
    """Split the places into those that attend in one call."""
    group = places.rows if places.by_row else places.columns
    edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
    ends = positions.numpy()
    pieces = []
    for begin, end in pairwise(edges):
        part = slice(begin, end)
        width = blocks(int(ends[part].max()) + 1)
        mask = cache.mask(positions[part], width)
        first, last = int(places.rows[begin]), int(places.rows[end - 1])
        among = None
        if not places.by_row and last - first + 1 > end - begin:
            among = torch.from_numpy(places.rows[part] - first)
            mask = mask.new_zeros(last - first + 1, *mask.shape[1:]).index_copy_(0, among, mask)
        pieces.append(_Piece(part, first, last, width, mask, among))
    return pieces


def _attended(cache: KVCache, layer: int, queries: Tensor, piece: _Piece, by_row: bool) -> Tensor:
    if by_row:
        return tokens_by_themselves(cache, layer, piece.first, piece.width, queries, piece.mask)
    keys, values = cache.read(layer, slice(piece.first, piece.last + 1), piece.width)
    if piece.among is None:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=piece.mask)
    spread = queries.new_zeros(len(piece.mask), *queries.shape[1:]).index_copy_(0, piece.among, queries)
    return F.scaled_dot_product_attention(spread, keys, values, attn_mask=piece.mask)[piece.among]


def verify_rectangle(model: DecoderModel, cache: KVCache, inputs: Inputs, width: int, columns: int) -> Tensor:
    """Feed ``columns`` tokens to each of the first rows of the cache, all of a row in one call; returns their states.

    Where no bits are promised this needs the fewest calls, and its shapes can be prepared.

    Args:
        inputs: (R * columns,) each, row by row. Places that nothing is fed to are at ``cache.spare``.
        width: cells to attend over, more than every position other than these; rounded up to whole blocks.
    """
    for hook in model.hooks:
        hook("decode", inputs.tokens if inputs.fed is None else inputs.fed)
    width, count = blocks(width), len(inputs.tokens) // columns
    rows = torch.arange(count, device=model.device).repeat_interleave(columns)
    shared = model.heads // model.kv_heads
    mask = cache.mask(inputs.positions, width).view(count, 1, columns, width).repeat_interleave(shared, 2)

    def attend(layer: int, queries: Tensor) -> Tensor:
        keys, values = cache.read(layer, slice(0, count), width)
        by_head = queries.view(count, columns, model.kv_heads, shared, -1).transpose(1, 2).flatten(2, 3)
        attended = F.scaled_dot_product_attention(by_head, keys, values, attn_mask=mask)
        return attended.view(count, model.kv_heads, columns, shared, -1).transpose(1, 2).reshape(queries.shape)

    return model.compute(cache, inputs.tokens, inputs.positions, rows, attend)


def rounded(columns: int) -> int:
    """Return the columns of the rectangle that is prepared for passes of this many."""
    return next(size for size in COLUMNS if size >= columns)
