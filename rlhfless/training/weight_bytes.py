"""Weights of a model, known before it is loaded: a Ray cluster is started, and a latency profile is chosen for them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rlhfless.latency.profile import ITEM_BYTES
from rlhfless.system.model_folders import local_folder
from rlhfless.training.config.learning import Precision

HEADER_BYTES = 8  # that say how long the header of a safetensors file is


def generated_weight_bytes(model: str | Path | tuple[Any, Any] | None, folder: Path | None, precision: Precision) -> int:
    """Return the bytes of the weights that actors receive in every step; 0 where only the loaded model will say.

    Args:
        model: a folder of transformers, a name on the hub, which is loaded, or a model with its tokenizer; None: a new one is
            warmed up, which is tiny.
        folder: of the run that is resumed, whose own weights are used; None starts one.
        precision: number format of generation.

    Raises:
        InputError: there is no such folder, or the hub did not give the model.
    """
    resumed = None if folder is None else folder / "warm"
    if not isinstance(model, tuple) and resumed is not None and resumed.is_dir():
        model = resumed
    return 0 if model is None else weights_of(model) * ITEM_BYTES[precision]


def weights_of(model: str | Path | tuple[Any, Any]) -> int:
    """Return the number of weights of a model; 0 where only the loaded model will say.

    Raises:
        InputError: see ``generated_weight_bytes``.
    """
    if isinstance(model, tuple):
        return sum(int(weight.numel()) for weight in model[0].parameters())
    return sum(map(weights_of_file, local_folder(model).glob("*.safetensors")))


def weights_of_file(path: Path) -> int:
    """Return the number of weights in a safetensors file, by its header; 0 for a damaged file, which loading reports."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(HEADER_BYTES), "little")))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, OverflowError, MemoryError, KeyError, TypeError):
        return 0
