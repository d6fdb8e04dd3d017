"""The ways in which each step's weights reach vLLM's replicas: a folder in memory, the memory of one GPU, or NCCL between GPUs.

Each way publishes the weights of a step, which stay as they are until ``release``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from rlhfless.system.scratch_folders import OwnFolder, in_memory

if TYPE_CHECKING:
    from rlhfless.engine.vllm.weight_transfer import TransferredWeights

PREFIX = "rlhfless-weights-"


class PublishedWeights(NamedTuple):
    """Where replicas find a step's weights: in a folder, or elsewhere and the folder is for their start."""

    folder: Path
    transferred: TransferredWeights | None = None


class WeightSync(Protocol):
    """One of the ways."""

    def publish(self, model: Any, step: int) -> PublishedWeights:
        """Make the current weights of ``model``, those of ``step``, available to replicas."""
        ...

    def release(self) -> None:
        """Withdraw the step's weights, which may change from now on. Idempotent."""
        ...

    def close(self) -> None:
        """Remove what is stored. Idempotent."""
        ...


class FolderSync:
    """Writes each step's weights to a folder, in memory where the system has an in-memory file system. Actors on other machines
    read a shipped copy there (``engine/vllm/weight_shipping``).

    Args:
        keeps_last: also keep the last step's weights, for actors that are prewarmed with them before the next step.
        dtype: number format in which they are written: the one in which replicas generate. None: the model's.
    """

    def __init__(self, *, keeps_last: bool = False, dtype: torch.dtype | None = None) -> None:
        self._keeps_last, self._folder, self._dtype = keeps_last, OwnFolder(PREFIX, in_memory()), dtype
        self._last: Path | None = None

    def publish(self, model: Any, step: int) -> PublishedWeights:
        """See ``WeightSync``. Removes older folders (with ``keeps_last``, all but the last)."""
        from rlhfless.engine.vllm.weight_folders import write_weights

        folder = write_weights(model, self._folder.path, step, keep=self._last, dtype=self._dtype)
        self._last = folder if self._keeps_last else None
        return PublishedWeights(folder)

    def release(self) -> None:
        """See ``WeightSync``: removes the step's folder, which is in memory, unless actors are prewarmed with it."""
        if not self._keeps_last:
            from rlhfless.engine.vllm.weight_folders import remove_weights

            remove_weights(self._folder.path)

    def close(self) -> None:
        """See ``WeightSync``."""
        self._folder.remove()


class IpcSync:
    """Lets replicas read the weights in the model's GPU, which they share. A folder has the first weights, for their start."""

    def __init__(self) -> None:
        self._folder = OwnFolder(PREFIX, in_memory())
        self._first: tuple[Path, int] | None = None

    def publish(self, model: Any, step: int) -> PublishedWeights:
        """See ``WeightSync``."""
        from rlhfless.engine.vllm.weight_folders import write_weights
        from rlhfless.engine.vllm.weight_transfer import shared_by_ipc

        self._first = self._first or (write_weights(model, self._folder.path, step), step)
        folder, version = self._first
        return PublishedWeights(folder, shared_by_ipc(model, version))

    def release(self) -> None:
        """See ``WeightSync``: nothing is copied."""

    def close(self) -> None:
        """See ``WeightSync``."""
        self._folder.remove()


class NcclSync:
    """Sends weights from the model's GPU to those of replicas. A folder has the model's configuration, for their start.

    Args:
        host: the address of this machine at which replicas find it.
        dtype: number format in which weights are sent: the one in which replicas generate.
    """

    def __init__(self, host: str, dtype: torch.dtype) -> None:
        from rlhfless.engine.vllm.weight_server import WeightServer

        self._dtype, self._server = dtype, WeightServer(host)
        self._folder = OwnFolder(PREFIX, in_memory())

    def publish(self, model: Any, step: int) -> PublishedWeights:
        """See ``WeightSync``."""
        from rlhfless.engine.vllm.weight_folders import NO_WEIGHTS, write_config
        from rlhfless.engine.vllm.weight_server import OfferedWeights
        from rlhfless.engine.vllm.weight_transfer import TransferredWeights

        offered = OfferedWeights(model, step, self._dtype)
        self._server.offer(offered)
        folder = write_config(model, self._folder.path)
        return PublishedWeights(folder, TransferredWeights.sent_by(self._server.address, offered.nbytes, NO_WEIGHTS))

    def release(self) -> None:
        """See ``WeightSync``: waits until nothing is sent."""
        self._server.withdraw()

    def close(self) -> None:
        """See ``WeightSync``."""
        self._server.close()
        self._folder.remove()
