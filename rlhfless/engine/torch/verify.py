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
from numpy.typing import NDArray
from torch import Tensor

from rlhfless.engine.torch.attention import PLAIN, AttentionForm, Masks, attention
from rlhfless.engine.torch.fed_places import AttentionCall, FedPlaces
from rlhfless.engine.torch.kv_cache import KVCache, blocks
from rlhfless.engine.torch.prefill import tokens_by_themselves
from rlhfless.engine.torch.row_attention import row_attention
from rlhfless.engine.torch.row_model import RowModel


class Inputs(NamedTuple):
    """(N,) ids to feed, (N,) their positions, and (N, numbers) sampling noise (None: the likeliest token is taken). Also (N,)
    whether the end of text is forbidden (None: nowhere), and the ids without padding (None: padding is at the end).
    """

    tokens: Tensor
    positions: Tensor
    noise: Tensor | None
    forced: Tensor | None
    fed: Tensor | None = None


class _Piece(NamedTuple):
    """Places that attend in one call, ``width`` cells wide; ``mask`` is of each, or of every row from the first to the last."""

    call: AttentionCall
    width: int
    mask: Tensor


def verify(model: RowModel, cache: KVCache, tokens: Tensor, positions: NDArray[np.int64], places: FedPlaces) -> Tensor:
    """Feed tokens at places of the cache; returns their (N, hidden) states after the last layer.

    Args:
        tokens, positions: (N,) ids and their positions in their contexts.
    """
    for hook in model.hooks:
        hook("decode", tokens)
    parts = [_pass(model, cache, tokens, positions, places, calls) for calls in places.passes]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pass(
    model: RowModel,
    cache: KVCache,
    tokens: Tensor,
    positions: NDArray[np.int64],
    places: FedPlaces,
    calls: Sequence[AttentionCall],
) -> Tensor:
    begin, end = calls[0].begin, calls[-1].end
    at, rows, fed = torch.from_numpy(positions[begin:end]), torch.from_numpy(places.rows[begin:end]), tokens[begin:end]
    pieces = _pieces(cache, at, positions, calls)

    def attend(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
        assert form is PLAIN, "other forms promise no bits"
        parts = [_attended(cache, layer, queries[p.call.begin - begin : p.call.end - begin], p) for p in pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return model.compute(cache, fed, at, rows, attend)


def _pieces(cache: KVCache, at: Tensor, positions: NDArray[np.int64], calls: Sequence[AttentionCall]) -> list[_Piece]:
    """Return the calls with their masks; ``at`` are the positions of this pass."""
    start = calls[0].begin
    last = np.maximum.reduceat(positions[: calls[-1].end], [call.begin for call in calls]).tolist()
    widths = [blocks(position + 1) for position in last]
    masks = cache.mask(at, max(widths))
    pieces = []
    for call, width in zip(calls, widths, strict=True):
        mask = masks[call.begin - start : call.end - start, :, :, :width]
        if call.among is not None:
            mask = mask.new_zeros(call.last - call.first + 1, *mask.shape[1:]).index_copy_(0, call.among, mask)
        pieces.append(_Piece(call, width, mask))
    return pieces


def _attended(cache: KVCache, layer: int, queries: Tensor, piece: _Piece) -> Tensor:
    call = piece.call
    if call.first == call.last:
        return tokens_by_themselves(cache, layer, call.first, piece.width, queries, piece.mask)
    keys, values = cache.read(layer, slice(call.first, call.last + 1), piece.width)
    if call.among is None:
        return row_attention(queries, keys, values, piece.mask)
    spread = queries.new_zeros(len(piece.mask), *queries.shape[1:]).index_copy_(0, call.among, queries)
    return row_attention(spread, keys, values, piece.mask)[call.among]


def verify_rectangle(model: RowModel, cache: KVCache, inputs: Inputs, width: int, columns: int) -> Tensor:
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
    masks = Masks(cache, inputs.positions, width)

    def attend(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
        mask = masks.of(form.window).view(count, 1, columns, width).repeat_interleave(shared, 2)
        keys, values = cache.read(layer, slice(0, count), width)
        by_head = queries.view(count, columns, model.kv_heads, shared, -1).transpose(1, 2).flatten(2, 3)
        attended = attention(by_head, keys, values, mask, form)
        return attended.view(count, model.kv_heads, columns, shared, -1).transpose(1, 2).reshape(queries.shape)

    return model.compute(cache, inputs.tokens, inputs.positions, rows, attend)
