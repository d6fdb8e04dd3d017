"""Opens a log with the texts that a study of it uses, and finds what turns texts into tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from rlhfless.analysis.draft_groups import Encode
from rlhfless.errors import InputError
from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog, Trace, read_log
from rlhfless.trace.importers.import_session import TEXTS

MAX_BYTES = 256 << 20
"""Texts of larger logs are not kept for reports: they could take several times as much memory."""


def opened_log(
    source: str | Path | OpenedLog | ImportedLog | Trace | pd.DataFrame,
    options: ImportOptions | None = None,
    framework: str = "auto",
) -> OpenedLog | ImportedLog:
    """Return a log or trace, opened with its texts where it is a path; an import where it has no responses.

    Args:
        source: a path, or what is open already: a trace, a frame of rollouts, or what ``rlhfless.trace`` opened or imported.
        options, framework: how a path is read; see ``rlhfless.trace.open_log``.

    Raises:
        TraceError: the path is no trace or log, or is wrong.
        InputError: the source is something else.
    """
    if isinstance(source, pd.DataFrame):
        source = Trace(source)
    if isinstance(source, Trace):
        return OpenedLog(source, pd.DataFrame({"step": []}), str(source.meta.get("framework") or ""))
    if isinstance(source, OpenedLog):
        return source
    if isinstance(source, ImportedLog):
        return source if source.rollouts is None else source.opened()
    if not isinstance(source, str | Path):
        raise InputError(
            f"source is of type {type(source).__name__}; the path of a log or trace, a trace or a DataFrame is needed"
        )
    options = options or ImportOptions()
    return read_log(source, replace(options, keep=options.keep | texts_of(source)), framework)


def texts_of(path: str | Path) -> frozenset[str]:
    """Return the columns of texts that a report keeps while it reads a log: none where its files are too large."""
    path = Path(path)
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return TEXTS if sum(file.stat().st_size for file in files if file.is_file()) <= MAX_BYTES else frozenset()
    except OSError:
        return TEXTS  # opening the log reports what is wrong with it


def text_encoder(tokenizer: str | Path | None) -> tuple[Encode, str]:
    """Return a function that encodes a text, and its unit: tokens, or UTF-8 bytes without a tokenizer.

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
