"""Feeds the last token of every response of a batch and the tokens drafted after it, in one pass.

Where bit-identical results are promised, only these tokens are fed, and each attends by itself, as in decoding: then drafts
change no bit of a log-probability. Tokens attend by columns (one call for all first tokens, one for all second ones, ...); from
the column on from which few responses have drafts, they attend by responses.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """The places of a pass, in the order in which they are fed: first whole columns, then what is left of each row.

    Attributes:
        rows: (N,) row of the cache of each; columns: (N,) 0 for the last token of a response, k for its k-th drafted token.
        whole_columns: number of columns that are fed as columns.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    whole_columns: int


def places_of(draft_tokens: Sequence[int]) -> Places:
    """Return the places of a pass that feeds this many drafted tokens in each row, in an order that takes the fewest calls."""
    fed = np.array(draft_tokens) + 1
    column = np.arange(fed.max() + 1)
    present = fed[:, None] > column
    whole = int((column + present.sum(axis=0)).argmin())  # a call per column, then a call per row that has more
    columns, rows = np.nonzero(present.T[:whole])
    if whole < len(column) - 1:
        more_rows, more_columns = np.nonzero(present[:, whole:])
        rows, columns = np.concatenate([rows, more_rows]), np.concatenate([columns, more_columns + whole])
    return Places(rows, columns, whole)


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
    count, room = len(tokens), max(CPU_PASS_TOKENS, slots)
    rows = torch.from_numpy(places.rows)
    parts = []
    for begin in range(0, count, room):
        part = slice(begin, min(begin + room, count))
        inside = Places(places.rows[part], places.columns[part], places.whole_columns)
        parts.append(_pass(model, cache, tokens[part], positions[part], rows[part], inside, slots))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pass(
    model: DecoderModel, cache: KVCache, tokens: Tensor, positions: Tensor, rows: Tensor, places: Places, slots: int
) -> Tensor:
    count = len(tokens)
    padding = model.padded(count, slots) - count
    pieces = _pieces(cache, positions, places)
    if padding:  # is for the matrix kernels; it attends to nothing
        tokens, rows = F.pad(tokens, (0, padding)), F.pad(rows, (0, padding))
        positions = F.pad(positions, (0, padding), value=cache.spare)

    def attend(layer: int, queries: Tensor) -> Tensor:
        parts = [_attended(cache, layer, queries[piece.part], piece) for piece in pieces]
        if padding:
            parts.append(torch.zeros_like(queries[count:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return model.compute(cache, tokens, positions, rows, attend)


def _pieces(cache: KVCache, positions: Tensor, places: Places) -> list[_Piece]:
    """Split the places into those that attend in one call."""
    rows, columns = places.rows, places.columns
    group = np.where(columns < places.whole_columns, columns, rows + places.whole_columns)
    edges = [0, *(np.flatnonzero(group[1:] != group[:-1]) + 1).tolist(), len(group)]
    widest = np.maximum.reduceat(positions.numpy(), edges[:-1]).tolist()
    masks = cache.mask(positions, blocks(max(widest) + 1))
    pieces = []
    for begin, end, longest in zip(edges, edges[1:], widest, strict=False):
        width = blocks(longest + 1)
        mask, among = masks[begin:end, :, :, :width], None
        first, last = int(rows[begin]), int(rows[end - 1])
        if end - begin <= last - first:
            among = torch.from_numpy(rows[begin:end] - first)
            mask = mask.new_zeros(last - first + 1, *mask.shape[1:]).index_copy_(0, among, mask)
        pieces.append(_Piece(slice(begin, end), first, last, width, mask, among))
    return pieces


def _attended(cache: KVCache, layer: int, queries: Tensor, piece: _Piece) -> Tensor:
    if piece.first == piece.last:
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
