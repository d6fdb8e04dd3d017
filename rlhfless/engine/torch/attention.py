"""Attention of queries to cached keys and values, in every form that a supported layer has.

Most layers attend to all tokens before them, by torch's fused kernel. Others see a sliding window only, cap their scores
(Gemma 2), or let every head attend to a learned sink besides (gpt-oss).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.kv_cache import KVCache


class AttentionForm(NamedTuple):
    """How a layer attends.

    Attributes:
        scale: by which scores are multiplied; 1 / sqrt(head_dim) when None.
        window: tokens that a token sees, itself included; None: all before it.
        softcap: scores are ``softcap * tanh(score / softcap)``; None: as they are.
        sinks: (heads,) score of a token without value to which every query of a head attends; None: there is none.
    """

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def fused(self) -> bool:
        """Return whether torch's fused kernel computes it."""
        return self.softcap is None and self.sinks is None


PLAIN = AttentionForm()


class Masks:
    """Masks of the tokens at (n,) ``positions`` over the first ``width`` cells of their rows, made once for every window.

    Args:
        causal: the n tokens are the first of their row, so that the fused kernel needs no mask.
    """

    def __init__(self, cache: KVCache, positions: Tensor, width: int, *, causal: bool = False) -> None:
        self._cache, self._positions, self._width, self._causal = cache, positions, width, causal
        self._made: dict[int | None, Tensor] = {}

    def of(self, window: int | None) -> Tensor:
        """Return the (n, 1, 1, width) mask of a window."""
        if window is not None and window >= self._width:
            window = None
        if window not in self._made:
            self._made[window] = self._cache.mask(self._positions, self._width, window)
        return self._made[window]

    def causal(self, form: AttentionForm) -> bool:
        """Return whether a layer of this form attends without a mask, as a causal pass over the whole row."""
        return self._causal and form.fused and (form.window is None or form.window >= self._width)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, form: AttentionForm) -> Tensor:
    """Return attended values, of the queries' shape.

    Args:
        queries: (n, kv_heads, q, head_dim): of q queries, the heads that share a KV head vary fastest.
        keys, values: (n, kv_heads, width, head_dim).
        mask: broadcasts to (n, kv_heads, q, width).
    """
    if form.fused:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=form.scale)
    scale = queries.shape[-1] ** -0.5 if form.scale is None else form.scale
    scores = (queries @ keys.transpose(-1, -2)).float() * scale
    if form.softcap is not None:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    scores = scores + mask
    if form.sinks is None:
        return torch.softmax(scores, -1).to(values.dtype) @ values
    n, kv_heads, count, _ = scores.shape
    sinks = form.sinks.float().view(kv_heads, -1)
    sinks = sinks.repeat(1, count // sinks.shape[1])[None, :, :, None].expand(n, -1, -1, -1)
    return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1].to(values.dtype) @ values


def segment_attention(queries: Tensor, keys: Tensor, values: Tensor, masks: Masks, form: AttentionForm) -> Tensor:
    """Attend all consecutive tokens of one row in one call; returns values of the queries' shape.

    Args:
        queries: (n, kv_heads, queries of each, head_dim). keys, values: (1, kv_heads, width, head_dim).
    """
    count, kv_heads, shared, dim = queries.shape
    causal = masks.causal(form)
    if form.fused:
        q = queries.reshape(1, count, kv_heads * shared, dim).transpose(1, 2)
        mask = None if causal else masks.of(form.window)[:, 0, 0]
        out = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=causal, scale=form.scale, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(queries.shape)
    q, mask = queries.transpose(0, 1).reshape(1, kv_heads, count * shared, dim), masks.of(form.window)[:, 0, 0]
    out = attention(q, keys, values, mask.repeat_interleave(shared, 0), form)
    return out.view(kv_heads, count, shared, dim).transpose(0, 1)
