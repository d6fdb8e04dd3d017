"""A trace on disk: a folder with ``meta.json`` and parts, of which each has the four tables and the plans of some steps.

Every new step is a part of its own, the folder ``steps/000012``. It exists completely or not at all, because it gets its name
when all of its files are written. So writing a step takes the same time however many came before. The other part lies beside
``meta.json``: the tables, and the plans in ``plans.jsonl``. ``merge_steps`` puts the steps that have folders into it.

For a step that ``meta.json`` names, the rows in the tables count; for any other step, its folder counts. So a process killed at
any moment, also during the merge, leaves every step exactly once. Of a recording, the rows that are not in a part yet are read
from its journal (``journal.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlhfless import __version__
from rlhfless.errors import other_version, reason
from rlhfless.gone_options import in_sections, without_gone
from rlhfless.trace import storage
from rlhfless.trace.errors import TraceError
from rlhfless.trace.journal import joined
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.parquet_batches import checked_metadata, intact, is_text, parquet_batches, to_frame
from rlhfless.trace.schema.casts import is_null, jsonable
from rlhfless.trace.schema.tables import META_KEYS, SCHEMA_VERSION, TABLES

FOLDER, PLAN, PLANS, META = "steps", "plan.json", "plans.jsonl", "meta.json"
ROWS_AT_ONCE, BYTES_AT_ONCE = 65_536, 32 * 2**20  # of a table, in memory as Arrow rows
BATCHES_AT_ONCE = 64  # before they become one: a small batch of its own takes more memory than its rows
NO_LIMITS = Limits(line_bytes=2**62, rows=2**62, unpacked_bytes=2**62)
"""Of files that this process wrote itself; the others guard against logs of strangers."""
TYPES = {
    "str": pa.string(),
    "json": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "ints": pa.list_(pa.int64()),
}


class Part(NamedTuple):
    """Rows and plans of some steps.

    Attributes:
        folder: that has them: the trace's own, or a step's.
        steps: of which the rows count. The tables may also have rows of steps that were never committed.
        is_step: it is the folder of one step, which has all four tables.
    """

    folder: Path
    steps: Sequence[int]
    is_step: bool = False


# --- reading ---------------------------------------------------------------------------------------------------------


def load(folder: Path, limits: Limits | None = None) -> tuple[dict[str, Any], dict[str, pd.DataFrame], list[dict[str, Any]]]:
    """Return meta.json, the tables and the plans of a trace folder: completed steps only, not yet validated.

    Args:
        limits: on what is read of each table; None takes the default.

    Raises:
        TraceError: it is not a trace folder, has another schema version, or a file is missing, damaged or larger than the
            limits.
    """
    while True:
        meta = _read_meta(folder, limits)
        listed = _step_folders(folder, meta["steps"])
        try:
            found = _parts(folder, meta, list(listed))
            frames = {table: _frame(found, table, Guard(limits)) for table in TABLES}
            read_plans = list(_plans(found, Guard(limits)))
            tables, steps = joined(folder, frames, sorted([*meta["steps"], *listed]), limits)
        except TraceError:
            if _still_there(folder, meta, listed, limits):
                raise
            continue
        if _still_there(folder, meta, listed, limits):
            return {**meta, "steps": steps}, tables, read_plans


def _step_folders(folder: Path, named: Collection[int]) -> dict[int, tuple[int, int] | None]:
    """Return the unmerged steps, and what tells the folder of each from one that replaces it; None if it is gone meanwhile."""
    folders: dict[int, tuple[int, int] | None] = {}
    for step in unmerged_steps(folder, named):
        try:
            status = os.lstat(path_of(folder, step))
            folders[step] = status.st_ino, status.st_mtime_ns
        except OSError:  # whoever reads it says why
            folders[step] = None
    return folders


def _still_there(folder: Path, meta: Mapping[str, Any], listed: Mapping[int, Any], limits: Limits | None) -> bool:
    """Return whether no writer has merged, removed or replaced a step since it was listed.

    New steps do not matter: so a reader that is slower than the writer comes to an end, too.
    """
    steps = _read_meta(folder, limits)["steps"]
    return bool(steps == meta["steps"] and listed.items() <= _step_folders(folder, steps).items())


def _read_meta(folder: Path, limits: Limits | None = None) -> dict[str, Any]:
    path = folder / META
    if not folder.exists():
        raise TraceError(f"{folder}: there is no such folder; a trace folder is needed")
    if not path.is_file():
        hint = f"to read its {'rollouts.parquet'!r} alone, name that file" if (folder / "rollouts.parquet").exists() else ""
        raise TraceError(f"{folder}: is not a complete trace, meta.json is missing; {hint or 'a trace folder is needed'}")
    meta = storage.read_json(path, Guard(limits))
    version, steps = meta.get("schema_version"), meta.get("steps")
    if version != SCHEMA_VERSION:
        raise TraceError(f"{path}: {other_version('a trace', version, SCHEMA_VERSION)} (field schema_version)")
    if not isinstance(steps, list) or not all(isinstance(step, int) for step in steps):
        raise TraceError(f"{path}: steps is {steps!r}; the list of completed steps is needed")
    if isinstance(meta.get("config"), dict):
        meta["config"] = in_sections(without_gone(meta["config"], path, TraceError))
    return meta


def unmerged_steps(folder: Path, named: Collection[int]) -> list[int]:
    """Return the steps that have a folder and are not named in ``meta.json``, in order."""
    try:
        names = os.listdir(folder / FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TraceError(f"{folder / FOLDER}: cannot be read ({error.strerror}); a readable folder is needed") from error
    return sorted({int(name) for name in names if name.isdecimal()} - set(named))


def _parts(folder: Path, meta: Mapping[str, Any], unmerged: Sequence[int]) -> list[Part]:
    """Return the parts with the rows that count, the tables first.

    Raises:
        TraceError: one of the tables of an executed run is missing.
    """
    named = meta["steps"]
    for table in TABLES if named and meta.get("clock") is not None else ():
        if not (folder / f"{table}.parquet").exists():
            raise TraceError(
                f"{folder}: {table}.parquet is missing, but meta.json describes an executed run; restore that file"
            )
    tables = [Part(folder, named)] if named else []
    return tables + [Part(path_of(folder, step), [step], True) for step in unmerged]


def _frame(parts: Sequence[Part], table: str, guard: Guard) -> pd.DataFrame:
    frames = [to_frame(rows) for rows in _rows(parts, table, guard)]
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _rows(parts: Sequence[Part], table: str, guard: Guard, plain: bool = False) -> Iterator[pa.Table]:
    """Yield the rows of a table from all parts, about ``ROWS_AT_ONCE`` or ``BYTES_AT_ONCE`` at a time and always with all of
    its columns.

    Args:
        plain: texts are not dictionaries, so that they can be written.

    Raises:
        TraceError: a file is missing or damaged, the files are larger than the limits, or a column has several types.
    """
    files: list[tuple[Part, Path]] = []
    schemas: list[pa.Schema] = []
    for part in parts:
        path = part.folder / f"{table}.parquet"
        if part.is_step or table == "rollouts" or path.exists():  # a log's tables have nothing else
            metadata = checked_metadata(guard, path, path)  # not kept: for thousands of files it is larger than their rows
            guard.add_rows(path, metadata.num_rows)
            files.append((part, path))
            own = metadata.schema.to_arrow_schema().remove_metadata()
            if own not in schemas:
                schemas.append(own)
    if not files:
        return
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
        if not plain:
            texts = [pa.dictionary(pa.int32(), field.type) if is_text(field.type) else field.type for field in schema]
            schema = pa.schema([field.with_type(kind) for field, kind in zip(schema, texts, strict=True)])
        yield from _gathered((rows for part, path in files for rows in _rows_in(part, path, plain)), schema.empty_table())
    except pa.ArrowException as error:
        raise TraceError(
            f"{parts[-1].folder}: the {table} of its steps have different columns or types ({reason(error)})"
        ) from error


def _rows_in(part: Part, path: Path, plain: bool) -> Iterator[pa.Table]:
    with intact(path):
        metadata = pq.read_metadata(path)
    for batch in parquet_batches(path, path, metadata, plain=plain):
        rows = pa.Table.from_batches([batch])
        yield rows if part.is_step else _of_steps(rows, part.steps)


def _gathered(batches: Iterable[pa.Table], empty: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of many batches as fewer tables, each with the columns of ``empty``; at least one."""
    gathered: list[pa.Table] = [empty]
    waiting: list[pa.Table] = []
    count = size = 0
    for rows in batches:
        waiting, count, size = [*waiting, rows], count + len(rows), size + rows.nbytes
        if len(waiting) == BATCHES_AT_ONCE:
            gathered, waiting = [*gathered, _one(empty, *waiting).combine_chunks()], []
        if count >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield _one(*gathered, *waiting)
            gathered, waiting, count, size = [empty], [], 0, 0
    yield _one(*gathered, *waiting)


def _one(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


def _of_steps(rows: pa.Table, steps: Sequence[int]) -> pa.Table:
    if "step" not in rows.column_names:
        return rows
    return rows.filter(pc.is_in(rows["step"], pa.array(steps, pa.int64()).cast(rows["step"].type)))


def _plans(parts: Sequence[Part], guard: Guard) -> Iterator[dict[str, Any]]:
    """Yield the plans of the parts' steps; a step may have none."""
    for part in parts:
        path = part.folder / (PLAN if part.is_step else PLANS)
        if path.exists():
            yield from (plan for plan in _plans_in(path, guard) if plan["step"] in part.steps)


def _plans_in(path: Path, guard: Guard) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as stream:
            for number, line in guard.lines(path, stream):
                try:
                    plan = json.loads(line)
                    plan["step"]
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    raise TraceError(
                        f"{path}: line {number} is not a plan; a JSON object with the key 'step' is needed"
                    ) from error
                guard.add_rows(path, 1)
                yield plan
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error}); a readable file is needed") from error


# --- writing ---------------------------------------------------------------------------------------------------------


def new_folder(path: str | Path, overwrite: bool = False) -> Path:
    """Make a folder for a new trace; with ``overwrite`` an existing trace in it is invalidated.

    Raises:
        TraceError: it has a trace already, or cannot be made.
    """
    folder = Path(path)
    if not overwrite:
        refuse_trace_in(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / META).unlink(missing_ok=True)
        _remove_steps(folder)
        storage.remove_leftovers(folder)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be made ({error.strerror}); a writable folder is needed") from error
    return folder


def refuse_trace_in(folder: Path) -> None:
    """Refuse a folder that has a trace already, before something runs that would write one there (a TraceError)."""
    if (folder / META).exists():
        raise TraceError(f"{folder}: holds a trace already; name another folder, or resume it if it is a training run")


def complete_meta(meta: dict[str, Any], steps: list[int]) -> dict[str, Any]:
    """Return ``meta`` with the versions, the completed steps, and null for entries that the run did not give."""
    fixed = {"schema_version": SCHEMA_VERSION, "project_version": __version__}
    kept = {key: value for key, value in meta.items() if key not in fixed}
    meta = {**fixed, **dict.fromkeys(META_KEYS), **kept, "steps": list(steps)}
    return {key: jsonable(value) for key, value in meta.items()}


def write_folder(folder: Path, tables: Mapping[str, pa.Table], plans: Sequence[Any], meta: Mapping[str, Any]) -> None:
    """Write every file of a trace: the tables, the plans, and last the ``meta.json`` that commits their steps."""
    for table, rows in tables.items():
        storage.write_parquet(folder / f"{table}.parquet", rows)
    storage.write_text(folder / PLANS, "".join(map(_line, plans)))
    write_meta(folder, meta)


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Replace ``meta.json``, atomically."""
    storage.write_text(folder / META, json.dumps(meta, indent=2) + "\n")


def path_of(folder: Path, step: int) -> Path:
    """Return the folder of a step's rows."""
    return folder / FOLDER / f"{step:06d}"


def write_step(folder: Path, step: int, tables: Mapping[str, pa.Table], plan: Mapping[str, Any] | None) -> None:
    """Write a step's rows; when this returns, the step is committed.

    Args:
        folder: of the trace; it must exist.

    Raises:
        TraceError: the folder cannot be written; the trace is unchanged.
    """
    target = path_of(folder, step)
    draft = _draft(target)
    try:
        with contextlib.suppress(FileExistsError):
            target.parent.mkdir()
            storage.sync(folder)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        for table, rows in tables.items():
            path = draft / f"{table}.parquet"
            pq.write_table(rows, path)
            storage.sync(path)
        if plan is not None:
            (draft / PLAN).write_text(_line(plan), "utf-8")
            storage.sync(draft / PLAN)
        storage.sync(draft)
        os.rename(draft, target)
        storage.sync(target.parent)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise TraceError(f"{target}: cannot be written ({error.strerror or error}); a writable folder is needed") from error


def merge_steps(folder: Path, meta: Mapping[str, Any]) -> None:
    """Put the steps that have folders into the tables, and remove the folders.

    Args:
        meta: of the trace after the merge.

    Raises:
        TraceError: a file cannot be read or written. The trace is unchanged.
    """
    remove_leftovers(folder)
    named = storage.read_json(folder / META)["steps"]
    unmerged = unmerged_steps(folder, named)
    if not unmerged:
        return
    parts = _parts(folder, {"steps": named}, unmerged)
    for table in TABLES:
        storage.replace_file(folder / f"{table}.parquet", partial(_copy, parts, table))
    plans = _plans(parts, Guard(NO_LIMITS))
    storage.replace_file(folder / PLANS, lambda stream: stream.writelines(_line(plan).encode() for plan in plans))
    write_meta(folder, meta)
    _remove_steps(folder)


def _copy(parts: Sequence[Part], table: str, stream: IO[bytes]) -> None:
    writer = None
    for rows in _rows(parts, table, Guard(NO_LIMITS), plain=True):
        writer = writer or pq.ParquetWriter(stream, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()


def remove_from(folder: Path, step: int) -> None:
    """Remove the steps from ``step`` on, the last one first: a process killed meanwhile leaves a trace without gaps.

    Raises:
        TraceError: the folder cannot be read or written.
    """
    remove_leftovers(folder)
    meta = storage.read_json(folder / META)
    try:
        for later in reversed(unmerged_steps(folder, meta["steps"])):
            if later >= step:
                path = path_of(folder, later)
                draft = _draft(path)
                shutil.rmtree(draft, ignore_errors=True)
                os.rename(path, draft)
                storage.sync(path.parent)
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be written ({error.strerror or error}); a writable folder is needed") from error
    if max(meta["steps"], default=-1) >= step:
        write_meta(folder, {**meta, "steps": [earlier for earlier in meta["steps"] if earlier < step]})


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left of files, of an uncommitted step, and of steps that are merged."""
    storage.remove_leftovers(folder)
    named = storage.read_json(folder / META)["steps"] if (folder / META).exists() else []
    merged = {path_of(folder, step).name for step in named}
    for part in (folder / FOLDER).glob("*"):  # of a step that meta.json names, the rows are in the tables
        if part.name in merged or part.match(".*.tmp"):
            shutil.rmtree(part, ignore_errors=True)


def _remove_steps(folder: Path) -> None:
    """Remove the folders of all steps, also one that a killed process left unfinished."""
    for part in (folder / FOLDER).glob("*"):
        if part.name.isdecimal() or part.name.endswith(".tmp"):
            shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):  # there is none, or somebody keeps something else there
        (folder / FOLDER).rmdir()


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def _line(plan: Mapping[str, Any]) -> str:
    return json.dumps(jsonable(plan), sort_keys=True) + "\n"


# --- from frames -----------------------------------------------------------------------------------------------------


def to_arrow(table: str, frame: pd.DataFrame) -> pa.Table:
    """Return a validated frame as an Arrow table whose fields have unit and meaning as metadata.

    Columns outside the schema get the type that Arrow infers; mixed or nested ones become JSON text.
    """
    schema = {column.name: column for column in TABLES[table]}
    arrays, fields = [], []
    for name in frame.columns:
        if column := schema.get(name):
            array = pa.array(frame[name], TYPES[column.dtype], from_pandas=True)
            metadata = {"doc": column.doc, "unit": column.unit}
        else:
            array, metadata = _extra(frame[name]), None
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _extra(values: pd.Series) -> pa.Array:
    try:
        array = pa.array(values, from_pandas=True)
        if not pa.types.is_nested(array.type):
            return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    except (pa.ArrowException, OverflowError):
        pass
    return pa.array([None if is_null(value) else _as_text(value) for value in values], pa.string())


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(jsonable(value), sort_keys=True)
