"""Imports any table with one row per response (csv, jsonl or parquet); the user maps its columns to ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession, batches
from rlhfless.trace.schema.casts import listed
from rlhfless.trace.schema.tables import ROLLOUTS, text_columns
from rlhfless.trace.storage import FORMATS

OURS = tuple(column.name for column in ROLLOUTS)
LONG_TEXT = 256  # characters; a column with longer cells is a text, which planning has no use for


def _suffix(path: Path) -> str:
    return Path(path.stem if path.name.lower().endswith(".gz") else path.name).suffix.lower()


def detect(path: Path) -> bool:
    """Return whether the path is a csv, jsonl or parquet file."""
    return path.is_file() and _suffix(path) in (".csv", ".jsonl", ".parquet")


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield batches with our column names.

    If the file also has a column with one of our mapped names, that one is kept as ``source_<name>``. Columns without mapping
    keep their names; long texts and nested cells are left out.
    """
    path, mapping = reading.path, dict(reading.options.mapping)
    kept = reading.options.keep.union(OURS)
    for ours in mapping:
        if ours not in kept:
            raise TraceError(
                f"--map {ours}={mapping[ours]}: {ours!r} is not a rollout column; one of {', '.join(OURS)} is needed"
            )
    if not detect(path):
        raise TraceError(f"{path}: the name does not show the format; a name that ends in {FORMATS} is needed")
    reading.expect([path])
    readers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    left_out: set[str] = set()
    seen: set[str] = set()
    for frame in readers[_suffix(path)](reading):
        frame.columns = [str(column) for column in frame.columns]
        seen |= set(frame.columns)
        if _suffix(path) != ".jsonl":  # there every line has its own columns
            _refuse_absent(mapping, list(frame.columns), path)
        renamed = _renamed(frame, mapping, reading)
        left_out |= {name for name in renamed.columns if name not in kept and _is_bulky(renamed[name])}
        yield renamed.drop(columns=[name for name in left_out if name in renamed.columns])
    _refuse_absent(mapping, sorted(seen), path)
    if left_out:
        reading.note(f"columns left out, because they contain long texts or nested values: {listed(sorted(left_out))}")


def _csv(reading: ImportSession) -> Iterator[pd.DataFrame]:
    mapping = reading.options.mapping
    yield from reading.csv(reading.path, [mapping.get(column, column) for column in text_columns("rollouts")])


def _jsonl(reading: ImportSession) -> Iterator[pd.DataFrame]:
    numbers: list[int] = []

    def rows() -> Iterator[tuple[dict[str, Any], int]]:
        for record in reading.records(reading.path):
            numbers.append(record.line - 1)
            yield dict(record.values), 512 + record.size_bytes

    for batch in batches(rows()):
        yield pd.DataFrame(batch, index=pd.Index(numbers[: len(batch)], dtype="int64"))
        del numbers[: len(batch)]


def _parquet(reading: ImportSession) -> Iterator[pd.DataFrame]:
    needed = reading.options.keep.union(OURS, reading.options.mapping.values())
    nested: set[str] = set()

    def wanted(name: str, is_nested: bool) -> bool:
        if is_nested and name not in needed:
            nested.add(name)
        return name not in nested

    yield from reading.parquet(reading.path, wanted)
    if nested:
        reading.note(f"columns left out, because they contain nested values: {listed(sorted(nested))}")


def _refuse_absent(mapping: Mapping[str, str], columns: list[str], path: Path) -> None:
    for ours, theirs in mapping.items():
        if theirs not in columns:
            raise TraceError(f"{path}: --map {ours}={theirs} names no column of the file; one of {listed(columns)} is needed")


def _renamed(frame: pd.DataFrame, mapping: dict[str, str], reading: ImportSession) -> pd.DataFrame:
    """Return the frame with our column names, and note every column of ours that was renamed to make room."""
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise TraceError(f"{reading.path}: column '{listed([twice])}' appears twice; every name may appear only once")
    columns = {}
    for name in frame.columns:
        if name in mapping:
            if mapping[name] != name and f"source_{name}" in frame.columns:
                raise TraceError(
                    f"{reading.path}: has both '{name}' and 'source_{name}', so --map cannot rename the first to the second; "
                    "rename one of them"
                )
            if mapping[name] != name:
                columns[f"source_{name}"] = frame[name]
                reading.note(f"{name}: taken from {mapping[name]!r}; the file's own column is kept as 'source_{name}'")
        elif name in reading.options.keep.union(OURS) or name not in mapping.values():
            columns[name] = frame[name]
    for ours, theirs in mapping.items():
        if theirs in frame.columns:
            columns[ours] = frame[theirs]
            if ours not in frame.columns:
                reading.note(f"{ours}: taken from {theirs!r}")
    return pd.DataFrame(columns, index=frame.index)


def _is_bulky(values: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(values.dtype):
        return False
    return any(isinstance(x, list | dict) or hasattr(x, "shape") or (isinstance(x, str) and len(x) > LONG_TEXT) for x in values)


FORMAT = Format("table", "a table with one row per response (csv, jsonl or parquet)", detect, read)
