"""Trace events of a trace: the tracks of its holders, its requests, and the counters.

The format has events ``ph`` X, M, C, s and f with integer microseconds. A process is a role on a node (``decode, node 0``), a
thread in it an actor or another holder of GPUs. One more process per run has its steps, its events and the counters, and one
more per actor its requests. Viewers hide slices of a thread that overlap without nesting, so these are on further threads.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from rlhfless.trace.errors import TraceError
from rlhfless.trace.io import Trace
from rlhfless.trace.moves import moves
from rlhfless.trace.perfetto.holders import holder_slices
from rlhfless.trace.perfetto.requests import (
    batch_counter,
    kv_counter,
    request_slices,
    requests_of,
    step_values,
)
from rlhfless.trace.perfetto.slices import ArrowNumbers, Counter, Slice, Track, lanes, us
from rlhfless.trace.schema.prices import dollars
from rlhfless.trace.tracks import LOOP, STEPS, panel_of_requests, timed

MAX_REQUESTS = 500_000  # about 150 MB, which a browser still opens


def trace_events(trace: Trace, max_requests: int = MAX_REQUESTS) -> Iterator[dict[str, Any]]:
    """Yield the trace as trace events: slices by track, each track named before its first slice; then counters.

    Args:
        max_requests: of more requests the first ones by start are drawn; a counter has at most twice as many values.

    Raises:
        TraceError: the trace has no times, or times too large for microseconds.
    """
    moved, numbers = moves(trace.spans), ArrowNumbers()
    tracks = holder_slices(trace, moved, numbers)
    if not any(track[1:] == (LOOP, STEPS) for track in tracks):
        source = trace.source or "the trace"
        raise TraceError(
            f"{source}: contains no times, so it has no timeline; spans, allocations, or responses with start_s and end_s are "
            "needed"
        )
    place = _Places(several_runs=len(trace.runs) > 1)
    for (run, process, thread), of_track in sorted(tracks.items(), key=lambda item: _reading_order(item[0])):
        for number, lane in enumerate(lanes(of_track), start=1):
            for entry in lane:
                yield from place.slice(entry, run, process, thread if number == 1 else f"{thread} ({number})")
    known = trace.rollouts[timed(trace.rollouts)]
    drawn = set(known.sort_values("start_s", kind="stable").index[:max_requests]) if len(known) else set()
    for run in trace.runs:
        requests, most = requests_of(trace, run), 2 * max_requests
        counters = [(LOOP, _batch(trace, run, most)), (LOOP, kv_counter(requests, None, most)), (LOOP, _cost(trace, run))]
        for actor in sorted(requests.actors, key=_numbered):
            process = panel_of_requests(actor)
            for lane_number, entry in request_slices(requests, actor, drawn, numbers):
                yield from place.slice(entry, run, process, f"track {lane_number + 1}")
            if actor:
                counters += [(process, batch_counter(requests, actor, most)), (process, kv_counter(requests, actor, most))]
        for process, counter in counters:
            yield from () if counter is None else place.counter(counter, run, process)


class _Places:
    """Assigns numbers to processes and threads, and names them, when they are first requested."""

    def __init__(self, several_runs: bool) -> None:
        self._several_runs = several_runs
        self._pids: dict[str, int] = {}
        self._tids: dict[tuple[int, str], int] = {}

    def slice(self, entry: Slice, run: str, process: str, thread: str) -> Iterator[dict[str, Any]]:
        """Yield a slice with the ends of its arrows, after the names of its track where these are new."""
        pid = yield from self._process(run, process)
        if (pid, thread) not in self._tids:
            self._tids[pid, thread] = len(self._tids) + 1
            yield _name("thread_name", pid, self._tids[pid, thread], thread)
        where = {"pid": pid, "tid": self._tids[pid, thread]}
        times = {"ts": entry.start_us, "dur": entry.end_us - entry.start_us}
        yield {"ph": "X", "name": entry.name, "cat": entry.category, **where, **times, "args": entry.args}
        for end, number, at_us in entry.flows:
            binding = {"bp": "e"} if end == "f" else {}
            yield {"ph": end, "name": "migration", "cat": "migration", "id": number, **where, "ts": at_us, **binding}

    def counter(self, counter: Counter, run: str, process: str) -> Iterator[dict[str, Any]]:
        """Yield the values of a counter."""
        pid = yield from self._process(run, process)
        name, unit, points = counter
        for at_us, value in points:
            yield {"ph": "C", "name": name, "pid": pid, "ts": at_us, "args": {unit: value}}

    def _process(self, run: str, process: str) -> Generator[dict[str, Any], None, int]:
        process = f"{run}: {process}" if self._several_runs else process
        if process not in self._pids:
            self._pids[process] = len(self._pids) + 1
            yield _name("process_name", self._pids[process], 0, process)
        return self._pids[process]


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _reading_order(track: Track) -> tuple[Any, ...]:
    """Sort key of tracks: the loop first; numbers in names are compared as numbers."""
    run, process, thread = track
    return (run, process != LOOP, _numbered(process), _numbered(thread))


def _numbered(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", name)]


def _batch(trace: Trace, run: str, most: int) -> Counter:
    """Responses being generated: those whose times are known, else the mean batch of all decode spans at a time."""
    rows = trace.rollouts[(trace.rollouts["run"] == run) & timed(trace.rollouts)].assign(batch_mean=1.0)
    if rows.empty:
        spans = trace.spans[(trace.spans["run"] == run) & (trace.spans["phase"] == "decode")]
        rows = spans.dropna(subset=["batch_mean"])
    start, end = (rows[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    size = rows["batch_mean"].to_numpy(dtype=float)
    return "running batch", "responses", step_values(np.concatenate([start, end]), np.concatenate([size, -size]), most)


def _cost(trace: Trace, run: str) -> Counter:
    """Dollars spent so far, at every moment at which the allocated GPUs change; none where a GPU has no price."""
    held = trace.allocations[trace.allocations["run"] == run]
    start, end = (held[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    usd_per_s = dollars([len(ids) for ids in held["gpu_ids"]], held["usd_per_gpu_s"])
    at_s = np.unique(np.concatenate([start, end])) if np.isfinite(usd_per_s).all() else np.zeros(0)
    spent = [float((usd_per_s * np.clip(t - start, 0.0, end - start)).sum()) for t in at_s]
    return "cost", "usd", list({us(t): usd for t, usd in zip(at_s, spent, strict=True)}.items())
