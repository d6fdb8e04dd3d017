"""Keeps the weights of a frozen model in CPU memory, and copies them to the GPU for its passes only."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
    from torch.func import functional_call
except ImportError as error:
    raise missing_torch(error) from None


def to_cpu(model: Any) -> Any:
    """Return the model with its weights in CPU memory; pinned where there is a GPU, so that copies to it are fast."""
    model.to("cpu")
    if torch.cuda.is_available():
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            tensor.data = tensor.data.pin_memory()
    return model


def copied_to(model: Any, device: Any) -> Callable[..., Any]:
    """Return a function that runs the model with copies of its weights on a device; they are freed with the function.

    The model itself stays where it is. If that is the device, it is returned as it is.
    """
    wanted = torch.device(device).type
    tensors = dict(itertools.chain(model.named_parameters(), model.named_buffers()))
    if all(tensor.device.type == wanted for tensor in tensors.values()):
        return model  # type: ignore[no-any-return]
    copies = {name: tensor.detach().to(device, non_blocking=True) for name, tensor in tensors.items()}
    return partial(_run, model, copies)


def _run(model: Any, weights: dict[str, Any], **inputs: Any) -> Any:
    return functional_call(model, weights, (), inputs)
