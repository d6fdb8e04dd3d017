"""Weight folders from the learner to vLLM: one folder per version, which never changes once it exists.

A folder contains what transformers' ``save_pretrained`` writes, ``config.json`` and safetensors, with a file that names its
version. It is written under a temporary name and renamed, so every reader sees all of it. In ``/dev/shm`` it never touches a
disk.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rlhfless.engine.common.model_files import write_model
from rlhfless.errors import InputError

VERSION_FILE = "weights_version.json"
HEAD_FILE = "lm_head.safetensors"  # a copy of output weights that are the embedding's, which transformers leaves out


def write_weights(model: Any, root: str | Path, version: int, keep: Path | None = None, dtype: Any = None) -> Path:
    """Write a model's weights under ``root`` and remove those of other versions.

    Args:
        model: a transformers model.
        keep: a folder of another version that stays: the last step's, which prewarmed actors of this step may be reading.
        dtype: number format of torch in which they are written: the one in which replicas generate. None: the model's.

    Returns:
        The folder that contains them, which nothing changes from now on.
    """
    from safetensors.torch import save_file
    from transformers.utils import logging

    root = Path(root)
    folder, unfinished = root / f"weights-{version}", root / f".weights-{version}.{os.getpid()}"
    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # one for every step
    try:
        write_model(model, unfinished, dtype)
    finally:
        if shows_bars:
            logging.enable_progress_bar()
    if model.config.tie_word_embeddings:
        head = model.get_output_embeddings().weight.detach()
        save_file({"lm_head.weight": head.to(head.dtype if dtype is None else dtype).contiguous()}, unfinished / HEAD_FILE)
    (unfinished / VERSION_FILE).write_text(json.dumps({"weights_version": version}))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    remove_weights(root, folder, keep)
    return folder


def remove_weights(root: Path, *keep: Path | None) -> None:
    """Remove the weights of all versions under ``root`` but those to keep."""
    for saved in root.glob("weights-*"):
        if saved not in keep:
            shutil.rmtree(saved, ignore_errors=True)


def check_weights(folder: Path, version: int) -> None:
    """Refuse a folder that is not a complete one of this version.

    Raises:
        InputError: naming the folder, its contents, and what would be right.
    """
    try:
        held = json.loads((folder / VERSION_FILE).read_text())["weights_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{folder}: has weights of an unknown version, {VERSION_FILE} is missing; write them with write_weights"
        ) from None
    if held != version:
        raise InputError(f"{folder}: has weights version {held}, but the step needs version {version}; write that version")
