"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) by the package ``peft``: what is trained, and merged weights.

A layer computes W x + (alpha / rank) B A x. W is frozen; A and B are trained. The policy that generates has whole weights,
into which the adapters are merged after every update. ``save_adapter`` writes the adapters alone. Needs peft, which is imported
where it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, missing_extra
from rlhfless.training import missing_torch

try:
    import torch
    from safetensors.torch import save_file
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.config.learning import UpdateOptions

ADAPTER = "default"


def check_lora() -> None:
    """Check that adapters can be made in this installation.

    Raises:
        MissingExtra: peft is not installed.
    """
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise missing_extra("LoRA (lora_rank)", error.name, "lora") from None


def with_adapters(base: Any, options: UpdateOptions, seed: int) -> Any:
    """Return a model of the same class with new adapters, whose other weights are those of ``base``, in the same memory.

    Args:
        base: a transformers model whose weights never change.
        options: with ``lora_rank``, ``lora_alpha`` and ``lora_targets``.
        seed: of the first A. B is zero, so that training begins with the model as it is.

    Raises:
        InputError: no layer has one of the names in ``lora_targets``, the rank is above that of every layer, or peft cannot
            adapt it.
        MissingExtra: peft is not installed.
    """
    check_lora()
    from peft import LoraConfig, inject_adapter_in_model

    linear = [(name.rsplit(".", 1)[-1], module) for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)]
    layers = {name for name, _ in linear}
    output = base.get_output_embeddings()
    head = {name.rsplit(".", 1)[-1] for name, module in base.named_modules() if module is output}
    targets = list(options.lora_targets or ()) or sorted(layers - head)
    if unknown := [name for name in targets if name not in layers]:
        raise InputError(
            f"lora_targets names {', '.join(map(repr, unknown))}, but the model's linear layers are {', '.join(sorted(layers))}"
        )
    assert options.lora_rank is not None
    highest = max(min(module.weight.shape) for name, module in linear if name in targets)
    if options.lora_rank > highest:
        raise InputError(
            f"lora_rank is {options.lora_rank}, but no adapted layer has a rank above {highest}; give at most that"
        )
    shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
    alpha = 2.0 * options.lora_rank if options.lora_alpha is None else options.lora_alpha
    config = LoraConfig(r=options.lora_rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = inject_adapter_in_model(config, copy.deepcopy(base, shared), adapter_name=ADAPTER)
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_(is_adapter(name))
    return adapted


def is_adapter(name: str) -> bool:
    """Return whether a parameter of this name is of an adapter."""
    return ".lora_" in name


@torch.no_grad()
def merge_into(model: Any, adapted: Any) -> None:
    """Set a model's weights to the base weights of ``adapted`` with its adapters merged: W + (alpha / rank) B A."""
    for name, weight, delta in _deltas(adapted):
        model.get_submodule(name).weight.copy_(weight + delta.to(weight.dtype))


def save_adapter(adapted: Any, folder: Path, base: str | None) -> None:
    """Write the adapters of a model in PEFT's format: ``peft.PeftModel.from_pretrained(base_model, folder)`` reads it.

    Args:
        adapted: a model of ``with_adapters``. base: folder or name of its other weights, which the adapter names.

    Raises:
        TrainError: it could not be written, as on a full disk; earlier content is unchanged.
    """
    from peft import get_peft_model_state_dict

    from rlhfless.training.models.saved_folder import saved_folder  # needs pandas, which machines for learning alone may lack

    weights = get_peft_model_state_dict(adapted, adapter_name=ADAPTER, save_embedding_layers=False)  # else it asks the hub
    config = copy.deepcopy(adapted.peft_config[ADAPTER])
    config.base_model_name_or_path, config.task_type, config.inference_mode = base, "CAUSAL_LM", True
    with saved_folder(folder) as draft:
        config.save_pretrained(draft)
        named = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in weights.items()}
        save_file(named, draft / "adapter_model.safetensors", metadata={"format": "pt"})


def _deltas(adapted: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, frozen weight and change of each adapted layer."""
    from peft.tuners.lora import LoraLayer

    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module.get_base_layer().weight, module.get_delta_weight(ADAPTER)
