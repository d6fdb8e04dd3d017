"""Copies the weights of a transformers model into the form of the torch engine: few, large matrix products.

Supports the Llama-like architectures of ``check_architecture``, by names and shapes of their parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.errors import InputError

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that depend on the position alone; others depend on how long the context has become, or rotate a part of
each head."""
SAME = "give a model of the architecture that is loaded, or its state dict"

Shapes = Mapping[str, tuple[int, ...]]


class Linear(NamedTuple):
    """``x @ weight.T + bias``; the weight is (outputs, inputs), the bias (outputs,) or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Layer(NamedTuple):
    """One decoder layer: ``qkv`` is the queries', keys' and values' matrices in one, ``gate_up`` the MLP's two."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None  # over each head, Qwen3 only
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Weights(NamedTuple):
    """The weights of a whole model: ``embedding`` is (vocabulary, hidden), the final ``norm`` (hidden,), ``head`` gives
    logits.
    """

    embedding: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Linear


def check_architecture(model: Any) -> None:
    """Refuse models that the pass of ``model.py`` would compute wrongly.

    Raises:
        InputError: it is no language model with its head, or its architecture is not supported.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "base_model"):
        raise InputError(f"the torch engine decodes transformers language models, not a {type(model).__name__}")
    if model.base_model is model:
        raise InputError(
            f"the torch engine needs a model with its language-model head, which {type(model).__name__} lacks; load it with "
            "AutoModelForCausalLM"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = model.base_model.rotary_emb.rope_type if config.model_type in ARCHITECTURES else ""
    if kinds != {"full_attention"} or rope not in ROPES or config.hidden_act != "silu":
        raise InputError(
            f"the torch engine decodes {', '.join(ARCHITECTURES[:-1])} and {ARCHITECTURES[-1]} models with full attention and "
            f"fixed rotary embeddings, not {config.model_type!r} as configured here; use the vLLM engine for it"
        )


def shapes_of(model: Any) -> Shapes:
    """Return the shapes of a model's parameters by name; weights that are loaded later must have the same shapes."""
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


@torch.inference_mode()
def copy_weights(source: Any, shapes: Shapes, layers: int, device: torch.device, dtype: torch.dtype) -> Weights:
    """Return a copy of the weights of a model or of its state dict.

    Projections that read the same input become one matrix, and a head that is tied to the embedding is the embedding.

    Raises:
        InputError: a parameter is missing or not of the shape that it has in ``shapes``, or there are more than ``layers``
            layers.
    """
    state: Mapping[str, Tensor] = source if isinstance(source, Mapping) else source.state_dict()
    if (more := next((name for name in state if name.startswith(f"model.layers.{layers}.")), None)) is not None:
        raise InputError(f"the weights have {more}, but the model has {layers} layers; {SAME}")

    def copy(name: str) -> Tensor:
        if name not in state:
            raise InputError(f"the weights have no {name}; {SAME}")
        if (shape := tuple(state[name].shape)) != shapes.get(name, shape):
            raise InputError(f"the weights' {name} is of shape {shape}, the model's of {shapes[name]}; {SAME}")
        return state[name].detach().to(device, dtype, copy=True)

    def optional(name: str) -> Tensor | None:
        return copy(name) if name in state else None

    def linear(*names: str) -> Linear:
        bias = torch.cat([copy(f"{n}.bias") for n in names]) if f"{names[0]}.bias" in state else None
        return Linear(torch.cat([copy(f"{n}.weight") for n in names]), bias)

    embedding = copy("model.embed_tokens.weight")
    head = state.get("lm_head.weight")
    tied = head is None or head.is_set_to(state["model.embed_tokens.weight"])  # a state dict names what is tied twice
    return Weights(
        embedding,
        [
            Layer(
                copy(f"{p}.input_layernorm.weight"),
                linear(f"{p}.self_attn.q_proj", f"{p}.self_attn.k_proj", f"{p}.self_attn.v_proj"),
                optional(f"{p}.self_attn.q_norm.weight"),
                optional(f"{p}.self_attn.k_norm.weight"),
                linear(f"{p}.self_attn.o_proj"),
                copy(f"{p}.post_attention_layernorm.weight"),
                linear(f"{p}.mlp.gate_proj", f"{p}.mlp.up_proj"),
                linear(f"{p}.mlp.down_proj"),
            )
            for p in (f"model.layers.{i}" for i in range(layers))
        ],
        copy("model.norm.weight"),
        Linear(embedding if tied else copy("lm_head.weight"), None),
    )


def no_weights() -> Weights:
    """Return empty weights, which take no memory."""
    return Weights(torch.empty(0), [], torch.empty(0), Linear(torch.empty(0), None))


def held_bytes(weights: Weights) -> int:
    """Return the bytes of all weights, a tensor that is used twice counted once."""
    return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors_of(weights)}.values())


def tensors_of(weights: Weights) -> list[Tensor]:
    """Return all tensors; a tensor that is used twice comes twice."""
    linears = [weights.head, *(part for layer in weights.layers for part in layer if isinstance(part, Linear))]
    norms = [part for layer in weights.layers for part in layer if isinstance(part, Tensor)]
    return [weights.embedding, weights.norm, *norms, *(t for linear in linears for t in linear if t is not None)]
