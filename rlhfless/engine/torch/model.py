"""Forward pass of a Llama-like language model over rows, each of which is one token of some response.

The weights are those of a transformers model (Llama, Qwen2, Qwen3). The pass is our own, because transformers spends more time
on Python than a small model on arithmetic.

On the CPU in float32 prefill and decoding give the same bits, and so does every batch: rows are multiplied in tiles
(``row_tiles.py``), and every row attends by itself (``row_attention.py``). On a GPU prefill attends a whole segment at once,
and bits depend on the shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.attention import PLAIN
from rlhfless.engine.torch.kv_cache import KVCache, free_storage
from rlhfless.engine.torch.row_model import Attend, RowModel
from rlhfless.engine.torch.row_tiles import RowTiles
from rlhfless.engine.torch.weights import (
    Weights,
    check_architecture,
    checked_state,
    copy_weights,
    held_bytes,
    no_weights,
    shapes_of,
    tensors_of,
)
from rlhfless.errors import ClosedError
from rlhfless.system.device_memory import explain_out_of_memory


class DecoderModel(RowModel):
    """A decoder of one of ``ARCHITECTURES`` (llama, qwen2, qwen3) with this package's own forward pass.

    Args:
        model: a transformers causal language model.
        max_tokens: longest context (prompt and response); the model's own by default.
        dtype: of weights, KV cache and products; the model's own by default. Weights are converted as they are copied.

    Attributes:
        tiles: with which rows are multiplied where bits are promised.

    Raises:
        InputError: another architecture, no model with a head, or ``max_tokens`` is below 2.
    """

    captured = True
    weights: Weights

    def __init__(self, model: Any, max_tokens: int | None = None, dtype: torch.dtype | None = None) -> None:
        check_architecture(model)
        config = model.config
        super().__init__(config.max_position_embeddings, max_tokens, model.device, dtype or model.dtype)
        self.layer_count, self.vocabulary = config.num_hidden_layers, config.vocab_size
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        with torch.inference_mode():
            like = torch.empty(0, dtype=self.dtype, device=self.device)
            cos, sin = model.base_model.rotary_emb(like, torch.arange(self.cells, device=self.device)[None])
        half = self.head_dim // 2
        self._cos = cos[0, :, None]  # (cells, 1, head_dim)
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]  # the sign of rotate_half
        self._shapes = shapes_of(model)
        self.tiles = RowTiles()
        self.weights = no_weights()
        self.load(model)

    @property
    def bit_stable(self) -> bool:
        """Whether tokens are the same bit for bit in every batch: in float32 on the CPU, with one thread."""
        exact = self.device.type == "cpu" and self.dtype == torch.float32
        return bool(exact and self.threads == 1)

    def load(self, weights: Any) -> None:
        """Copy the weights of a model of the same architecture, or of its state dict, over those in use.

        The storage is reused, so CUDA graphs stay valid. If copying is interrupted, the model has no weights until ``load`` is
        called again.

        Raises:
            InputError: a parameter is missing or of another shape, or there are more layers; the weights in use stay.
            MemoryError: the device has no room for a copy.
        """
        state = checked_state(weights, self._shapes, self.layer_count)
        old, self.weights = self.weights, no_weights()
        with explain_out_of_memory(self.device, "a copy of the model's weights"):
            self.weights = copy_weights(state, self.layer_count, self.device, self.dtype, old)
        if self.bit_stable:
            for linear in self.weights.linears():
                self.tiles.tile(*linear)

    def free(self) -> None:
        """Free the weights' memory, until ``load``, even if other objects refer to them."""
        weights, self.weights = self.weights, no_weights()
        free_storage(*tensors_of(weights))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the weights in memory."""
        return held_bytes(self.weights)

    def compute(self, cache: KVCache, tokens: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        """Run all layers over (n,) tokens, whose keys and values are written at ``positions`` of ``rows``.

        Returns the (n, hidden) states after the last layer. Hooks are not called.
        """
        if not self.weights.layers:
            raise ClosedError("the model's weights were released; load() new ones before decoding")
        n, heads, kv_heads, dim = len(tokens), self.heads, self.kv_heads, self.head_dim
        x = F.embedding(tokens, self.weights.embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        tiles = self.tiles if self.bit_stable else None
        for index, layer in enumerate(self.weights.layers):
            qkv = layer.qkv(F.rms_norm(x, x.shape[1:], layer.input_norm, self.eps), tiles).view(n, heads + 2 * kv_heads, dim)
            qk = qkv[:, : heads + kv_heads]
            if layer.q_norm is not None and layer.k_norm is not None:
                qk[:, :heads] = F.rms_norm(qk[:, :heads], (dim,), layer.q_norm, self.eps)
                qk[:, heads:] = F.rms_norm(qk[:, heads:], (dim,), layer.k_norm, self.eps)
            turned = torch.cat((qk[..., dim // 2 :], qk[..., : dim // 2]), -1)
            qk.mul_(cos).addcmul_(turned, sin)
            cache.write(index, rows, positions, qkv[:, heads:].view(n, 2, kv_heads, dim))
            attended = attend(index, qkv[:, :heads].view(n, kv_heads, heads // kv_heads, dim), PLAIN)
            x = x + layer.out(attended.reshape(n, heads * dim), tiles)
            gate, up = layer.gate_up(F.rms_norm(x, x.shape[1:], layer.mlp_norm, self.eps), tiles).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up), tiles)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return (R, V) float32 logits of the states that ``decode`` returns."""
        normed = F.rms_norm(x, x.shape[1:], self.weights.norm, self.eps)
        return self.weights.head(normed, self.tiles if self.bit_stable else None).float()


@dataclass
class FedTokens:
    """Number of tokens that went through a model: in prefill passes, and in decode iterations (one per response)."""

    prefill: int = 0
    decode: int = 0


@contextmanager
def counting(model: RowModel) -> Iterator[FedTokens]:
    """Context manager that counts the tokens fed to the model."""
    fed = FedTokens()

    def hook(phase: str, tokens: Tensor) -> None:
        setattr(fed, phase, getattr(fed, phase) + len(tokens))

    model.hooks.append(hook)
    try:
        yield fed
    finally:
        model.hooks.remove(hook)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute with one thread on the CPU: with several, kernels split the work by its size, and bits depend on the batch."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
