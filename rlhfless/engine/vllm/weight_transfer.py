"""Weights that a replica takes over from the trainer's memory by vLLM's weight-transfer API, without a folder in between.

vLLM's backend ``ipc`` reads the trainer's CUDA memory on the same GPU. The replica starts with an older folder, and gets the
step's weights then. Its backend ``nccl`` receives them on another GPU, from the trainer's ``WeightServer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

IPC, NCCL = "ipc", "nccl"


@dataclass(frozen=True)
class ServerAddress:
    """Where a trainer's ``WeightServer`` listens, and the key by which both ends know each other."""

    host: str
    port: int
    key: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class TransferredWeights:
    """Where a replica finds the weights of a step.

    Attributes:
        backend: of vLLM's ``WeightTransferConfig``; the replica is started with it.
        update: arguments of vLLM's ``update_weights``, of weights on this machine. nbytes: of the weights.
        folder_version: of the weights in the folder with which a replica starts.
        server: that sends the weights; None: they are where ``update`` says.
    """

    backend: str
    update: Mapping[str, Any]
    nbytes: int
    folder_version: int
    server: ServerAddress | None = None

    @classmethod
    def sent_by(cls, server: ServerAddress, nbytes: int, folder_version: int) -> TransferredWeights:
        """Return weights that the server sends to whoever asks for the step's version."""
        return cls(NCCL, {}, nbytes, folder_version, server)


def shared_by_ipc(model: Any, folder_version: int) -> TransferredWeights:
    """Return handles of a model's weights on its GPU, which must stay there, unchanged, until the step is generated.

    Args:
        model: a transformers model on a CUDA device. folder_version: see ``TransferredWeights``.
    """
    from torch.multiprocessing.reductions import reduce_tensor

    uuid = str(torch.cuda.get_device_properties(model.device).uuid)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    torch.cuda.synchronize(model.device)  # another process reads them
    update = {
        "names": list(weights),
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
        "shapes": [list(weight.shape) for weight in weights.values()],
        "ipc_handles": [{uuid: reduce_tensor(weight)[1]} for weight in weights.values()],  # type: ignore[no-untyped-call]
    }
    return TransferredWeights(IPC, update, sum(weight.nbytes for weight in weights.values()), folder_version)
