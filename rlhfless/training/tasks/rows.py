"""Reads rows of a data set from a file, from the ``datasets`` library, or from memory.

Files have the limits of logs (``rlhfless.trace.limits``): a few kilobytes of parquet can hold millions of equal rows.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd

from rlhfless.errors import InputError, missing_extra, reason
from rlhfless.system.hub_names import may_be_on_hub
from rlhfless.trace.csv_blocks import csv_frames
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.parquet_batches import checked_metadata, parquet_batches
from rlhfless.trace.storage import seekable

Rows = list[Mapping[str, Any]]

FORMATS = ".jsonl, .json, .csv or .parquet, each also with .gz"


def read_rows(source: Any, split: str = "train", limits: Limits | None = None) -> tuple[str, Rows]:
    """Return a name for ``source`` and its rows.

    Args:
        source: a file whose name ends in ``FORMATS``; a name on the hub, ``owner/name`` or ``owner/name:configuration``, or a
            folder that ``datasets`` can load; or rows in memory. Those are a ``datasets.Dataset``, a pandas frame or a list of
            mappings. A .json file has a list of objects, or one object per line.
        split: of a data set of the hub. limits: maximal amounts to read of a file; None takes the default.

    Raises:
        InputError: there is no such file, it cannot be read, or it is empty.
        TraceError: a csv or parquet file is damaged, or a file is larger than the limits.
        MissingExtra: the source is on the hub and ``datasets`` is not installed.
    """
    if isinstance(source, str | Path):
        name, rows = _named(source, split, limits)
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
                without = "; give rewards= (task.rewards) that need no answer, or the column" if purpose == "answer" else ""
                raise InputError(
                    f"{location}: row {number} has no column {column!r} for the {purpose}; it has {', '.join(map(str, row))}"
                    + without
                )


def _named(source: str | Path, split: str, limits: Limits | None) -> tuple[str, Rows]:
    """Return the rows of a file, or of a data set of the hub."""
    path = Path(source)
    plain = Path(path.stem) if path.suffix.lower() == ".gz" else path
    reader = READERS.get(plain.suffix.lower())
    if path.is_file() and reader is None:
        raise InputError(f"{path}: the name does not show the format; a name that ends in {FORMATS} is needed")
    if path.is_file() and reader is not None:
        guard = Guard(limits)
        try:
            with path.open("rb") as raw, guard.unpacked(path, raw) as unpacked, seekable(path, unpacked) as stream:
                return plain.stem, reader(path, guard, stream)
        except (OSError, EOFError, zlib.error) as error:  # the last two of a packed file
            raise InputError(f"{path}: cannot be read ({reason(error)}); an intact file is needed") from error
    if path.is_dir() and reader is None:
        return _from_hub(str(source), split)
    if reader is not None or isinstance(source, Path) or not may_be_on_hub(source.partition(":")[0]):
        raise InputError(
            f"{source}: there is no such file; a file is needed whose name ends in {FORMATS}, or a name on the hub"
        )
    return _from_hub(source, split)


def _from_jsonl(path: Path, guard: Guard, stream: IO[bytes]) -> Rows:
    """Return the objects of a file, one per line. Bytes end lines at line feeds only; texts hold other ends, such as U+2028."""
    return [_row(line, f"{path}: line {number}") for number, line in guard.lines(path, stream) if line.strip()]


def _from_json(path: Path, guard: Guard, stream: IO[bytes]) -> Rows:
    """Return the objects of a file that is a list of objects, or has an object per line."""
    lines = guard.lines(path, stream)
    number, first = next(((number, line) for number, line in lines if line.strip()), (0, b""))
    if not first.decode("utf-8-sig", "replace").lstrip().startswith("["):
        after = (_row(line, f"{path}: line {number}") for number, line in lines if line.strip())
        return [_row(first, f"{path}: line {number}"), *after] if first else []
    rows = _json(first + guard.document(path, stream), f"{path}", "a list of objects")
    guard.add_rows(path, len(rows))
    wrong = next((i for i, row in enumerate(rows) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise InputError(f"{path}: row {wrong} is of type {type(rows[wrong]).__name__}; a list of objects is needed")
    return list(rows)


def _from_csv(path: Path, guard: Guard, stream: IO[bytes]) -> Rows:
    """Return the rows of a csv file with commas and a header; an empty cell is None."""
    frames = []
    for frame in csv_frames(guard, path, stream, None):
        guard.add_rows(path, len(frame))
        frames.append(frame)
    frame = pd.concat(frames)
    columns = {str(name): cells(frame[name].tolist()) for name in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _from_parquet(path: Path, guard: Guard, stream: IO[bytes]) -> Rows:
    metadata = checked_metadata(guard, path, stream)
    stream.seek(0)
    return [row for batch in parquet_batches(path, stream, metadata) for row in batch.to_pylist()]


READERS: dict[str, Callable[[Path, Guard, IO[bytes]], Rows]] = {
    ".jsonl": _from_jsonl,
    ".json": _from_json,
    ".csv": _from_csv,
    ".parquet": _from_parquet,
}


def cells(texts: Sequence[str]) -> list[Any]:
    """Return a column of a csv file: numbers if every number is written as Python writes it, so that 007 and 1.50 stay texts.

    An empty cell is None.

    Example:
        >>> cells(["1", "", "-20"]), cells(["1", "007"]), cells(["0.5", "2.0"])
        ([1, None, -20], ['1', '007'], [0.5, 2.0])
    """
    for kind in (int, float):
        try:
            numbers = [kind(text) if text else None for text in texts]
        except ValueError:
            continue
        if all(n is None or (str(n) == text and abs(n) < math.inf) for n, text in zip(numbers, texts, strict=True)):
            return numbers
    return [text or None for text in texts]


def _row(line: bytes, location: str) -> Mapping[str, Any]:
    """Return the object of a line of JSON."""
    row = _json(line, location, "one JSON object per line")
    if not isinstance(row, dict):
        raise InputError(f"{location} is of type {type(row).__name__}; one JSON object per line is needed")
    return row


def _json(content: bytes, location: str, needed: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{location} is not UTF-8 (byte {error.start}: {error.reason}); save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        place = f"{location}: line {line}" if line > 1 else location
        raise InputError(f"{place} is not JSON ({getattr(error, 'msg', error)}); {needed} is needed") from None


def _from_hub(name: str, split: str) -> tuple[str, Rows]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise missing_extra(f"the data set {name!r}", error.name, "datasets") from None
    path, _, configuration = name.partition(":")
    try:
        return path.rsplit("/", 1)[-1], list(load_dataset(path, configuration or None, split=split))
    except Exception as error:  # whatever the library or the network says
        raise InputError(f"{name}: is neither a file here nor a data set that could be loaded: {reason(error)}") from error


def _in_memory(source: Any) -> Rows:
    if isinstance(source, Mapping) and source and all(isinstance(split, str) for split in source):
        splits = ", ".join(map(repr, source))
        if all(hasattr(split, "column_names") for split in source.values()):
            first = next(iter(source))
            raise InputError(f"the data set has the splits {splits}; give one of them, dataset[{first!r}]")
    if hasattr(source, "to_dict") and hasattr(source, "itertuples"):
        source = source.to_dict("records")
    rows = list(source) if isinstance(source, Iterable) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            f"the data set is of type {type(source).__name__}; a file, a name on the hub, or a list of mappings, "
            "such as {'prompt': '1+2='}, is needed"
        )
    return rows
