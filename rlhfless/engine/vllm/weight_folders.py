"""Weights on their way from the learner to vLLM: a folder per version, which is never changed once it is there.

Knows folders and version numbers; nothing of vLLM, engines or training. A folder is what transformers' ``save_pretrained``
writes, ``config.json`` and safetensors, with a file that says which version it is. It is written beside its place and renamed,
so whoever sees it sees all of it. In ``/dev/shm`` it never touches a disk.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError

VERSION_FILE = "weights_version.json"
HEAD_FILE = "lm_head.safetensors"  # a copy of output weights that are the embedding's, which transformers leaves out


def write_weights(model: Any, root: str | Path, version: int, keep: Path | None = None) -> Path:
    """Write a model's weights under ``root`` and remove those of other versions.

    Args:
        model: a transformers model.
        keep: a folder of another version that stays: the last step's, which actors that start ahead of this one may be reading.

    Returns:
        The folder that holds them, and nothing else from now on.
    """
    from safetensors.torch import save_file
    from transformers.utils import logging

    root = Path(root)
    folder, unfinished = root / f"weights-{version}", root / f".weights-{version}.{os.getpid()}"
    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # one for every step
    try:
        model.save_pretrained(unfinished, safe_serialization=True)
    finally:
        if shows_bars:
            logging.enable_progress_bar()
    if model.config.tie_word_embeddings:
        save_file({"lm_head.weight": model.get_output_embeddings().weight.detach().contiguous()}, unfinished / HEAD_FILE)
    (unfinished / VERSION_FILE).write_text(json.dumps({"weights_version": version}))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    for other in root.glob("weights-*"):
        if other not in (folder, keep):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def check_weights(folder: Path, version: int) -> None:
    """Refuse a folder that is not a whole one of this version.

    Raises:
        InputError: naming the folder, what it holds, and what would be right.
    """
    try:
        held = json.loads((folder / VERSION_FILE).read_text())["weights_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{folder}: holds no weights of a known version, {VERSION_FILE} is missing; write them with write_weights"
        ) from None
    if held != version:
        raise InputError(f"{folder}: holds weights {held}, but the step is decoded with weights {version}; write those")
