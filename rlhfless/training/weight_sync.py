"""How each step's weights reach vLLM's replicas: in a folder, which stays as it is until ``release``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlhfless.system.scratch_folders import OwnFolder, in_memory

PREFIX = "rlhfless-weights-"


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

    def publish(self, model: Any, step: int) -> Path:
        """Write the current weights of ``model``, those of ``step``; returns their folder. Removes older folders (with
        ``keeps_last``, all but the last).
        """
        from rlhfless.engine.vllm.weight_folders import write_weights

        folder = write_weights(model, self._folder.path, step, keep=self._last, dtype=self._dtype)
        self._last = folder if self._keeps_last else None
        return folder

    def release(self) -> None:
        """Remove the step's folder, which is in memory, unless actors are prewarmed with it. Idempotent."""
        if not self._keeps_last:
            from rlhfless.engine.vllm.weight_folders import remove_weights

            remove_weights(self._folder.path)

    def close(self) -> None:
        """Remove what is stored. Idempotent."""
        self._folder.remove()
