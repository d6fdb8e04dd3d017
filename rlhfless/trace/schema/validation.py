"""Validates a table of a trace: applies the schema to a frame and refuses rows that contradict each other.

Single cells are checked in ``casts.py``; files are read in ``storage.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.schema.casts import absent, cast, listed, row_number
from rlhfless.trace.schema.tables import TABLES, Column

OVERLAP_TOLERANCE_S = 1e-9
RENAMED = (
    "; if one has another name, import the log with --map OURS=THEIRS, "
    "in Python rlhfless.load(LOG, mapping={{'{0}': 'THEIRS'}})"
)
KEY = ["run", "step", "prompt_id", "sample"]
DRAFTS = {"passes", "drafted_tokens", "accepted_tokens"}
RELATED = ("start_s", "first_token_s", "end_s", *sorted(DRAFTS), "response_tokens", "batch_mean", "slots")
"""Columns of numbers that ``contradictions`` compares."""


def validate(table: str, rows: pd.DataFrame | Sequence[Mapping[str, Any]] | None, source: object = None) -> pd.DataFrame:
    """Check a table, and return it with the schema's columns, types and order.

    Rows keep their order. Unknown columns of ``rollouts`` are kept behind the others; in other tables they are refused. A
    missing ``epoch`` is derived (``derive_epoch``). Other columns that may be missing are filled with their default or with
    null; missing optional columns are not added.

    Args:
        table: ``rollouts``, ``allocations``, ``spans`` or ``events``.
        rows: the rows as they were read, or a list of dicts; None for no rows. Integer index labels plus 1 are the row
            numbers of messages.
        source: the file to name in messages; by default the table.

    Returns:
        A new frame with its own index.

    Raises:
        TraceError: one sentence: file, row, column, value, and what would be right.
    """
    name = str(source) if source is not None else table
    frame = as_frame(rows)
    columns = TABLES[table]
    names = [column.name for column in columns]
    if table == "rollouts" and frame.empty:
        raise TraceError(f"{name}: the log has no rows; at least one response is needed")
    _refuse_columns(table, frame, name)
    cells: dict[str, Any] = {}
    for column in columns:
        if column.name in frame.columns:
            cells[column.name] = cast(column, frame[column.name], name)
        elif column.name != "epoch" and not column.optional:
            cells[column.name] = absent(column, frame.index, name)
    if table == "rollouts" and "epoch" not in cells:
        cells["epoch"] = derive_epoch(pd.DataFrame({key: cells[key] for key in ("run", "prompt_id", "step")}))
    extras = [column for column in frame.columns if column not in names]
    ordered = {key: cells[key] for key in names if key in cells} | {key: frame[key] for key in extras}
    result = pd.DataFrame(ordered, index=frame.index)
    _refuse_contradictions(result[[one for one in RELATED if one in names and one in result]], name)
    if table == "rollouts":
        _refuse_duplicates(result, name)
    if table == "allocations":
        refuse_overlaps(result, name)
    return result.reset_index(drop=True)


def as_frame(rows: pd.DataFrame | Sequence[Mapping[str, Any]] | None) -> pd.DataFrame:
    """Return rows as a frame, whether they are given as a frame, as dicts, or as None."""
    return rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows or ()))


def derive_epoch(rollouts: pd.DataFrame) -> pd.Series:
    """Return the (R,) epoch of each response: the number of earlier steps of its run that had its prompt.

    Args:
        rollouts: at least the columns run, prompt_id and step.
    """
    groups = rollouts.groupby(["run", "prompt_id"], sort=False)["step"]
    return groups.rank(method="dense").astype(np.int64) - 1


def refuse_several_runs(runs: Iterable[object], source: object = "the log") -> None:
    """Raise an error if rows of several runs are given where one run is needed.

    Args:
        runs: distinct run names. source: the table or log, for the message.

    Raises:
        TraceError: there are several.
    """
    names = list(runs)
    if len(names) > 1:
        raise TraceError(
            f"{source}: holds {len(names)} runs ({listed(names)}); name one with --run, or in Python with `OpenedLog.of_run` "
            "or by filtering the column 'run'"
        )


def refuse_overlaps(allocations: pd.DataFrame, source: str) -> None:
    """Raise an error if two allocations of one run hold the same GPU at the same time."""
    begin_s, until_s = allocations["start_s"].to_numpy(), allocations["end_s"].to_numpy()
    gpu_ids = allocations["gpu_ids"].tolist()
    held = [(row, gpu) for row in np.flatnonzero(until_s > begin_s).tolist() for gpu in gpu_ids[row]]
    rows = np.array([row for row, _ in held], dtype=np.int64)
    gpus = np.unique(np.array([gpu for _, gpu in held], dtype=object), return_inverse=True)[1]
    runs = np.unique(allocations["run"].to_numpy(dtype=object)[rows], return_inverse=True)[1]
    order = np.lexsort((rows, begin_s[rows], gpus, runs))
    same = (np.diff(runs[order]) == 0) & (np.diff(gpus[order]) == 0)
    earlier, later = rows[order[:-1]], rows[order[1:]]
    overlap = same & (begin_s[later] < until_s[earlier] - OVERLAP_TOLERANCE_S)
    if overlap.any():
        at = int(np.argmax(overlap))
        first, second = int(earlier[at]), int(later[at])
        holder, gpu = allocations["holder"].iloc[first], held[order[at]][1]
        raise TraceError(
            f"{source}: row {row_number(allocations.index, second)}, column 'gpu_ids' takes GPU {gpu} at "
            f"{begin_s[second]:g} s, but row {row_number(allocations.index, first)} ({holder!r}) holds it until "
            f"{until_s[first]:g} s; a GPU can have only one holder at a time"
        )


def are_missing(missing: Sequence[Column], present: str) -> str:
    """Return that a table lacks these columns, with what they mean and what it has, for a message to go on from."""
    described = ", ".join(f"'{column.name}' ({column.doc})" for column in missing)
    named, they = ("column", "is") if len(missing) == 1 else ("columns", "are")
    return f"{named} {described} {they} missing, the table has {present}"


def _refuse_columns(table: str, frame: pd.DataFrame, source: str) -> None:
    names = [column.name for column in TABLES[table]]
    present = listed(frame.columns) or "no columns"
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise TraceError(f"{source}: column '{twice[0]}' appears twice; every name may appear only once")
    missing = [column for column in TABLES[table] if column.required and column.name not in frame.columns]
    if missing and len(frame):
        hint = RENAMED.format(missing[0].name) if table == "rollouts" else ""
        raise TraceError(f"{source}: {are_missing(missing, present)}{hint}")
    extras = [column for column in frame.columns if column not in names]
    if table != "rollouts" and extras:
        raise TraceError(
            f"{source}: column '{extras[0]}' is not one of the {table} table's columns ({', '.join(names)}); "
            "put it into the column 'detail' of spans or events"
        )


def contradictions(values: Mapping[str, Any]) -> Iterator[tuple[Any, Callable[[Mapping[str, Any]], str]]]:
    """Yield whether columns contradict each other, and a function that describes it for a row where they do.

    Args:
        values: numbers by column, of one row or of (R,) rows, NaN where unknown. With (R,) rows the answers are (R,), too.
    """

    def late(start: str, end: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: (
            f"column '{end}' is {row[end]:g}, before '{start}', which is {row[start]:g}; a time at or after it is needed"
        )

    for start, end in (("start_s", "first_token_s"), ("first_token_s", "end_s"), ("start_s", "end_s")):
        if start in values and end in values:
            yield values[end] < values[start], late(start, end)
    if values.keys() >= DRAFTS:
        yield (
            values["accepted_tokens"] > values["drafted_tokens"],
            lambda row: (
                f"column 'accepted_tokens' is {row['accepted_tokens']:.0f}, above 'drafted_tokens', which is "
                f"{row['drafted_tokens']:.0f}; at most that many are needed"
            ),
        )
        yield (
            values["passes"] + values["accepted_tokens"] > values["response_tokens"],
            lambda row: (
                f"columns 'passes' and 'accepted_tokens' sum to {row['passes'] + row['accepted_tokens']:.0f}, above "
                f"'response_tokens', which is {row['response_tokens']:.0f}; a pass yields its accepted tokens and one more"
            ),
        )
    if "batch_mean" in values and "slots" in values:
        yield (
            values["batch_mean"] > values["slots"] * (1 + 1e-9),
            lambda row: (
                f"column 'batch_mean' is {row['batch_mean']:g}, above 'slots', which is {row['slots']:.0f}; a batch of at most "
                "'slots' is needed"
            ),
        )


def _refuse_contradictions(frame: pd.DataFrame, source: str) -> None:
    columns = {name: frame[name].to_numpy(dtype=float, na_value=np.nan) for name in frame.columns}
    for wrong, described in contradictions(columns):
        if wrong.any():
            at = int(np.argmax(wrong))
            row = {name: numbers[at] for name, numbers in columns.items()}
            raise TraceError(f"{source}: row {row_number(frame.index, at)}, {described(row)}")


def _refuse_duplicates(rollouts: pd.DataFrame, source: str) -> None:
    twice = rollouts.duplicated(KEY).to_numpy()
    if twice.any():
        at = int(np.argmax(twice))
        key = rollouts[KEY].iloc[at]
        first = int(np.argmax((rollouts[KEY] == key).all(axis=1).to_numpy()))
        raise TraceError(
            f"{source}: row {row_number(rollouts.index, at)} repeats row {row_number(rollouts.index, first)} in the columns "
            f"run, step, prompt_id, sample ({key.run!r}, {key.step}, {key.prompt_id!r}, {key['sample']}); one row per "
            "response is needed"
        )
