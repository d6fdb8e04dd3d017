"""Writes trace events to a JSON file one by one, so that a large log's timeline is never in memory as a whole."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from rlhfless.trace import storage
from rlhfless.trace.errors import TraceError
from rlhfless.trace.io import Trace
from rlhfless.trace.perfetto.events import MAX_REQUESTS, trace_events
from rlhfless.trace.tracks import timed
from solver.model.errors import as_given, is_whole
from solver.model.plurals import counted


@dataclass(frozen=True)
class WrittenTimeline:
    """What was written: the file, its size, and its numbers of events and requests.

    Attributes:
        requests: drawn. left_out: requests with times that were not drawn. untimed: responses without a start or an end.
    """

    path: Path
    size_bytes: int
    events: int
    requests: int
    left_out: int
    untimed: int

    def __str__(self) -> str:
        """Return one line that says so."""
        drawn = counted(self.requests, "request") if self.requests else "no single requests"
        line = f"wrote {self.path}: {self.size_bytes / 1e6:,.1f} MB, {counted(self.events, 'event')}, {drawn}"
        if self.left_out:
            line += f"; {self.left_out:,} that start later are left out, max_requests of write_perfetto sets how many are drawn"
        if self.requests and self.untimed:
            line += f"; {self.untimed:,} without both times are not drawn"
        return line


def write_perfetto(trace: Trace, path: str | Path, max_requests: int = MAX_REQUESTS) -> WrittenTimeline:
    """Write the trace as a JSON file of trace events, compressed if the name ends in ``.gz``.

    Args:
        max_requests: of more requests the first ones by start are drawn.

    Raises:
        TraceError: see ``trace_events``; or the name ends in neither .json nor .json.gz, max_requests is no whole number above
            0, or the file cannot be written.
    """
    path = Path(path)
    if not path.name.lower().endswith((".json", ".json.gz")):
        raise TraceError(f"{path}: the name of a timeline must end in .json or .json.gz")
    if not is_whole(max_requests, 1):
        raise TraceError(f"max_requests is {as_given(max_requests)}; a whole number of 1 or more is needed")
    events = 0

    def write(stream: IO[bytes]) -> None:
        nonlocal events
        stream.write(b'{"traceEvents":[')
        for event in trace_events(trace, max_requests):
            stream.write(b",\n" if events else b"\n")
            stream.write(json.dumps(event, allow_nan=False, separators=(",", ":")).encode())
            events += 1
        rest = {"displayTimeUnit": "ms", "otherData": {"runs": ", ".join(trace.runs)}}
        stream.write(b"]," + json.dumps(rest, separators=(",", ":"))[1:].encode() + b"\n")

    def write_packed(stream: IO[bytes]) -> None:
        with gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0) as packed:
            write(cast(IO[bytes], packed))

    storage.replace_file(path, write_packed if path.name.lower().endswith(".gz") else write)
    with_times = int(timed(trace.rollouts).sum())
    drawn = min(with_times, max_requests)
    untimed = len(trace.rollouts) - with_times
    return WrittenTimeline(path, path.stat().st_size, events, drawn, with_times - drawn, untimed)
