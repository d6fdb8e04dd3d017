"""Reads rows of a data set from a jsonl or parquet file, from the ``datasets`` library, or from memory.

Files have the limits of logs (``rlhfless.trace.limits``): a few kilobytes of parquet can hold millions of equal rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, missing_extra, reason
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.storage import read_table

Rows = list[Mapping[str, Any]]


def read_rows(source: Any, split: str = "train", limits: Limits | None = None) -> tuple[str, Rows]:
    """Return a name for ``source`` and its rows.

    Args:
        source: a .jsonl or .parquet file; a name on the hub, ``owner/name`` or ``owner/name:configuration``; or rows in memory.
            Those are a ``datasets.Dataset``, a pandas frame or a list of mappings.
        split: of a data set of the hub. limits: maximal amounts to read of a file; None takes the default.

    Raises:
        InputError: it cannot be read, or is empty.
        TraceError: a parquet file is damaged, or a file is larger than the limits.
        MissingExtra: the source is on the hub and ``datasets`` is not installed.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        name, rows = (
            (path.stem, _from_file(path, Guard(limits)))
            if path.suffix in (".jsonl", ".parquet")
            else _from_hub(str(source), split)
        )
    else:
        name, rows = "dataset", _in_memory(source)
    if not rows:
        raise InputError(f"{source if isinstance(source, str | Path) else 'the data set'}: has no rows; at least 1 is needed")
    return name, rows


def require_columns(rows: Rows, columns: Mapping[str, str], location: str) -> None:
    """Check that every row has the needed columns.

    Args:
        columns: purpose of a column → its name.

    Raises:
        InputError: naming the first row without a column, and the columns that it has.
    """
    for purpose, column in columns.items():
        for number, row in enumerate(rows):
            if column not in row:
                raise InputError(
                    f"{location}: row {number} has no column {column!r} for the {purpose}; it has {', '.join(map(str, row))}"
                )


def _from_file(path: Path, guard: Guard) -> Rows:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    if path.suffix == ".parquet":
        return list(read_table(path, guard).to_pylist())
    with path.open("rb") as stream:  # bytes end lines at line feeds only; texts hold other ends, such as U+2028
        return [_row(line, f"{path}: line {number}") for number, line in guard.lines(path, stream) if line.strip()]


def _row(line: bytes, location: str) -> Mapping[str, Any]:
    """Return the object of a line of JSON."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{location} is not UTF-8 (byte {error.start}: {error.reason}); save the file as UTF-8") from None
    except ValueError as error:
        raise InputError(
            f"{location} is not JSON ({getattr(error, 'msg', error)}); one JSON object per line is needed"
        ) from None
    if not isinstance(row, dict):
        raise InputError(f"{location} is of type {type(row).__name__}; one JSON object per line is needed")
    return row


def _from_hub(name: str, split: str) -> tuple[str, Rows]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise missing_extra(f"the data set {name!r}", error.name, "datasets") from None
    path, _, configuration = name.partition(":")
    try:
        return path.rsplit("/", 1)[-1], list(load_dataset(path, configuration or None, split=split))
    except Exception as error:  # whatever the library or the network says
        raise InputError(
            f"{name}: is neither a .jsonl or .parquet file nor a data set that could be loaded: {reason(error)}"
        ) from error


def _in_memory(source: Any) -> Rows:
    if hasattr(source, "to_dict") and hasattr(source, "itertuples"):
        source = source.to_dict("records")
    rows = list(source) if isinstance(source, Iterable) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            f"the data set is of type {type(source).__name__}; a file, a name on the hub, or a list of mappings is needed"
        )
    return rows
