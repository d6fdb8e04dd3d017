"""Finds what turns a log's texts into tokens."""

from __future__ import annotations

from pathlib import Path

from rlhfless.analysis.draft_groups import Encode

TEXTS = frozenset({"prompt", "response"})
"""Columns of a log's texts, which an import leaves out unless it is asked to keep them."""


def text_encoder(tokenizer: str | None) -> tuple[Encode, str]:
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
