"""Records an external training loop in this project's trace format while it runs.

``trl_callback.py`` uses it for TRL. It is designed not to break the recorded loop: nothing raises, and failures are counted and
logged once per kind. A row costs some ten microseconds however long the run is. A killed process loses only unflushed rows, at
most one second's or 256, never the trace.

    with Recorder("out/recorded") as recorder:
        for step, batch in enumerate(batches):
            with recorder.span("decode", step=step):
                responses = generate(batch)
            for i, response in enumerate(responses):
                recorder.append(step=step, prompt_id=..., sample=..., response_tokens=len(response.tokens))
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pandas as pd

from rlhfless.trace import storage, store
from rlhfless.trace.errors import TraceError
from rlhfless.trace.journal import RecordingJournal, line_of
from rlhfless.trace.recording.row_validation import checked_row
from rlhfless.trace.schema.validation import validate

FLUSH_ROWS = 256
FLUSH_S = 1.0
MAX_WAITING = 10_000  # rows that wait for a disk to take them again; older ones are given up
_log = logging.getLogger(__name__)
Method = TypeVar("Method", bound=Callable[..., Any])


def _harmless(what: str) -> Callable[[Method], Method]:
    """Decorate a method so that its exceptions are logged and counted instead of raised."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def safely(self: Recorder, *args: Any, **values: Any) -> Any:
            try:
                with self._lock:
                    return method(self, *args, **values)
            except Exception as error:  # whatever it is, the loop that is watched goes on
                self.failed(what, error)

        return safely  # type: ignore[return-value]

    return decorate


class Recorder:
    """Records responses and spans into a trace folder while a training loop runs. It never raises an exception.

    The folder is a trace as soon as it has a response: ``read_trace`` reads it during recording, after a crash and after
    ``close``. A recorder continues a folder that an earlier recorder wrote, also if it has only spans so far. So a restarted
    run uses the same folder. If a later recorder records responses of an earlier step again, they replace that step's rows;
    spans alone are added. Several runs may share a folder.

    Args:
        folder: trace folder to write.
        run: name of the run, for rows without one.
        meta: further entries of ``meta.json`` (seeds, device, ...), except ``clock``, which only runs with allocations have.

    Attributes:
        recorded: number of rows taken so far; lost: number of rows that could not be recorded.
    """

    def __init__(self, folder: str | Path, run: str = "recorded", meta: Mapping[str, Any] | None = None) -> None:
        self.folder, self.run = cast(Path, folder), run  # a path as soon as it is known to be one
        self.recorded = self.lost = 0
        self._lock = threading.RLock()
        self._reported: set[str] = set()
        self._waiting: list[bytes] = []
        self._journal: RecordingJournal | None = None
        self._flushed = self._began = time.monotonic()
        self._open(meta)

    @_harmless("nothing is recorded")
    def _open(self, meta: Mapping[str, Any] | None) -> None:
        self.folder = Path(self.folder)
        entries = dict(meta or {})
        exists = (self.folder / "meta.json").exists()
        if exists and not storage.read_json(self.folder / "meta.json").get("recorder"):
            raise TraceError(f"{self.folder}: contains a trace that was not written by a recorder; name another folder")
        if not exists:
            store.new_folder(self.folder)
        journal = RecordingJournal(self.folder)
        try:
            if exists:
                self._began -= _ended_s(merge_journal(self.folder, journal))
            else:
                store.write_folder(self.folder, {}, [], store.complete_meta({**entries, "clock": None, "recorder": True}, []))
        except BaseException:
            journal.close()
            raise
        self._journal = journal

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run; they continue from the end of an earlier recording in this folder."""
        return time.monotonic() - self._began

    @_harmless("a response was not recorded")
    def append(self, **values: Any) -> None:
        """Record one response: ``step, prompt_id, sample, response_tokens``, and any other known column.

        Args:
            values: columns of ``rollouts`` (``rlhfless/trace/schema/tables.py``: ``prompt_tokens, finish_reason, reward,
                weights_version, actor, start_s, first_token_s, end_s``, ...); unknown columns are kept unchanged.
        """
        self._take("rollouts", values)

    @_harmless("a span was not recorded")
    def append_span(self, **values: Any) -> None:
        """Record one span: ``step, holder, phase, start_s, end_s`` (on the clock of ``now_s``), and other columns of
        ``spans``.
        """
        self._take("spans", values)

    @contextmanager
    def span(self, phase: str | None = None, step: int | None = None, holder: str = "trainer", **values: Any) -> Iterator[None]:
        """Record the time of a ``with`` block as a span, also if the block raises.

        Args:
            phase: ``decode, prepare, learn, sync``, ...: one of ``PHASES``.
            step: of the run; without a phase or a step the block runs and nothing is recorded.
            values: other columns of ``spans``; given times replace the block's.
        """
        start_s = self.now_s
        try:
            yield
        finally:
            times = {"start_s": start_s, "end_s": self.now_s}
            self.append_span(**{"step": step, "holder": holder, "phase": phase, **times, **values})

    @_harmless("rows could not be written")
    def flush(self) -> None:
        """Write all rows to the file; killing the process afterwards does not lose them."""
        self._write()

    @_harmless("the recording could not be closed, but what was written can be read")
    def close(self) -> None:
        """Write all rows and convert them to the trace's tables. Nothing can be recorded afterwards.

        Without any response no tables can be written; a warning is logged, and the rows stay in the journal for a later
        recorder.
        """
        if self._journal is None:
            return
        self.flush()
        journal, self._journal = self._journal, None
        self._give_up(len(self._waiting))
        try:
            if not len(merge_journal(self.folder, journal)["rollouts"]):
                _log.warning("recording into %s: no response was recorded, so the folder is not a trace yet", self.folder)
        finally:
            journal.close()
            if self.lost:
                _log.warning("recording into %s: %d of %d rows were lost", self.folder, self.lost, self.lost + self.recorded)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def failed(self, what: str, error: Exception) -> None:
        """Count lost rows, and log the first failure of a kind."""
        if what not in self._reported:
            self._reported.add(what)
            _log.warning(
                "recording into %s: %s (%s); training goes on, and this warning is not repeated", self.folder, what, error
            )

    def _take(self, table: str, values: dict[str, Any]) -> None:
        self.lost += 1  # until it is taken
        if self._journal is None:
            raise TraceError(f"{self.folder}: this recorder is closed or could not be started; an open recorder is needed")
        self._waiting.append(line_of(table, checked_row(table, {"run": self.run, **values})))
        self.lost -= 1
        self.recorded += 1
        if time.monotonic() - self._flushed >= FLUSH_S or len(self._waiting) % FLUSH_ROWS == 0:
            self.flush()

    def _write(self) -> None:
        if self._journal is None or not self._waiting:
            return
        self._flushed = time.monotonic()
        try:
            self._journal.append(self._waiting)
        except OSError:
            self._give_up(len(self._waiting) - MAX_WAITING)
            raise
        self._waiting = []

    def _give_up(self, rows: int) -> None:
        """Discard the oldest rows that wait to be written."""
        if rows > 0:
            self.lost, self.recorded = self.lost + rows, self.recorded - rows
            del self._waiting[:rows]


def merge_journal(folder: Path, journal: RecordingJournal) -> dict[str, pd.DataFrame]:
    """Merge the rows of a folder's journal into its tables. A process killed at any moment leaves a trace with all rows.

    A trace needs at least one response; until then the rows stay in the journal.

    Returns:
        The rows of both, by table.

    Raises:
        TraceError: the folder cannot be read or written.
    """
    meta, frames, plans = store.load(folder)
    if journal.size_bytes and len(frames["rollouts"]):
        rows = {table: validate(table, frame, folder / f"{table}.parquet") for table, frame in frames.items()}
        store.write_folder(folder, {table: store.to_arrow(table, frame) for table, frame in rows.items()}, plans, meta)
        journal.empty()
    return frames


def _ended_s(frames: Mapping[str, pd.DataFrame]) -> float:
    """Return the seconds since the run's start at which the last row ended."""
    ends = (frame["end_s"].max() for frame in frames.values() if "end_s" in frame.columns)
    return max((float(end) for end in ends if end == end), default=0.0)
