"""One forward pass of a Llama-like language model over rows, each of which is one token of some response.

Knows weights and the KV cache, nothing of responses, clocks or sampling. The weights are those of a transformers model
(Qwen2, Llama); the pass is our own, because transformers spends more time on Python than a small model on arithmetic. Decoding
is a pass with one row per response, prefill a pass with one row per prompt token: every row attends by itself, so prefill
and decoding give the same bits, and so does every batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.kv_cache import KVCache, blocks

ARCHITECTURES = ("llama", "qwen2")
MAX_ROWS = 256  # of one pass of a prefill
PROBED_ROWS = (*range(1, 65), 96, 128, 200, MAX_ROWS)


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Layer(NamedTuple):
    input_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class RowModel:
    """A causal language model that feeds rows; holds a copy of the weights, so training in place changes nothing here.

    Args:
        model: a transformers causal language model, Qwen2 or Llama.
        max_tokens: longest context (prompt and response); the model's own by default.
    """

    def __init__(self, model: Any, max_tokens: int | None = None) -> None:
        config = model.config
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        rope = model.base_model.rotary_emb.rope_type if config.model_type in ARCHITECTURES else ""
        if kinds != {"full_attention"} or rope in ("", "dynamic", "longrope") or config.hidden_act != "silu":
            raise ValueError(
                f"the torch engine decodes {' and '.join(ARCHITECTURES)} models with full attention and fixed rotary "
                f"embeddings, not {config.model_type!r} as configured here; use the vLLM engine for it"
            )
        self.layer_count = config.num_hidden_layers
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.max_tokens = max_tokens or config.max_position_embeddings
        self.cells = blocks(self.max_tokens + 1)
        self.device, self.dtype = model.device, model.dtype
        with torch.inference_mode():
            like = torch.empty(0, dtype=self.dtype, device=self.device)
            cos, sin = model.base_model.rotary_emb(like, torch.arange(self.cells, device=self.device)[None])
        half = self.head_dim // 2
        self._cos = cos[0, :, None]  # (cells, 1, head_dim)
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]  # the sign of rotate_half
        self.load(model)

    def load(self, weights: Any) -> None:
        """Copy the weights of a model of the same architecture, or of its state dict."""
        state: Mapping[str, Tensor] = weights if isinstance(weights, Mapping) else weights.state_dict()

        def copy(name: str) -> Tensor:
            return state[name].detach().to(self.device, self.dtype, copy=True)

        def linear(*names: str) -> Linear:
            bias = torch.cat([copy(f"{n}.bias") for n in names]) if f"{names[0]}.bias" in state else None
            return Linear(torch.cat([copy(f"{n}.weight") for n in names]), bias)

        with torch.inference_mode():
            self._layers = []
            for p in (f"model.layers.{i}" for i in range(self.layer_count)):
                self._layers.append(
                    Layer(
                        copy(f"{p}.input_layernorm.weight"),
                        linear(f"{p}.self_attn.q_proj", f"{p}.self_attn.k_proj", f"{p}.self_attn.v_proj"),
                        linear(f"{p}.self_attn.o_proj"),
                        copy(f"{p}.post_attention_layernorm.weight"),
                        linear(f"{p}.mlp.gate_proj", f"{p}.mlp.up_proj"),
                        linear(f"{p}.mlp.down_proj"),
                    )
                )
            self._embedding = copy("model.embed_tokens.weight")
            self._norm = copy("model.norm.weight")
            self._head = Linear(copy("lm_head.weight"), None) if "lm_head.weight" in state else Linear(self._embedding, None)

    def new_cache(self) -> KVCache:
        return KVCache(self.layer_count, self.kv_heads, self.head_dim, self.cells, self.dtype, self.device)

    def feed(self, cache: KVCache, tokens: Tensor, positions: Tensor, rows: slice, width: int) -> Tensor:
        """Feed one token per row and write its keys and values.

        Args:
            tokens, positions: (R,) ids and where in their contexts they stand.
            rows: the cache row of each, R of them; or one row, which all the tokens share.
            width: cells to attend over, more than every position (other than padding's); rounded up to whole blocks.

        Returns:
            (R, hidden) states after the last layer, before the final norm.
        """
        n, heads, kv_heads, dim = len(tokens), self.heads, self.kv_heads, self.head_dim
        width = blocks(width)
        x = F.embedding(tokens, self._embedding)
        cos, sin, mask = self._cos[positions], self._sin[positions], cache.mask(positions, width)
        cache_rows = torch.arange(rows.start, rows.stop, device=self.device).expand(n)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(F.rms_norm(x, x.shape[1:], layer.input_norm, self.eps)).view(n, heads + 2 * kv_heads, dim)
            qk = qkv[:, : heads + kv_heads]
            turned = torch.cat((qk[..., dim // 2 :], qk[..., : dim // 2]), -1)
            qk.mul_(cos).addcmul_(turned, sin)
            cache.write(index, cache_rows, positions, qkv[:, heads:].view(n, 2, kv_heads, dim))
            keys, values = (t.expand(n, -1, -1, -1) for t in cache.read(index, rows, width))
            # The query heads that share a KV head stand where queries stand: one pass over its keys serves them all.
            q = qkv[:, :heads].view(n, kv_heads, heads // kv_heads, dim)
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = x + layer.out(attended.reshape(n, heads * dim))
            gate, up = layer.gate_up(F.rms_norm(x, x.shape[1:], layer.mlp_norm, self.eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """(R, V) float32 logits of the states that ``feed`` returns."""
        return self._head(F.rms_norm(x, x.shape[1:], self._norm, self.eps)).float()

    def prefill(self, cache: KVCache, row: int, tokens: Tensor) -> None:
        """Compute the keys and values of ``tokens`` (T,) from the start of a cache row."""
        for start in range(0, len(tokens), MAX_ROWS):
            piece = tokens[start : start + MAX_ROWS]
            padding = (0, self.padded(len(piece), MAX_ROWS) - len(piece))
            positions = torch.arange(start, start + len(piece), device=self.device)
            positions = F.pad(positions, padding, value=cache.spare)
            self.feed(cache, F.pad(piece, padding), positions, slice(row, row + 1), start + len(piece))

    def padded(self, rows: int, most: int) -> int:
        """Rows to feed so that a row's result does not depend on how many others there are."""
        return max(rows, self.stable_rows) if self.stable_rows else max(rows, most)

    @cached_property
    def stable_rows(self) -> int:
        """The fewest rows from which on the number of rows changes no bit of a row's logits; 0 if there is none.

        Measured, because it depends on the matrix kernels: on CPUs it is usually 4 (one to three rows take another kernel).
        """
        sizes = [n for n in PROBED_ROWS if n <= self.max_tokens]
        most = sizes[-1]
        tokens = torch.randint(len(self._embedding), (most,), generator=torch.Generator().manual_seed(0)).to(self.device)
        positions = torch.arange(most, device=self.device)
        cache = self.new_cache()
        cache.reserve_rows(1)

        def logits(rows: int) -> Tensor:  # always the last ones, so that a row also changes its place
            return self.logits(self.feed(cache, tokens[-rows:], positions[-rows:], slice(0, 1), most))

        with torch.inference_mode(), one_thread(self.device):
            expected = logits(most)
            stable = most
            for rows in reversed(sizes):
                if not torch.equal(logits(rows), expected[-rows:]):
                    break
                stable = rows
        return stable if stable < most else 0


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On the CPU, compute with one thread: with several, kernels split the work by its size, and bits depend on the batch."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
