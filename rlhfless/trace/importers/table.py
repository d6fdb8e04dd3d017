"""Imports any table with one row per response (csv, jsonl or parquet); the user maps its columns to ours."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from numbers import Number
from pathlib import Path

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import TEXTS, ImportSession, suffix_of
from rlhfless.trace.importers.mapped_columns import ROW, guessed, mapped_column, prompt_names, refuse_absent, source_columns
from rlhfless.trace.importers.row_filter import RowFilter
from rlhfless.trace.importers.step_table import signs_of_steps
from rlhfless.trace.importers.turns import TURN
from rlhfless.trace.json_lines import JsonLine, json_frames
from rlhfless.trace.schema.casts import listed, shown
from rlhfless.trace.schema.tables import ROLLOUTS, text_columns
from rlhfless.trace.schema.validation import are_missing
from rlhfless.trace.storage import FORMATS

ROWS_AS_PROMPTS = (
    "every row is a prompt of its own, so no two responses belong together: lengths cannot be predicted from earlier responses "
    "to a prompt, and nothing is known of a prompt's group of samples"
)
OURS = tuple(column.name for column in (*ROLLOUTS, *TURN))
LONG_TEXT = 256  # characters; a column with longer cells is a text, which planning has no use for


def detect(path: Path) -> bool:
    """Return whether the path is a csv, jsonl or parquet file."""
    return path.is_file() and suffix_of(path) in (".csv", ".jsonl", ".parquet")


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield batches with our column names, of the rows for which the condition of ``--where`` holds.

    If the file also has a column with one of our mapped names, that one is kept as ``source_<name>``. Columns without mapping
    keep their names; long texts and nested cells are left out.
    """
    path, mapping = reading.path, dict(reading.options.mapping)
    kept = reading.options.keep.union(OURS)
    for ours in mapping:
        if ours not in kept | TEXTS:  # a text may be mapped for any command; those that need none leave it out
            raise TraceError(
                f"--map {shown(ours)}={shown(mapping[ours])}: {shown(ours)!r} is not a rollout column; "
                f"one of {', '.join((*OURS, *sorted(TEXTS)))} is needed"
            )
    if not detect(path):
        raise TraceError(f"{path}: the name does not show the format; a name that ends in {FORMATS} is needed")
    reading.expect([path])
    where = None if reading.options.where is None else RowFilter(reading.options.where)
    readers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    left_out: set[str] = set()
    seen: dict[str, None] = {}  # in the file's order
    rows = 0
    for frame in readers[suffix_of(path)](reading):
        frame.columns = [str(column) for column in frame.columns]
        seen |= dict.fromkeys(frame.columns)
        rows += len(frame)
        if suffix_of(path) != ".jsonl":  # there every line has its own columns
            refuse_absent(mapping, list(frame.columns), path)
        if where is not None:
            frame = where.rows(frame, path)
        renamed = _renamed(frame, {ours: theirs for ours, theirs in mapping.items() if ours in kept}, reading)
        left_out |= {name for name in renamed.columns if name not in kept and _is_bulky(renamed[name])}
        yield renamed.drop(columns=[name for name in left_out if name in renamed.columns])
    refuse_absent(mapping, list(seen), path)
    _refuse_missing(seen, mapping, path, rows)
    if (prompts := mapped_column(mapping["prompt_id"], list(seen)) if "prompt_id" in mapping else None) and prompts.rows == 1:
        reading.prompts_known = False
        reading.note(f"prompt_id: {ROWS_AS_PROMPTS}")
    if where is not None:
        reading.note(where.note())
        if not where.kept:
            raise TraceError(
                f"{path}: --where {where.shown} holds for none of its {where.read:,} rows; leave it out, or change it"
            )
    if left_out:
        reading.note(f"columns left out, because they contain long texts or nested values: {listed(sorted(left_out))}")


def _refuse_missing(columns: Collection[str], mapping: Mapping[str, str | float], path: Path, rows: int) -> None:
    """Refuse a table that lacks columns, and say which mappings would probably read its rows; samples can be counted."""
    absent = [column for column in ROLLOUTS if column.name not in (*columns, *mapping, "sample")]
    needed = [column for column in absent if column.required]
    if not needed or not columns:
        return
    if signs := signs_of_steps(columns):
        of_steps = f"{listed(map(repr, signs))} {'is' if len(signs) == 1 else 'are'} of steps or runs"
        raise TraceError(
            f"{path}: {are_missing(needed, listed(columns))}; {of_steps}, so leave --map out, or name the columns of single "
            "responses with --map OURS=THEIRS"
        )
    likely = {column.name: "THEIRS" for column in needed} | guessed([column.name for column in absent], columns, rows)
    given = " ".join(f"--map {ours}={theirs}" for ours, theirs in likely.items())
    lost = (
        " (no column seems to name the prompt, and with row no two responses have the same)"
        if likely.get("prompt_id") == ROW
        else ""
    )
    raise TraceError(
        f"{path}: {are_missing(needed, listed(columns))}; with {given} it may be what you mean{lost}, "
        f"in Python rlhfless.load(LOG, mapping={likely})"
    )


def _csv(reading: ImportSession) -> Iterator[pd.DataFrame]:
    mapping, texts = reading.options.mapping, (*text_columns("rollouts"), *sorted(TEXTS))
    ours = [column for column in texts if column not in mapping]
    theirs = source_columns(mapping[column] for column in texts if column in mapping)
    yield from reading.csv(reading.path, [*ours, *sorted(theirs)])


def _jsonl(reading: ImportSession) -> Iterator[pd.DataFrame]:
    records = reading.records(reading.path)
    yield from json_frames(JsonLine(record.line, dict(record.values), record.size_bytes) for record in records)


def _parquet(reading: ImportSession) -> Iterator[pd.DataFrame]:
    needed = reading.options.keep.union(OURS, source_columns(reading.options.mapping.values()))
    nested: set[str] = set()

    def wanted(name: str, is_nested: bool) -> bool:
        if is_nested and name not in needed:
            nested.add(name)
        return name not in nested

    yield from reading.parquet(reading.path, wanted)
    if nested:
        reading.note(f"columns left out, because they contain nested values: {listed(sorted(nested))}")


def _renamed(frame: pd.DataFrame, mapping: dict[str, str | float], reading: ImportSession) -> pd.DataFrame:
    """Return the frame with our column names, and note every column of ours that was renamed to make room."""
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise TraceError(f"{reading.path}: column '{listed([twice])}' appears twice; every name may appear only once")
    sources = {ours: mapped_column(theirs, list(frame.columns)) for ours, theirs in mapping.items()}
    alone = {source.columns[0] for source in sources.values() if source and len(source.columns) == 1}
    columns = {}
    for name in frame.columns:
        source = sources.get(name)
        if name in mapping:
            if mapping[name] != name and f"source_{name}" in frame.columns:
                raise TraceError(
                    f"{reading.path}: has both '{name}' and 'source_{name}', so --map cannot rename the first to the second; "
                    "rename one of them"
                )
            if mapping[name] != name:
                columns[f"source_{name}"] = frame[name]
                if source is not None:
                    reading.note(f"{source.note(name)}; the file's own column is kept as 'source_{name}'")
        elif name in reading.options.keep.union(OURS) or name not in alone:
            columns[name] = frame[name]
    for ours, source in sources.items():
        if source is not None:
            values = source.values(frame)
            columns[ours] = prompt_names(values) if ours == "prompt_id" else values
            if ours not in frame.columns:
                reading.note(source.note(ours))
    for text in TEXTS.intersection(columns):  # a number in a file of JSON lines is a text here, too
        columns[text] = columns[text].map(lambda value: str(value) if isinstance(value, Number) else value, na_action="ignore")
    return pd.DataFrame(columns, index=frame.index)


def _is_bulky(values: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(values.dtype):
        return False
    return any(isinstance(x, list | dict) or hasattr(x, "shape") or (isinstance(x, str) and len(x) > LONG_TEXT) for x in values)


FORMAT = Format("table", "a table with one row per response (csv, jsonl or parquet)", detect, read)
