"""Tells names on a hub from paths, so that a file or folder that is not there is reported, and not looked up on the hub."""

from __future__ import annotations

import re
from pathlib import Path

HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")  # owner/name, or a name
FILE_ENDINGS = (
    ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".gz", ".zip", ".tar", ".py", ".safetensors", ".gguf",
    ".bin", ".pt", ".pth", ".ckpt", ".model",
)  # fmt: skip


def may_be_on_hub(name: str | Path, *, owned: bool = False) -> bool:
    """Return whether something that is no path here can be a name on a hub: ``owner/name`` or ``name``, no file's name.

    Args:
        owned: names without an owner do not count.

    Example:
        >>> [may_be_on_hub(name) for name in ("openai/gsm8k", "data/gsm8k.jsonl", "./gsm8k", "my/own/gsm8k")]
        [True, False, False, False]
    """
    text = str(name)
    return HUB_NAME.fullmatch(text) is not None and ("/" in text or not owned) and not text.lower().endswith(FILE_ENDINGS)
