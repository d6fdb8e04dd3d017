"""Exports a trace as trace events (JSON), to open in Perfetto (ui.perfetto.dev) or chrome://tracing.

The format has events ``ph`` X, M and C with integer microseconds. A process is a role on a node (``decode, node 0``), a thread
in it an actor or another holder of GPUs. One more process per run has its steps, its events and the counters. Slices have
OpenTelemetry's names for reinforcement learning: ``rl.loop`` a step; ``rl.sample`` generation, with its phases inside;
``rl.reward`` preparation; ``rl.train`` learning; ``rl.sync`` weight sync. ``start`` is a process start-up. Viewers hide slices
of a thread that overlap without nesting, so ``lanes`` moves such slices to further threads of the same name.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from rlhfless.trace import storage
from rlhfless.trace.errors import TraceError
from rlhfless.trace.io import Trace
from rlhfless.trace.schema.casts import LARGEST_WHOLE_NUMBER, is_null, jsonable

SAMPLING = ("prefill", "transfer", "decode", "migrate")
LOOP = "loop"
NAMES = {"start": "start", "sync": "rl.sync", "prepare": "rl.reward", "learn": "rl.train"}
_SPAN_ARGS = ("call", "batch_mean", "slots", "tokens", "kv_tokens", "bytes", "from_actor", "detail")


@dataclass(frozen=True)
class Slice:
    """A named interval on a track, from ``start_us`` to ``end_us``."""

    name: str
    start_us: int
    end_us: int
    category: str
    args: dict[str, Any] = field(default_factory=dict)


Track: TypeAlias = tuple[str, str, str]  # a run, a process of it and a thread in that
Tracks: TypeAlias = dict[Track, list[Slice]]
Counter: TypeAlias = tuple[str, str, list[tuple[int, float]]]  # its name, its unit, values at microseconds


def lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Distribute slices over as few lanes as needed, so that two slices of a lane are disjoint or nested.

    By start, longest first, each slice goes to the first lane whose running slices enclose it; so a lane is ordered by its
    slices' starts.
    """
    assigned: list[list[Slice]] = []
    open_until: list[list[int]] = []
    for entry in sorted(slices, key=lambda s: (s.start_us, -s.end_us)):
        for lane, ends in zip(assigned, open_until, strict=True):  # noqa: B007 (used below)
            while ends and ends[-1] <= entry.start_us:
                ends.pop()
            if not ends or ends[-1] >= entry.end_us:
                break
        else:
            lane, ends = [], []
            assigned.append(lane)
            open_until.append(ends)
        lane.append(entry)
        ends.append(entry.end_us)
    return assigned


def trace_events(trace: Trace) -> list[dict[str, Any]]:
    """Return the trace as trace events: names of tracks, then slices by track, then counters.

    Raises:
        TraceError: the trace has no times, or times too large for microseconds.
    """
    tracks, steps = _allocations(trace), _steps(trace)
    if not steps:
        source = trace.source or "the trace"
        raise TraceError(
            f"{source}: contains no times, so it has no timeline; spans, allocations or responses with times are needed"
        )
    for more in (_spans(trace), _instants(trace), steps):
        for track, of_track in more.items():
            tracks.setdefault(track, []).extend(of_track)
    place = _Places(several_runs=len(trace.runs) > 1)
    slices: list[dict[str, Any]] = []
    for (run, process, thread), of_track in sorted(tracks.items(), key=lambda item: _reading_order(item[0])):
        for number, lane in enumerate(lanes(of_track), start=1):
            pid, tid = place(run, process, thread if number == 1 else f"{thread} ({number})")
            slices += [
                {"ph": "X", "name": entry.name, "cat": entry.category, "pid": pid, "tid": tid, "ts": entry.start_us,
                 "dur": entry.end_us - entry.start_us, "args": entry.args}
                for entry in lane
            ]  # fmt: skip
    counters = [
        {"ph": "C", "name": name, "pid": place(run, LOOP, "steps")[0], "ts": at_us, "args": {unit: value}}
        for run in trace.runs
        for name, unit, points in (_batch(trace, run), _cost(trace, run))
        for at_us, value in points
    ]
    return place.named + slices + counters


def write_perfetto(trace: Trace, path: str | Path) -> Path:
    """Write the trace as a JSON file of trace events, compressed if the name ends in ``.gz``.

    Raises:
        TraceError: see ``trace_events``; or the name ends in neither .json nor .json.gz, or the file cannot be written.
    """
    path = Path(path)
    if not path.name.lower().endswith((".json", ".json.gz")):
        raise TraceError(f"{path}: the name of a timeline must end in .json or .json.gz")
    content = {"traceEvents": trace_events(trace), "displayTimeUnit": "ms", "otherData": {"runs": ", ".join(trace.runs)}}
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    if path.name.lower().endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    storage.replace_file(path, lambda stream: stream.write(data))
    return path


class _Places:
    """Assigns numbers to processes and threads, and names them, when they are first requested."""

    def __init__(self, several_runs: bool) -> None:
        self._several_runs = several_runs
        self.named: list[dict[str, Any]] = []
        self._pids: dict[str, int] = {}
        self._tids: dict[tuple[int, str], int] = {}

    def __call__(self, run: str, process: str, thread: str) -> tuple[int, int]:
        process = f"{run}: {process}" if self._several_runs else process
        if process not in self._pids:
            self._pids[process] = len(self._pids) + 1
            self._name("process_name", self._pids[process], 0, process)
        pid = self._pids[process]
        if (pid, thread) not in self._tids:
            self._tids[pid, thread] = len(self._tids) + 1
            self._name("thread_name", pid, self._tids[pid, thread], thread)
        return pid, self._tids[pid, thread]

    def _name(self, kind: str, pid: int, tid: int, name: str) -> None:
        self.named.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}})


def _reading_order(track: Track) -> tuple[Any, ...]:
    """Sort key of tracks: the loop first; numbers in names are compared as numbers."""
    run, process, thread = track
    parts = [re.split("([0-9]+)", name) for name in (process, thread)]
    numbered = [[(int(part), "") if part.isdecimal() else (-1, part) for part in name] for name in parts]
    return (run, process != LOOP, *numbered)


def _us(seconds: Any) -> int:
    if seconds * 1e6 > LARGEST_WHOLE_NUMBER:
        raise TraceError(
            f"a time of {seconds:g} s is too late for a timeline in microseconds; seconds since the run's start are needed"
        )
    return round(float(seconds) * 1e6)


def _steps(trace: Trace) -> Tracks:
    """Return a slice per step, from its first time in the trace to its last."""
    times = [
        table[["run", "step", "start_s", "end_s"]]
        for table in (trace.allocations, trace.spans, trace.rollouts)
        if len(table) and {"start_s", "end_s"} <= set(table.columns)
    ]
    times_of_steps = pd.concat(times).dropna() if times else pd.DataFrame(columns=["run", "step"])
    tracks: Tracks = {}
    for (run, step), step_times in times_of_steps.groupby(["run", "step"], sort=True):
        entry = Slice("rl.loop", _us(step_times["start_s"].min()), _us(step_times["end_s"].max()), "step", {"step": int(step)})
        tracks.setdefault((run, LOOP, "steps"), []).append(entry)
    return tracks


def _allocations(trace: Trace) -> Tracks:
    """Return a slice per allocation; it encloses the slices of its spans."""
    tracks: Tracks = {}
    for allocation in trace.allocations.itertuples():
        args = {
            "step": allocation.step,
            "gpus": list(allocation.gpu_ids),
            "kind": allocation.kind,
            "market": allocation.market,
            "usd_per_gpu_s": allocation.usd_per_gpu_s,
        }
        held = Slice("held", _us(allocation.start_s), _us(allocation.end_s), allocation.role, jsonable(args))
        tracks.setdefault(_holder(allocation), []).append(held)
    return tracks


def _holder(allocation: Any) -> Track:
    thread = allocation.role if is_null(allocation.node) else f"{allocation.role}, node {allocation.node}"
    return allocation.run, thread, allocation.holder


def _spans(trace: Trace) -> Tracks:
    """Return a slice per span, by holder; background spans are on separate tracks."""
    holders = {
        (allocation.run, allocation.step, allocation.holder): _holder(allocation)
        for allocation in trace.allocations.itertuples()
    }
    tracks: Tracks = {}
    spans = trace.spans.sort_values(["start_s", "end_s"], kind="stable")
    for (run, step, holder), holder_spans in spans.groupby(["run", "step", "holder"], sort=False):
        track = holders.get((run, step, holder), (run, "holders without allocations", holder))
        background = holder_spans["background"].to_numpy(dtype=bool)
        foreground = [_slice(span) for span in holder_spans[~background].itertuples()]
        tracks.setdefault(track, []).extend(foreground + _samplings(foreground))
        if background.any():
            behind = [_slice(span) for span in holder_spans[background].itertuples()]
            tracks.setdefault((*track[:2], f"{holder}, background"), []).extend(behind + _samplings(behind))
    return tracks


def _slice(span: Any) -> Slice:
    values = {name: getattr(span, name) for name in ("step", *_SPAN_ARGS)}
    args = jsonable({name: value for name, value in values.items() if not is_null(value)})
    return Slice(NAMES.get(span.phase, span.phase), _us(span.start_s), _us(span.end_s), span.phase, args)


def _samplings(slices: Sequence[Slice]) -> list[Slice]:
    """Return one ``rl.sample`` slice around all consecutive phases of generation; ``slices`` are sorted by start."""
    samples = []
    for sampling, group in itertools.groupby(slices, key=lambda entry: entry.category in SAMPLING):
        if sampling:
            grouped = list(group)
            samples.append(
                Slice(
                    "rl.sample",
                    grouped[0].start_us,
                    max(entry.end_us for entry in grouped),
                    "generation",
                    {"step": grouped[0].args["step"]},
                )
            )
    return samples


def _instants(trace: Trace) -> Tracks:
    """Events: slices that take no time, on a track of the loop."""
    tracks: Tracks = {}
    for event in trace.events.itertuples():
        values = {"step": event.step, "holder": event.holder, "detail": event.detail}
        args = jsonable({name: value for name, value in values.items() if not is_null(value)})
        at_us = _us(event.time_s)
        tracks.setdefault((event.run, LOOP, "events"), []).append(Slice(event.name, at_us, at_us, "event", args))
    return tracks


def _batch(trace: Trace, run: str) -> Counter:
    """Responses being generated: those whose times are known, else the mean batch of all decode spans at a time."""
    rows = trace.rollouts[trace.rollouts["run"] == run]
    if {"start_s", "end_s"} <= set(rows.columns):
        rows = rows.dropna(subset=["start_s", "end_s"]).assign(batch_mean=1.0)
    if not {"start_s", "end_s"} <= set(rows.columns) or rows.empty:
        spans = trace.spans[(trace.spans["run"] == run) & (trace.spans["phase"] == "decode")]
        rows = spans.dropna(subset=["batch_mean"])
    start, end = (rows[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    size = rows["batch_mean"].to_numpy(dtype=float)
    return "running batch", "responses", _steps_of(np.concatenate([start, end]), np.concatenate([size, -size]))


def _cost(trace: Trace, run: str) -> Counter:
    """Dollars spent so far, at every moment at which the allocated GPUs change."""
    held = trace.allocations[trace.allocations["run"] == run]
    start, end = (held[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    usd_per_s = np.array([len(ids) for ids in held["gpu_ids"]], dtype=float) * held["usd_per_gpu_s"].to_numpy(dtype=float)
    at_s = np.unique(np.concatenate([start, end]))
    spent = [float((usd_per_s * np.clip(t - start, 0.0, end - start)).sum()) for t in at_s]
    return "cost", "usd", list({_us(t): usd for t, usd in zip(at_s, spent, strict=True)}.items())


def _steps_of(at_s: np.ndarray, changes: np.ndarray) -> list[tuple[int, float]]:
    """Values of a sum that changes at (N,) times, after each; rounded to what floats keep of it."""
    order = np.argsort(at_s, kind="stable")
    sums = np.maximum(np.round(np.cumsum(changes[order]), 9), 0.0)
    return list({_us(t): float(value) for t, value in zip(at_s[order], sums, strict=True)}.items())
