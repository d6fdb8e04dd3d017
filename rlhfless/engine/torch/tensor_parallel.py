"""Cuts a ``DecoderModel`` into tensor-parallel parts by the plan that transformers has for its architecture.

``base_model_tp_plan`` says which projections are cut by outputs (``colwise``) and which by inputs (``rowwise``). Each part has
its share of attention heads and of the MLP. After a projection that is cut by inputs the parts' results are added up, twice
per layer. Embedding, norms and head are whole in every part, so all parts draw the same tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.engine.torch.weights import Layer, Linear, Weights
from rlhfless.errors import InputError
from solver.model.errors import is_whole

BY_OUTPUTS, BY_INPUTS = "colwise", "rowwise"
PROJECTIONS = {  # of a ``Layer``, with their names in transformers' plan, and how they have to be cut
    "qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), BY_OUTPUTS),
    "out": (("self_attn.o_proj",), BY_INPUTS),
    "gate_up": (("mlp.gate_proj", "mlp.up_proj"), BY_OUTPUTS),
    "down": (("mlp.down_proj",), BY_INPUTS),
}


def check_parts(model: RowModel, parts: int) -> None:
    """Refuse to cut a model into parts that transformers has no plan for, or that are not equal.

    Raises:
        InputError: naming what is not divisible, or what has no plan.
    """
    if not is_whole(parts, 1):
        raise InputError(f"tensor_parallel is {parts!r}; a whole number of at least 1 is needed")
    if parts == 1:
        return
    if not isinstance(model, DecoderModel):
        raise InputError(f"tensor_parallel is {parts}, but transformers' forward pass is not cut into parts; 1 is needed")
    if parts == model.parts:  # one of them already
        return
    for names, style in PROJECTIONS.values():
        for name in names:
            if model.tp_plan.get(f"layers.*.{name}") != style:
                raise InputError(
                    f"tensor_parallel is {parts}, but transformers has no tensor-parallel plan with {name} cut {style} for "
                    "this model; 1 is needed"
                )
    counts = {"attention heads": model.heads, "key-value heads": model.kv_heads}
    if model.weights.layers:  # else they were freed, and have been checked
        counts["inner dimensions of the MLP"] = model.weights.layers[0].down.weight.shape[1]
    for what, count in counts.items():
        if count % parts:
            raise InputError(f"tensor_parallel is {parts}, which does not divide the model's {count} {what}; give a divisor")


def part_of(model: DecoderModel, rank: int, parts: int) -> DecoderModel:
    """Return one of the equal tensor-parallel parts of a whole model, on its device; parts compute together.

    Args:
        rank: of the part, below ``parts``, which ``check_parts`` accepts.
    """
    part = copy.copy(model)
    part.hooks, part.parts = [], parts
    part.heads, part.kv_heads = model.heads // parts, model.kv_heads // parts
    dim = model.head_dim
    queries, keys = model.heads * dim, model.kv_heads * dim

    def cut(layer: Layer) -> Layer:
        inner = layer.down.weight.shape[1]
        return layer._replace(
            qkv=_by_outputs(layer.qkv, (queries, keys, keys), rank, parts),
            out=_by_inputs(layer.out, rank, parts),
            gate_up=_by_outputs(layer.gate_up, (inner, inner), rank, parts),
            down=_by_inputs(layer.down, rank, parts),
        )

    whole = model.weights
    part.weights = Weights(whole.embedding, [cut(layer) for layer in whole.layers], whole.norm, whole.head)
    return part


def _by_outputs(linear: Linear, sizes: Sequence[int], rank: int, parts: int) -> Linear:
    """Return the share of each of the fused matrices' outputs, (outputs / parts, inputs)."""

    def share(tensor: Tensor) -> Tensor:
        return torch.cat([matrix.chunk(parts)[rank] for matrix in torch.split(tensor, list(sizes))])

    return Linear(share(linear.weight), None if linear.bias is None else share(linear.bias))


def _by_inputs(linear: Linear, rank: int, parts: int) -> Linear:
    """Return the share of inputs, (outputs, inputs / parts); the bias is added once, by the first part."""
    return Linear(linear.weight.chunk(parts, 1)[rank].contiguous(), linear.bias if rank == 0 else None)
