"""A model in tensor-parallel parts without weights of its own: placements and forward passes are those of transformers.

``model.tp_plan`` says which layers are cut by columns and which by rows. ``apply_tensor_parallelism`` makes their parameters
``DTensor``s and adds the collective operations. Here the parameters have no memory until ``fill`` gives them shards.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor, nn
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.reallocation.shards import Shards, Weight


class TensorParallelModel:
    """A copy of a module of transformers models, in tensor-parallel parts, whose weights come and go.

    Args:
        module: one model, or a module that holds several, in whole weights. It is left as it is.
        mesh: device mesh of the names ``dp`` and ``tp``, of all processes.

    Attributes:
        module: the copy, in evaluation mode. mesh: of its parts.
        shards: what each rank needs of the weights, by the names of ``module``.

    Raises:
        InputError: a model cannot be cut into so many parts, see ``check_tensor_parallel``.
    """

    def __init__(self, module: Any, mesh: Any) -> None:
        dp, tp = mesh.shape
        self.module, self.mesh = _without_weights(module), mesh["tp"]
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        places = [
            (names[id(parameter)], part, own)
            for part in self.module.modules()
            for own, parameter in part._parameters.items()
            if parameter is not None
        ]
        for model in _models(self.module) if tp > 1 else ():
            check_tensor_parallel(model, tp)
            _cut(model, self.mesh)
        self._places = [(name, part, own, part._parameters[own]) for name, part, own in places]
        first = {name: empty for name, _, _, empty in reversed(self._places)}
        self.shards = shards_of(first, tuple(rank % tp for rank in range(dp * tp)))
        for name, _, own, empty in self._places:
            if _dimension(name, empty) != self.shards.dims.get(name):
                raise InputError(f"weight {name!r} is shared, but {own!r} is cut in another way; preparation_tp 1 is needed")

    def fill(self, local: Mapping[str, Tensor]) -> None:
        """Set the weights of this rank to its shards, by name; weights that share memory share the shard."""
        for name, part, own, empty in self._places:
            values: Tensor = local[name]
            if isinstance(empty, DTensor):
                values = DTensor.from_local(
                    values, self.mesh, empty.placements, run_check=False, shape=empty.shape, stride=empty.stride()
                )
            part._parameters[own] = nn.Parameter(values, requires_grad=False)

    def empty(self) -> None:
        """Release the weights."""
        for _, part, own, empty in self._places:
            part._parameters[own] = empty


def shards_of(parameters: Mapping[str, Tensor], part_of: tuple[int, ...]) -> Shards:
    """Return the shards that parameters say they are of: a ``DTensor`` by its placement, another tensor is whole.

    Args:
        part_of: (ranks,) the part of each rank in the parameters' device mesh.

    Raises:
        InputError: a placement is neither whole nor one interval, as of weights that are fused into one.
    """
    weights = {name: Weight(tuple(value.shape), value.element_size()) for name, value in parameters.items()}
    dims = {name: dim for name, value in parameters.items() if (dim := _dimension(name, value)) is not None}
    return Shards(weights, dims, part_of)


def local_shards(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's shards of parameters."""
    return {
        name: value.to_local().detach() if isinstance(value, DTensor) else value.detach() for name, value in parameters.items()
    }


def check_tensor_parallel(model: Any, tp: int) -> None:
    """Check that a model of transformers can be cut into ``tp`` parts.

    Raises:
        InputError: transformers has no plan for it, a part would not have whole attention heads, or transformers is too old.
    """
    kind, config = model.config.model_type, model.config.get_text_config()
    if tp == 1:
        return
    if not getattr(model, "tp_plan", None):
        raise InputError(
            f"preparation_tp is {tp}, but transformers has no tensor-parallel plan for model type {kind!r}; give 1, or leave "
            "it out"
        )
    for name, what in (("num_key_value_heads", "key-value heads"), ("num_attention_heads", "attention heads")):
        heads = getattr(config, name, None)
        if heads is not None and heads % tp:
            raise InputError(
                f"preparation_tp is {tp}, which does not divide the {heads} {what} of model type {kind!r}; give a divisor"
            )
    _apply_tensor_parallelism()


def _apply_tensor_parallelism() -> Any:
    """Return the function of transformers that cuts a model."""
    try:
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError:
        raise InputError(
            f"preparation_tp needs a newer transformers than {version('transformers')}; install 5.19, or leave it out"
        ) from None
    return apply_tensor_parallelism


def _cut(model: Any, mesh: Any) -> None:
    """Make the layers of a model's plan tensor-parallel. A vocabulary that is not divisible stays whole, in and out."""
    plan, tp = dict(model.tp_plan), mesh.size()
    if model.config.get_text_config().vocab_size % tp:
        ends = [model.get_input_embeddings(), model.get_output_embeddings()]
        whole = {name for name, part in model.named_modules() if any(part is end for end in ends)}
        plan = {name: style for name, style in plan.items() if name not in whole}
    _apply_tensor_parallelism()(model, mesh, plan)


def _models(module: nn.Module) -> Iterable[Any]:
    """Return the transformers models in a module, without those inside others."""
    if isinstance(module, PreTrainedModel):
        return [module]
    return [model for child in module.children() for model in _models(child)]


def _without_weights(module: Any) -> Any:
    """Return a copy whose parameters have shapes but no memory; buffers are copied, and ties stay."""
    empty = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in module.parameters()
    }
    return copy.deepcopy(module, dict(empty)).eval()


def _dimension(name: str, value: Tensor) -> int | None:
    """Return along which dimension a parameter is cut; None if it is whole."""
    if not isinstance(value, DTensor):
        return None
    (placement,) = value.placements
    if isinstance(placement, Replicate):
        return None
    if type(placement) is not Shard:
        raise InputError(
            f"weight {name!r} is cut as {placement}, which is more than one interval; preparation_tp 1 is needed for this model"
        )
    return placement.dim % value.dim()
