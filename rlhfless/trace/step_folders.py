"""Stores each new step of a trace in a folder ``steps/000012``, which exists completely or not at all, until it is merged.

So writing a step takes the same time however many came before. Closing the trace merges the rows into the tables. For a step
that ``meta.json`` names, the rows in the tables count; for any other step, its folder counts. So a process killed at any
moment, also during the merge, leaves every step exactly once.
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
    """Return the folder of a step's rows."""
    return folder / FOLDER / f"{step:06d}"


def unmerged_steps(folder: Path, named: Collection[int]) -> list[int]:
    """Return the steps that have a folder and are not named in ``meta.json``, in order."""
    try:
        names = os.listdir(folder / FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TraceError(f"{folder / FOLDER}: cannot be read ({error.strerror}); a readable folder is needed") from error
    return sorted({int(name) for name in names if name.isdecimal()} - set(named))


def write_step(folder: Path, step: int, tables: Mapping[str, pa.Table], plan: Mapping[str, Any] | None) -> None:
    """Write a step's rows; when this returns, the step is committed.

    Args:
        folder: of the trace; it must exist.

    Raises:
        TraceError: the folder cannot be written; the trace is unchanged.
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


def read_rows(
    folder: Path, table: str, named: Sequence[int], unmerged: Sequence[int], limits: Limits | None = None
) -> pa.Table:
    """Read the rows of a table: for the steps ``named`` from its file, for the steps ``unmerged`` from their folders.

    Args:
        limits: maximal amounts to read of all these files together; None takes the default.

    Raises:
        TraceError: a file is missing or damaged, they are larger than the limits, or a column has several types.
    """
    file, guard = folder / f"{table}.parquet", Guard(limits)
    rows = [storage.read_table(path_of(folder, step) / file.name, guard) for step in unmerged]
    if named and file.exists():
        rows.insert(0, _only(storage.read_table(file, guard), named))
    try:
        return pa.concat_tables(rows, promote_options="permissive")
    except pa.ArrowException as error:
        raise TraceError(
            f"{folder / FOLDER}: the {table} of its steps have different columns or types ({reason(error)})"
        ) from error


def read_plans(folder: Path, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Read the plans of those of ``steps`` that have one."""
    paths = (path_of(folder, step) / PLAN for step in steps)
    return [storage.read_json(path) for path in paths if path.exists()]


def merge_steps(folder: Path, meta: Mapping[str, Any], steps: Sequence[int]) -> None:
    """Merge the folders of ``steps`` into the tables, and remove them.

    Args:
        meta: of the trace after the merge: its ``steps`` are those of the tables and those of the folders.

    Raises:
        TraceError: a file cannot be read or written. The trace is unchanged.
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
    """Remove the folders of all steps, also one that a killed process left unfinished."""
    for part in (folder / FOLDER).glob("*"):
        if part.name.isdecimal() or part.name.endswith(".tmp"):
            shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):  # there is none, or somebody keeps something else there
        (folder / FOLDER).rmdir()


def remove_from(folder: Path, step: int) -> None:
    """Remove the steps from ``step`` on, the last one first: a process killed meanwhile leaves a trace without gaps.

    Raises:
        TraceError: the folder cannot be read or written.
    """
    meta = storage.read_json(folder / "meta.json")
    try:
        for later in reversed(unmerged_steps(folder, meta["steps"])):
            if later >= step:
                path = path_of(folder, later)
                draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
                shutil.rmtree(draft, ignore_errors=True)
                os.rename(path, draft)
                storage.sync(path.parent)
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be written ({error.strerror or error}); a writable folder is needed") from error
    if max(meta["steps"], default=-1) >= step:
        left = [earlier for earlier in meta["steps"] if earlier < step]
        storage.write_text(folder / "meta.json", json.dumps({**meta, "steps": left}, indent=2) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left of an uncommitted step."""
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
            f"{folder / FOLDER}: cannot be merged into {old.name} ({reason(error)}); intact files are needed"
        ) from error


def _pieces(paths: Sequence[Path], of_first: Sequence[int] | None) -> Iterator[pa.Table]:
    """Return the rows of files; of the first one those of certain steps only, unless it is None."""
    for i, path in enumerate(paths):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE):
                rows = pa.Table.from_batches([batch])
                yield rows if i or of_first is None else _only(rows, of_first)


def _only(rows: pa.Table, steps: Sequence[int]) -> pa.Table:
    """Return the rows of some steps; a table may also have rows of steps that were never committed."""
    return rows.filter(pc.is_in(rows["step"], pa.array(steps, pa.int64()))) if "step" in rows.column_names else rows


def _lines(path: Path, steps: Sequence[int]) -> list[str]:
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if json.loads(line)["step"] in steps]
