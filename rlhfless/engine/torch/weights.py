"""Copies the weights of a transformers model into the form of the torch engine: few, large matrix products.

Supports the Llama-like architectures of ``check_architecture``, by names and shapes of their parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.torch.row_tiles import RowTiles
from rlhfless.errors import InputError

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that depend on the position alone; others depend on how long the context has become, or rotate a part of
each head."""
SAME = "give a model of the architecture that is loaded, or its state dict"

HEAD = "lm_head.weight"

Shapes = Mapping[str, tuple[int, ...]]


class Linear(NamedTuple):
    """``x @ weight.T + bias``; the weight is (outputs, inputs), the bias (outputs,) or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor, tiles: RowTiles | None = None) -> Tensor:
        """Return (n, outputs) products of (n, inputs) rows; with ``tiles``, each row has the same bits in every batch."""
        return F.linear(x, self.weight, self.bias) if tiles is None else tiles(x, self.weight, self.bias)


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

    def linears(self) -> list[Linear]:
        """Return all matrices that rows are multiplied by."""
        return [linear for layer in self.layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)] + [self.head]

    def by_place(self) -> dict[str, Tensor]:
        """Return all tensors by their place in this tree; a tensor that is used twice comes twice."""
        found = {"embedding": self.embedding, "norm": self.norm, "head.weight": self.head.weight}
        for number, layer in enumerate(self.layers):
            for name, part in layer._asdict().items():
                tensors = part._asdict() if isinstance(part, Linear) else {"": part}
                found |= {f"{number}.{name}{sub and '.'}{sub}": t for sub, t in tensors.items() if t is not None}
        return found


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
            f"fixed rotary embeddings, not {config.model_type!r} as configured here; engine 'transformers' takes it "
            "(cluster.engine=transformers in training, forward='transformers' in Python)"
        )


def shapes_of(model: Any) -> Shapes:
    """Return the shapes of a model's parameters by name; weights that are loaded later must have the same shapes."""
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


@torch.inference_mode()
def copy_weights(state: Mapping[str, Tensor], layers: int, device: torch.device, dtype: torch.dtype, old: Weights) -> Weights:
    """Return a copy of the weights of a checked state dict, written into the tensors of ``old``.

    Projections that read the same input become one matrix, and a head that is tied to the embedding is the embedding. A tensor
    that ``old`` lacks is made; where it lacks none the result is ``old`` itself, at the same addresses.
    """
    into = old.by_place() if old.layers else {}
    if (old.head.weight is old.embedding) != _tied(state):
        into.pop("head.weight", None)

    def copied(place: str, *names: str) -> Tensor:
        parts = [state[name].detach() for name in names]
        if (tensor := into.get(place)) is None:
            return torch.cat([part.to(device, dtype) for part in parts])
        row = 0
        for part in parts:
            tensor[row : row + len(part)].copy_(part)
            row += len(part)
        return tensor

    def optional(place: str, *names: str) -> Tensor | None:
        return copied(place, *names) if names[0] in state else None

    def linear(place: str, *names: str) -> Linear:
        weight = copied(f"{place}.weight", *(f"{name}.weight" for name in names))
        return Linear(weight, optional(f"{place}.bias", *(f"{name}.bias" for name in names)))

    def layer(number: int) -> Layer:
        p, at = f"model.layers.{number}", f"{number}."
        return Layer(
            copied(f"{at}input_norm", f"{p}.input_layernorm.weight"),
            linear(f"{at}qkv", f"{p}.self_attn.q_proj", f"{p}.self_attn.k_proj", f"{p}.self_attn.v_proj"),
            optional(f"{at}q_norm", f"{p}.self_attn.q_norm.weight"),
            optional(f"{at}k_norm", f"{p}.self_attn.k_norm.weight"),
            linear(f"{at}out", f"{p}.self_attn.o_proj"),
            copied(f"{at}mlp_norm", f"{p}.post_attention_layernorm.weight"),
            linear(f"{at}gate_up", f"{p}.mlp.gate_proj", f"{p}.mlp.up_proj"),
            linear(f"{at}down", f"{p}.mlp.down_proj"),
        )

    embedding = copied("embedding", "model.embed_tokens.weight")
    new = Weights(
        embedding,
        [layer(number) for number in range(layers)],
        copied("norm", "model.norm.weight"),
        Linear(embedding if _tied(state) else copied("head.weight", HEAD), None),
    )
    before, after = old.by_place(), new.by_place()
    same = before.keys() == after.keys() and all(before[place] is tensor for place, tensor in after.items())
    return old if same else new


def checked_state(source: Any, shapes: Shapes, layers: int) -> Mapping[str, Tensor]:
    """Return the state dict of a model, or the state dict that was given, if it has the parameters that ``shapes`` names.

    Raises:
        InputError: a parameter is missing or of another shape, or there are more than ``layers`` layers.
    """
    state: Mapping[str, Tensor] = source if isinstance(source, Mapping) else source.state_dict()
    if (more := next((name for name in state if name.startswith(f"model.layers.{layers}.")), None)) is not None:
        raise InputError(f"the weights have {more}, but the model has {layers} layers; {SAME}")
    for name, shape in shapes.items():
        if name in state and tuple(state[name].shape) != shape:
            raise InputError(f"the weights' {name} is of shape {tuple(state[name].shape)}, the model's of {shape}; {SAME}")
        if name not in state and name != HEAD:  # without a head of its own it is the embedding
            raise InputError(f"the weights have no {name}; {SAME}")
    return state


def _tied(state: Mapping[str, Tensor]) -> bool:
    """Return whether the head is the embedding; a state dict names what is tied twice."""
    return HEAD not in state or state[HEAD].is_set_to(state["model.embed_tokens.weight"])


def no_weights() -> Weights:
    """Return empty weights, which take no memory."""
    return Weights(torch.empty(0), [], torch.empty(0), Linear(torch.empty(0), None))


def held_bytes(weights: Weights) -> int:
    """Return the bytes of all weights, a tensor that is used twice counted once."""
    return sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors_of(weights)}.values())


def tensors_of(weights: Weights) -> list[Tensor]:
    """Return all tensors; a tensor that is used twice comes twice."""
    return list(weights.by_place().values())
