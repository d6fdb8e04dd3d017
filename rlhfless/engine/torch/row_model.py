"""What every language model offers to the parts of the torch engine: passes over rows, each one token of some response.

Two kinds exist: ``DecoderModel`` (model.py) has a forward pass of our own for few architectures. ``TransformersModel``
(transformers_model.py) runs transformers' forward pass for many. Cache, sampling and bookkeeping know this interface only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.attention import AttentionForm, Masks, attention
from rlhfless.engine.torch.kv_cache import KVCache, blocks
from rlhfless.engine.torch.row_attention import row_attention
from rlhfless.errors import InputError
from solver.model.errors import is_whole

FeedHook = Callable[[str, Tensor], None]
"""Called before each pass with ``prefill`` or ``decode`` and the (tokens,) ids that are fed, padding left out."""

Attend = Callable[[int, Tensor, AttentionForm], Tensor]
"""Layer, (n, kv_heads, queries of each, head_dim) queries and the layer's form to attended values of the queries' shape."""


class RowModel(ABC):
    """A causal language model that feeds rows; it owns a copy of the weights, so training the source model in place changes
    nothing here.

    Args:
        supported_tokens: longest context of the model.
        max_tokens: longest context (prompt and response) that is fed; ``supported_tokens`` when None.

    Attributes:
        layer_count, vocabulary, heads, kv_heads, head_dim: of the model.
        hooks: callbacks with the fed tokens of every pass, such as counters of computed tokens.
        supported_tokens: longest context that the model supports; beyond it only its speed is meaningful.
        cells: cells of a row of the KV cache.
        weights: those in use; another object once they are at other addresses.
        threads: with which engines compute on the CPU.
        captured: whether an iteration on a GPU can be captured as a CUDA graph.

    Raises:
        InputError: ``max_tokens`` is below 2.
    """

    layer_count: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    weights: Any
    captured: bool

    def __init__(self, supported_tokens: int, max_tokens: int | None, device: torch.device, dtype: torch.dtype) -> None:
        self.supported_tokens = supported_tokens
        if max_tokens is not None and not is_whole(max_tokens, 2):
            raise InputError(f"max_tokens (prompt and response) is {max_tokens}; a whole number of at least 2 is needed")
        self.max_tokens = supported_tokens if max_tokens is None else int(max_tokens)
        self.cells = blocks(self.max_tokens + 1)
        self.device, self.dtype = device, dtype
        self.hooks: list[FeedHook] = []
        self.threads = 1

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without hooks, which belong to this process."""
        return {**self.__dict__, "hooks": []}

    @property
    @abstractmethod
    def bit_stable(self) -> bool:
        """Return whether tokens can be the same bit for bit in every batch."""

    @abstractmethod
    def load(self, weights: Any) -> None:
        """Copy the weights of a model of the same architecture, or of its state dict, over those in use.

        The storage stays, so what was prepared for its addresses (CUDA graphs) stays valid. Whatever ends the copying half-way
        leaves no weights: ``load`` has to be called again.

        Raises:
            InputError: a parameter is missing or of another shape, or there are more; the weights in use stay.
            MemoryError: the device has no room for a copy.
        """

    @abstractmethod
    def free(self) -> None:
        """Free the weights' memory, until ``load``, even if other objects refer to them."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Return the bytes of the weights in memory."""

    @abstractmethod
    def compute(self, cache: KVCache, tokens: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        """Run all layers over (n,) tokens, whose keys and values are written at ``positions`` of ``rows``.

        Returns the (n, hidden) states after the last layer. Hooks are not called.
        """

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Return (R, V) float32 logits of the states that ``compute`` returns."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values of one token over all layers."""
        return int(2 * self.layer_count * self.kv_heads * self.head_dim * self.dtype.itemsize)

    def new_cache(self, *, keeps_ids: bool = False) -> KVCache:
        """Return an empty cache of this model's shape, on its device, with ``cells`` cells in each row."""
        shape = self.layer_count, self.kv_heads, self.head_dim, self.cells
        return KVCache(*shape, self.dtype, self.device, keeps_ids=keeps_ids)

    def decode(self, cache: KVCache, tokens: Tensor, positions: Tensor, width: int, padding: int = 0) -> Tensor:
        """Feed one token to each of the first R rows of the cache.

        Args:
            tokens, positions: (R,) ids and their positions in their contexts; padding, at the end, is at ``cache.spare``.
            width: cells to attend over, more than every position (other than padding's); rounded up to whole blocks.

        Returns:
            (R, hidden) states, as ``compute`` returns them.
        """
        for hook in self.hooks:
            hook("decode", tokens[: len(tokens) - padding])
        width, count = blocks(width), len(tokens)
        rows = torch.arange(count, device=self.device)
        used = count - padding  # which attends to nothing
        masks, by_themselves = Masks(cache, positions[:used], width), self.bit_stable

        def attend(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
            keys, values = cache.read(layer, slice(0, used), width)
            # The query heads that share a KV head stand where queries stand: one pass over its keys serves them all.
            if by_themselves:
                attended = row_attention(queries[:used], keys, values, masks.of(None))
            else:
                attended = attention(queries[:used], keys, values, masks.of(form.window), form)
            return attended if used == count else F.pad(attended, (0, 0, 0, 0, 0, 0, 0, count - used))

        return self.compute(cache, tokens, positions, rows, attend)

    def padded(self, rows: int, max_rows: int) -> int:
        """Return how many rows to feed: as many where bits are promised, which prepares no shapes; else the next of a few
        sizes, so that few shapes have to be prepared.
        """
        if self.bit_stable:
            return rows
        return next((size for size in (1, 2, 4, 8, *range(16, max_rows, 16)) if size >= rows), max_rows)
