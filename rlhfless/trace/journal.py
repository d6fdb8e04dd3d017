"""The journal of a recording: a file of JSON lines, next to the tables, with the rows that are not merged into them yet.

One process writes it. A killed process leaves whole lines and at most one incomplete line at the end. Readers skip it, and the
next writer removes it.

Rows are not buffered until their step is over, to be committed as a folder like an executed step (``store.write_step``). The
recorded loop does not say when that is: rows of several steps and runs may be mixed, and spans may come after the responses of
their step. And a step may take an hour. Its responses are readable meanwhile, and are kept where the process is killed in it
(``test_a_killed_process_loses_only_what_was_not_flushed``).

A line is ``{table: row}``. To merge: if the journal has responses of a step of a run, they replace that step in the tables. A
restarted run records it again. If it has only spans of a step, they are added. Of rows that name the same response, the last
one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.system.file_locks import LockKind, lock_file
from rlhfless.trace.errors import TraceError
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.schema.validation import KEY

FILE = "recording.jsonl"
LINES_AT_ONCE = 50_000  # that are Python objects at the same time
PIECE_BYTES = 2**16  # read at once to find the end of the last whole line
STEP_OF_RUN = ["run", "step"]
SPAN = [*STEP_OF_RUN, "holder", "phase", "start_s", "end_s"]  # what tells spans apart


class RecordingJournal:
    """The journal of a folder, open for one writer.

    Raises:
        TraceError: another process records there, or the file cannot be written.
        InputError: this system has no file locks.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be written ({error.strerror}); a writable folder is needed") from error
        try:
            lock_file(self._file, LockKind.EXCLUSIVE_NOW)
        except InputError:
            os.close(self._file)
            raise
        except OSError as error:
            os.close(self._file)
            raise TraceError(
                f"{self.path}: another process is recording into this file; every process needs a folder of its own"
            ) from error
        self.size_bytes = self._size_of_whole_lines()
        os.ftruncate(self._file, self.size_bytes)  # what is appended to a torn line would be lost with it

    def _size_of_whole_lines(self) -> int:
        end = os.fstat(self._file).st_size
        while end:
            start = max(0, end - PIECE_BYTES)
            if last := os.pread(self._file, end - start, start).rfind(b"\n") + 1:
                return start + last
            end = start
        return 0

    def append(self, lines: Sequence[bytes]) -> None:
        """Write whole lines, all or none; they survive the end of the process, but not a crash of the machine.

        Raises:
            OSError: they cannot be written; the file is unchanged.
        """
        data = b"".join(lines)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
        except OSError:
            os.ftruncate(self._file, self.size_bytes)
            raise
        self.size_bytes += len(data)

    def empty(self) -> None:
        """Remove all lines after they were merged into the tables."""
        os.ftruncate(self._file, 0)
        self.size_bytes = 0

    def close(self) -> None:
        """Close the file and release its lock; an empty file is removed."""
        if not self.size_bytes:
            self.path.unlink(missing_ok=True)
        os.close(self._file)


def line_of(table: str, row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of the journal."""
    return json.dumps({table: row}, allow_nan=False).encode() + b"\n"


def joined(
    folder: Path, frames: Mapping[str, pd.DataFrame], steps: Sequence[int], limits: Limits | None = None
) -> tuple[dict[str, pd.DataFrame], list[int]]:
    """Merge a folder's tables with the rows of its journal; return the tables and the steps of both.

    Args:
        frames: rows by table, of ``steps``. limits: for reading the journal; None takes the default.

    Raises:
        TraceError: a complete line is not a row, or the journal is larger than the limits.
    """
    recorded = _read(folder / FILE, Guard(limits))
    if not recorded:
        return dict(frames), list(steps)
    again = _keys(recorded.get("rollouts", pd.DataFrame()), STEP_OF_RUN)
    spans = _keys(recorded.get("spans", pd.DataFrame()), SPAN)
    tables = {}
    for table, frame in frames.items():
        kept = frame[~_keys(frame, STEP_OF_RUN).isin(again)]
        if table == "spans":  # a writer that was killed before it emptied the journal left them in both
            kept = kept[~_keys(kept, SPAN).isin(spans)]
        parts = [part for part in (kept, recorded.get(table, pd.DataFrame())) if len(part)]
        tables[table] = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if len(tables["rollouts"]):
        tables["rollouts"] = _last_of_each(tables["rollouts"])
    new = {int(step) for frame in recorded.values() for step in frame["step"].unique()}
    return tables, sorted(new.union(steps))


def _keys(frame: pd.DataFrame, columns: list[str]) -> pd.MultiIndex:
    """Return each row's values of the columns; null of a column that the frame lacks."""
    return pd.MultiIndex.from_frame(frame.reindex(columns=columns))


def _last_of_each(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated responses, and drop epochs if some rows lack them, so that they are derived for all."""
    if "epoch" in rollouts.columns and rollouts["epoch"].isna().any():
        rollouts = rollouts.drop(columns="epoch")
    return rollouts.drop_duplicates(KEY, keep="last", ignore_index=True)


def _read(path: Path, guard: Guard) -> dict[str, pd.DataFrame]:
    """Return the rows by table; none where there is no journal."""
    parts: dict[str, list[pd.DataFrame]] = {}
    try:
        with path.open("rb") as stream:
            numbered = ((number, line) for number, line in guard.lines(path, stream) if line.endswith(b"\n"))
            while batch := list(islice(numbered, LINES_AT_ONCE)):
                guard.add_rows(path, len(batch))
                for table, rows in _rows(batch, path).items():
                    parts.setdefault(table, []).append(pd.DataFrame(rows))
    except FileNotFoundError:
        return {}
    return {table: pd.concat(frames, ignore_index=True) for table, frames in parts.items()}


def _rows(batch: Iterable[tuple[int, bytes]], path: Path) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for number, line in batch:
        try:
            ((table, row),) = json.loads(line).items()
            rows.setdefault(table, []).append({**row, "step": int(row["step"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TraceError(
                f"{path}: line {number} is not a recorded row; a JSON object with a row of one table is needed"
            ) from error
    return rows
