"""Loads a pretrained transformers model from a folder: safetensors only, no code of the model, no network access."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.errors import InputError
from rlhfless.system.model_folders import from_folder
from rlhfless.training.config import TrainError


def load_pretrained(kind: Any, folder: str | Path) -> Any:
    """Return the model in a folder, in float32 on the CPU, in evaluation mode.

    Args:
        kind: class of transformers that loads it, such as ``AutoModelForCausalLM``.

    Raises:
        TrainError: ``folder`` lacks the model, or has no safetensors of it, or transformers cannot read it.
        InputError: the model contains its own code, which would have to be run.
    """
    if not (Path(folder) / "config.json").is_file():
        raise TrainError(f"{folder}: holds no model, config.json is missing; name a folder with a model of transformers")
    if not any(Path(folder).glob("*.safetensors")):
        raise TrainError(f"{folder}: holds no weights, model.safetensors is missing; save the weights as safetensors")
    try:
        return from_folder(kind, folder, use_safetensors=True, dtype=torch.float32).eval()
    except InputError:
        raise
    except Exception as error:  # what a wrong config.json or damaged weights end in has classes of several libraries
        reason = textwrap.shorten(str(error), 200, placeholder=" ...")
        raise TrainError(
            f"{folder}: its model cannot be loaded by {kind.__name__} ({reason}); give a folder written by "
            "a model's save_pretrained"
        ) from error
