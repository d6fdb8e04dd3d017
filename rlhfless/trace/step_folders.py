"""Steps of a trace that are not in its tables yet: a folder for each, ``steps/000012``, that is there whole or not at all.

Knows those folders and how they join the tables; nothing of what rows mean. What a step costs to write does not depend on how
many came before it. Closing the trace puts the rows into the tables. Of a step that ``meta.json`` names the rows in the tables
count, of any other its folder: so a process killed at any moment, also while it puts rows into tables, leaves every step once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlhfless.errors import reason
from rlhfless.trace import storage
from rlhfless.trace.errors import TraceError
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.schema.casts import jsonable
from rlhfless.trace.schema.tables import TABLES

FOLDER, PLAN = "steps", "plan.json"
ROWS_AT_ONCE = 65_536  # of a table, in memory while steps are put into it


def path_of(folder: Path, step: int) -> Path:
    """Where the rows of a step lie."""
    return folder / FOLDER / f"{step:06d}"


def steps_beside(folder: Path, named: Collection[int]) -> list[int]:
    """Steps with a folder of their own, in order, but for those that ``meta.json`` names."""
    try:
        names = os.listdir(folder / FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TraceError(f"{folder / FOLDER}: cannot be read ({error.strerror}); a readable folder is needed") from error
    return sorted({int(name) for name in names if name.isdecimal()} - set(named))


def write_step(folder: Path, step: int, tables: Mapping[str, pa.Table], plan: Mapping[str, Any] | None) -> None:
    """Write a step's rows: from when this returns on, the step counts.

    Args:
        folder: of the trace; it must be there.

    Raises:
        TraceError: the folder cannot be written; the trace is as it was.
    """
    target = path_of(folder, step)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with contextlib.suppress(FileExistsError):
            target.parent.mkdir()
            storage.sync(folder)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        for table, rows in tables.items():
            _write(draft / f"{table}.parquet", lambda path, rows=rows: pq.write_table(rows, path))
        if plan is not None:
            text = json.dumps(jsonable(plan), sort_keys=True) + "\n"
            _write(draft / PLAN, lambda path: path.write_text(text, "utf-8"))
        storage.sync(draft)
        os.rename(draft, target)
        storage.sync(target.parent)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise TraceError(f"{target}: cannot be written ({error.strerror or error}); a writable folder is needed") from error


def _write(path: Path, write: Any) -> None:
    write(path)
    storage.sync(path)


def read_rows(folder: Path, table: str, named: Sequence[int], beside: Sequence[int], limits: Limits | None = None) -> pa.Table:
    """The rows of a table: of the steps ``named`` in its file, and of those with folders of their own.

    Args:
        limits: the most that is read of all these files together; the usual when None.

    Raises:
        TraceError: a file is missing or damaged, they are larger than the limits, or a column has several types.
    """
    file, guard = folder / f"{table}.parquet", Guard(limits)
    rows = [storage.read_table(path_of(folder, step) / file.name, guard) for step in beside]
    if named and file.exists():
        rows.insert(0, _only(storage.read_table(file, guard), named))
    try:
        return pa.concat_tables(rows, promote_options="permissive")
    except pa.ArrowException as error:
        raise TraceError(f"{folder / FOLDER}: {table} of several steps do not fit together ({reason(error)})") from error


def read_plans(folder: Path, steps: Sequence[int]) -> list[dict[str, Any]]:
    """The plans of those of ``steps`` that have one."""
    paths = (path_of(folder, step) / PLAN for step in steps)
    return [storage.read_json(path) for path in paths if path.exists()]


def fold(folder: Path, meta: Mapping[str, Any], steps: Sequence[int]) -> None:
    """Put the folders of ``steps`` into the tables, and remove them.

    Args:
        meta: of the trace as it will be: ``steps`` of its tables and those of the folders.

    Raises:
        TraceError: a file cannot be read or written. The trace is as it was.
    """
    before = sorted(set(meta["steps"]) - set(steps))
    for table in TABLES:
        storage.replace_file(folder / f"{table}.parquet", partial(_copy, folder, table, before, steps))
    plans = _lines(folder / "plans.jsonl", before)
    plans += [json.dumps(plan, sort_keys=True) + "\n" for plan in read_plans(folder, steps)]
    storage.write_text(folder / "plans.jsonl", "".join(plans))
    storage.write_text(folder / "meta.json", json.dumps(meta, indent=2) + "\n")
    remove(folder)


def remove(folder: Path) -> None:
    """Remove the folders of all steps, and what a killed process left of one."""
    for part in (folder / FOLDER).glob("*"):
        if part.name.isdecimal() or part.name.endswith(".tmp"):
            shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):  # there is none, or somebody keeps something else there
        (folder / FOLDER).rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left of a step that does not count."""
    for draft in (folder / FOLDER).glob(".*.tmp"):
        shutil.rmtree(draft, ignore_errors=True)


def _copy(folder: Path, table: str, before: Sequence[int], steps: Sequence[int], stream: Any) -> None:
    """Write the rows that are in the table's file and those of the folders, a number of rows at a time."""
    old = folder / f"{table}.parquet"
    paths = [old] if before and old.exists() else []
    paths += [path_of(folder, step) / old.name for step in steps]
    try:
        schema = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in paths], promote_options="permissive")
        with pq.ParquetWriter(stream, schema) as writer:
            waiting, count = [schema.empty_table()], 0
            for part in _pieces(paths, before if paths[0] == old else None):
                waiting, count = [*waiting, part], count + len(part)
                if count >= ROWS_AT_ONCE:
                    writer.write_table(pa.concat_tables(waiting, promote_options="permissive"))
                    waiting, count = [schema.empty_table()], 0
            writer.write_table(pa.concat_tables(waiting, promote_options="permissive"))
    except pa.ArrowException as error:
        raise TraceError(
            f"{folder / FOLDER}: cannot be put into {old.name} ({reason(error)}); intact files are needed"
        ) from error


def _pieces(paths: Sequence[Path], of_first: Sequence[int] | None) -> Iterator[pa.Table]:
    """The rows of files; of the first one those of certain steps only, unless it is None."""
    for i, path in enumerate(paths):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE):
                rows = pa.Table.from_batches([batch])
                yield rows if i or of_first is None else _only(rows, of_first)


def _only(rows: pa.Table, steps: Sequence[int]) -> pa.Table:
    """The rows of some steps: a table may also hold others, of a process that was killed before these counted."""
    return rows.filter(pc.is_in(rows["step"], pa.array(steps, pa.int64()))) if "step" in rows.column_names else rows


def _lines(path: Path, steps: Sequence[int]) -> list[str]:
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if json.loads(line)["step"] in steps]
