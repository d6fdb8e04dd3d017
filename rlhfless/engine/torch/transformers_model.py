"""Runs transformers' own forward pass over rows, with the KV cache and the attention of the torch engine.

transformers calls one function for the attention of every layer. Ours writes keys and values into the cache and attends over
each row's cells, so that a pass of n tokens may be of n responses. All the rest is the model's own code: norms, rotary
embeddings, experts, scaling factors, and what it does to logits. It takes more time on Python than ``DecoderModel``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlhfless.engine.torch.attention import AttentionForm
from rlhfless.engine.torch.kv_cache import KVCache, blocks, free_storage
from rlhfless.engine.torch.prefill import Segment, prefill
from rlhfless.engine.torch.row_model import Attend, RowModel
from rlhfless.engine.torch.transformers_limits import check_layers, supported_tokens, unsupported
from rlhfless.engine.torch.weights import SAME
from rlhfless.errors import ClosedError, InputError, missing_extra
from rlhfless.system.device_memory import explain_out_of_memory

try:
    from transformers import AttentionInterface
except ImportError as error:
    raise missing_extra("the transformers engine", error.name, "torch") from None

ATTENTION = "rlhfless"  # its name among transformers' implementations of attention
PROBED = (5, 3)  # tokens of two rows with which a model is compared with its own attention
CLOSE = 1e-3  # of the largest logit
CLOSE_ROUNDED = 0.25  # of the largest difference between two rows' logits, in formats that round more


@dataclass
class _Pass:
    """Where the pass that is under way writes keys and values, and how it attends; ``layers`` are those that did.

    Attributes:
        rows: of the cache, of each token.
        kv_shape: (KV heads, head_dim) of a layer's cells.
    """

    cache: KVCache | None
    positions: Tensor
    rows: Tensor
    attend: Attend
    kv_shape: tuple[int, int]
    layers: dict[int, tuple[int, int, int]]


_under_way: ContextVar[_Pass | None] = ContextVar("_under_way", default=None)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: Any
) -> tuple[Tensor, None]:
    """Attend (1, heads, n, dim) queries of n tokens, each in its row; see transformers' ``AttentionInterface``.

    Args:
        how: what the layer says of its attention, such as ``scaling``, ``sliding_window``, ``softcap`` and ``s_aux`` (sinks).
    """
    now = _under_way.get()
    assert now is not None, "the model's attention works in passes of TransformersModel only"
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))  # (n, heads, dim)
    layer, (n, heads, dim), values = int(module.layer_idx), q.shape, v.shape[-1]
    kv_heads = k.shape[1]
    now.layers[layer] = kv_heads, dim, values
    if now.cache is None:  # only the shapes are wanted
        return v.repeat_interleave(heads // kv_heads, 1)[None], None
    cell = now.kv_shape[1]
    kv = torch.stack([F.pad(k, (0, cell - dim)), F.pad(v, (0, cell - values))], 1)
    now.cache.write(layer, now.rows, now.positions, kv)
    scale = how.get("scaling")
    scale = dim**-0.5 if scale is None else float(scale)
    form = AttentionForm(scale, how.get("sliding_window"), how.get("softcap"), how.get("s_aux"))
    queries = F.pad(q, (0, cell - dim)).view(n, kv_heads, heads // kv_heads, cell)
    attended = now.attend(layer, queries, form)
    return attended.reshape(1, n, heads, cell)[..., :values], None


AttentionInterface.register(ATTENTION, _attention)


class _Given(nn.Module):
    """Takes the place of a model's decoder, where its head is computed for states that are known."""

    output: type = dict

    def __init__(self) -> None:
        super().__init__()
        self.states: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the states as the decoder's output."""
        return self.output(last_hidden_state=self.states)


class TransformersModel(RowModel):
    """A decoder with transformers' own forward pass, for nearly every architecture. Results depend on the batch within
    rounding.

    Sliding windows, soft caps, sinks, experts, latent attention (MLA) and learned positions work; recurrent layers do not. When
    it is made, its logits are compared with those of the model's own attention on a few tokens.

    Args:
        model: a causal language model of transformers with its head.
        max_tokens: longest context (prompt and response); the model's own by default.
        dtype: of weights, KV cache and products; the model's own by default. Parameters are converted as they are copied.

    Raises:
        InputError: a layer or a rotary embedding depends on more than keys, values and positions; or another of the model's
            parts keeps it from giving the logits of its own attention.

    Example:
        >>> from rlhfless.engine import TorchEngineFactory, TransformersModel
        >>> from rlhfless.training import load_model
        >>> model, tokenizer = load_model("data/models/arithmetic-grpo")
        >>> TorchEngineFactory(TransformersModel(model, 64), tokenizer.eos_token_id).model.layer_count
        2
    """

    captured, bit_stable = False, False

    def __init__(self, model: Any, max_tokens: int | None = None, dtype: torch.dtype | None = None) -> None:
        check_layers(model)
        super().__init__(supported_tokens(model, max_tokens), max_tokens, model.device, dtype or model.dtype)
        config = model.config.get_text_config()
        self.layer_count, self.vocabulary = config.num_hidden_layers, config.vocab_size
        with explain_out_of_memory(self.device, "a copy of the model's weights"):
            self._model = copy.deepcopy(model).eval().requires_grad_(False)
            for name, weight in self._model.named_parameters():
                if weight.is_floating_point() and not _stays_exact(self._model, name):
                    weight.data = weight.data.to(self.dtype)
        self._loaded, self.weights = True, object()
        _attend_by(self._model, ATTENTION)
        self._head = copy.copy(self._model)
        self._given = _Given()
        self._head._modules = {**self._model._modules, self._model.base_model_prefix: self._given}
        self.heads = config.num_attention_heads
        with torch.inference_mode():
            self.kv_heads, self.head_dim = self._probed_shape()
            try:
                self._compare()
            except (AttributeError, TypeError) as error:
                raise unsupported(config.model_type, "its head cannot be computed without its decoder") from error

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the weights in memory."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self._tensors()}
        return sum(storages.values())

    def load(self, weights: Any) -> None:
        """See ``RowModel``."""
        state = checked(weights if isinstance(weights, Mapping) else weights.state_dict(), self._model.state_dict())
        self._loaded = False
        with explain_out_of_memory(self.device, "a copy of the model's weights"), torch.no_grad():
            for tensor in self._tensors():
                storage, needed = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
                if storage.nbytes() < needed:
                    storage.resize_(needed)
                    self.weights = object()
            for name, tensor in self._model.state_dict().items():
                if name in state:
                    tensor.copy_(state[name])
        self._loaded = True

    def free(self) -> None:
        """See ``RowModel``."""
        self._loaded = False
        free_storage(*self._tensors())
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def compute(self, cache: KVCache, tokens: Tensor, positions: Tensor, rows: Tensor, attend: Attend) -> Tensor:
        """See ``RowModel``. The states are those after the last norm, from which the head computes logits."""
        if not self._loaded:
            raise ClosedError("the model's weights were released; load() new ones before decoding")
        return self._run(_Pass(cache, positions, rows, attend, (self.kv_heads, self.head_dim), {}), tokens)

    def logits(self, x: Tensor) -> Tensor:
        """See ``RowModel``."""
        self._given.states = x[None]
        try:
            logits: Tensor = self._head().logits[0]
        finally:
            self._given.states = None
        return logits.float()

    def _run(self, now: _Pass, tokens: Tensor) -> Tensor:
        """Run the decoder over (n,) tokens; padding, which is beyond all positions, is fed at the last of them."""
        positions = now.positions.clamp(max=self.max_tokens - 1)
        before = _under_way.set(now)
        try:
            out = self._model.base_model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        finally:
            _under_way.reset(before)
        self._given.output = type(out)
        states: Tensor = out.last_hidden_state[0]
        return states

    def _probed_shape(self) -> tuple[int, int]:
        """Return KV heads and head_dim of the cells that all layers' keys and values fit into.

        Raises:
            InputError: layers attend by themselves, or have different numbers of KV heads.
        """
        positions = torch.arange(2, device=self.device)

        def nothing(layer: int, queries: Tensor, form: AttentionForm) -> Tensor:
            raise AssertionError("nothing is attended to where only shapes are wanted")

        now = _Pass(None, positions, positions, nothing, (0, 0), {})
        kind = self._model.config.model_type
        try:
            self._run(now, positions)
        except Exception as error:
            raise unsupported(kind, f"its forward pass does not take tokens by rows ({error!s:.120})") from error
        if sorted(now.layers) != list(range(self.layer_count)):
            raise unsupported(kind, f"{len(now.layers)} of its {self.layer_count} layers attend by transformers' interface")
        if len(heads := {kv_heads for kv_heads, _, _ in now.layers.values()}) > 1:
            raise unsupported(kind, f"its layers have {min(heads)} to {max(heads)} KV heads")
        return heads.pop(), max(max(dim, values) for _, dim, values in now.layers.values())

    def _compare(self) -> None:
        """Compare logits of two short rows, prefilled and decoded together, with those of the model's own attention.

        Raises:
            InputError: they differ.
        """
        tokens = [torch.arange(count, device=self.device) * 7 % self.vocabulary for count in PROBED]
        width = blocks(max(PROBED))
        cache = KVCache(self.layer_count, self.kv_heads, self.head_dim, width, self.dtype, self.device)
        cache.reserve_rows(len(tokens))
        prefill(self, cache, [Segment(row, 0, ids[:-1]) for row, ids in enumerate(tokens)])
        last = torch.stack([ids[-1] for ids in tokens])
        positions = torch.tensor([len(ids) - 1 for ids in tokens], device=self.device)
        found = self.logits(self.decode(cache, last, positions, width))
        _attend_by(self._model, "eager")
        own = torch.stack([self._model(input_ids=ids[None], use_cache=False).logits[0, -1].float() for ids in tokens])
        _attend_by(self._model, ATTENTION)
        allowed = CLOSE * max(1.0, float(own.abs().max()))
        if self.dtype.itemsize < torch.float32.itemsize:  # rounding may choose other experts
            allowed = CLOSE_ROUNDED * float((own[0] - own[1]).abs().max())
        if not float((found - own).abs().max()) <= allowed:
            raise unsupported(self._model.config.model_type, "rows that are computed together change its logits")

    def _tensors(self) -> list[Tensor]:
        return [weight.data for weight in self._model.parameters()]


def checked(state: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return ``state`` if it holds all that ``mine`` holds, in the same shapes; one name of tied weights is enough.

    Raises:
        InputError: it does not.
    """
    if (more := next((name for name in state if name not in mine), None)) is not None:
        raise InputError(f"the weights have {more}, which the model does not have; {SAME}")
    first: dict[Any, str] = {}
    for name, tensor in mine.items():
        twin = first.setdefault(tensor.data_ptr() or name, name)
        if name not in state:
            if twin not in state:
                raise InputError(f"the weights have no {name}; {SAME}")
            continue
        shape, needed = tuple(state[name].shape), tuple(tensor.shape)
        if shape != needed:
            raise InputError(f"the weights' {name} is of shape {shape}, the model's of {needed}; {SAME}")
        if twin in state and state[name] is not state[twin] and not torch.equal(state[name], state[twin]):
            raise InputError(f"the weights' {name} and {twin} differ, but are one in the model; {SAME}")
    return state


def _attend_by(model: Any, implementation: str) -> None:
    """Let all parts of the model attend by an implementation, whatever it says of itself."""
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation_internal = implementation


def _stays_exact(model: Any, name: str) -> bool:
    """Return whether transformers keeps this parameter in float32 in every number format."""
    kept = {
        *(getattr(model, "_keep_in_fp32_modules", None) or ()),
        *(getattr(model, "_keep_in_fp32_modules_strict", None) or ()),
    }
    return any(part in name for part in kept)
