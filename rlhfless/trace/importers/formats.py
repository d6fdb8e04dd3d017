"""Interface of an importer: a name, a function that recognises its log, and a function that reads it.

Every format is one file in this folder that ends with a ``Format``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.import_session import PEEK_BYTES, ImportOptions, ImportSession
from rlhfless.trace.json_lines import JSON_HINT

NAME_HINT = "is not a log of a known format; a file of one JSON object per line needs a name that ends in .jsonl or .jsonl.gz"


@dataclass(frozen=True)
class Format:
    """The log format of one framework.

    Attributes:
        name: as in ``--from``.
        title: display name.
        detect: returns whether a path is such a log, judged by names and the first record; it never raises.
        read: yields batches of responses in the order of the log (columns: see ``assemble.py``); reports steps' scalars, notes
            and repeated rows to the import session. It raises TraceError, one sentence, for what it cannot read.
        known_fields: fields that it knows; others are named in the summary. Empty if any field is allowed.
        expected: fields of the current version; those that a log lacks are named in the summary.
    """

    name: str
    title: str
    detect: Callable[[Path], bool]
    read: Callable[[ImportSession], Iterator[pd.DataFrame]]
    known_fields: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()


def numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Return number and path of a folder's entries whose whole name matches, sorted by number; the pattern's group is the
    number.
    """
    if not folder.is_dir():
        return []
    matches = ((re.fullmatch(pattern, path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match and len(match[1]) < 16)


def file_of(path: Path, pattern: str) -> list[tuple[int, Path]]:
    """Like ``numbered`` for a single file: itself, if its name matches."""
    match = re.fullmatch(pattern, path.name)
    return [(int(match[1]), path)] if match and len(match[1]) < 16 and path.is_file() else []


def refuse_unknown(path: Path, names: Sequence[str], hint: str) -> NoReturn:
    """Raise the error about a log that no importer recognises.

    Args:
        names: names of the formats. hint: what a text lacks to be a console's; empty for what is no text.

    Raises:
        TraceError: always.
    """
    if path.is_file() and path.name.lower().endswith(".gz"):
        with ImportSession(path, ImportOptions()).open(path) as stream:
            stream.read(PEEK_BYTES)  # refuses what cannot be unpacked
    if path.is_dir():
        raise TraceError(
            f"{path}: is a folder without any log that is known; name the file or folder that a framework wrote, of "
            f"{', '.join(names)}"
        )
    if path.name.lower().endswith((".json", ".json.gz")):
        with ImportSession(path, ImportOptions()).open(path) as stream:
            is_array = stream.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        raise TraceError(f"{path}: {JSON_HINT if is_array else NAME_HINT}")
    if hint:
        raise TraceError(f"{path}: {hint}")
    raise TraceError(f"{path}: is not a log of a known format; known are {', '.join(names)} (csv, jsonl or parquet)")
