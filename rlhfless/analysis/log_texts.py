"""Finds what turns a log's texts into tokens."""

from __future__ import annotations

from pathlib import Path

from rlhfless.analysis.draft_groups import Encode
from rlhfless.trace.importers.import_session import TEXTS

MAX_BYTES = 256 << 20
"""Texts of larger logs are not kept for reports: they could take several times as much memory."""


def texts_of(path: str | Path) -> frozenset[str]:
    """Return the columns of texts that a report keeps while it reads a log: none where its files are too large."""
    path = Path(path)
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return TEXTS if sum(file.stat().st_size for file in files if file.is_file()) <= MAX_BYTES else frozenset()
    except OSError:
        return TEXTS  # whoever opens the log says what is wrong with it


def text_encoder(tokenizer: str | Path | None) -> tuple[Encode, str]:
    """Return what turns a text into tokens, and their unit: UTF-8 bytes without a tokenizer.

    Args:
        tokenizer: folder or hub name.
    """
    if tokenizer is None:
        return str.encode, "bytes"
    characters = Path(tokenizer) / "char_tokenizer.json"
    if characters.is_file():
        from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer

        return CharTokenizer.load(characters).encode, "tokens"
    from rlhfless.trace.importers.tokens import TokenCounter

    return TokenCounter(tokenizer).encode, "tokens"
