"""Tracks of those who hold GPUs: their allocations and spans, the steps of the run and its events.

Slices have OpenTelemetry's names for reinforcement learning: ``rl.loop`` a step; ``rl.sample`` generation, with its phases
inside; ``rl.reward`` preparation; ``rl.train`` learning; ``rl.sync`` weight sync. ``start`` is a process start-up.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.perfetto.moves import ResponseMove
from rlhfless.trace.perfetto.slices import ArrowNumbers, Slice, Track, Tracks, us
from rlhfless.trace.schema.casts import is_null, jsonable

SAMPLING = ("prefill", "transfer", "decode", "migrate")
LOOP = "loop"
NAMES = {"start": "start", "sync": "rl.sync", "prepare": "rl.reward", "learn": "rl.train"}
_SPAN_ARGS = ("call", "batch_mean", "slots", "tokens", "kv_tokens", "bytes", "from_actor", "detail")


def steps(trace: Trace) -> Tracks:
    """Return a slice per step, from its first time in the trace to its last."""
    times = [
        table[["run", "step", "start_s", "end_s"]]
        for table in (trace.allocations, trace.spans, trace.rollouts)
        if len(table) and {"start_s", "end_s"} <= set(table.columns)
    ]
    times_of_steps = pd.concat(times).dropna() if times else pd.DataFrame(columns=["run", "step"])
    tracks: Tracks = {}
    for (run, step), step_times in times_of_steps.groupby(["run", "step"], sort=True):
        entry = Slice("rl.loop", us(step_times["start_s"].min()), us(step_times["end_s"].max()), "step", {"step": int(step)})
        tracks.setdefault((run, LOOP, "steps"), []).append(entry)
    return tracks


def allocations(trace: Trace) -> Tracks:
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
        held = Slice("held", us(allocation.start_s), us(allocation.end_s), allocation.role, jsonable(args))
        tracks.setdefault(_holder(allocation), []).append(held)
    return tracks


def _holder(allocation: Any) -> Track:
    thread = allocation.role if is_null(allocation.node) else f"{allocation.role}, node {allocation.node}"
    return allocation.run, thread, allocation.holder


def spans(trace: Trace, moved: Sequence[ResponseMove], numbers: ArrowNumbers) -> Tracks:
    """Return a slice per span, by holder; background spans are on separate tracks.

    Args:
        moved: moves of responses, each an arrow from its span at the sender to that at the receiver. numbers: of the arrows.
    """
    arrows = _arrows(moved, numbers)
    holders = {
        (allocation.run, allocation.step, allocation.holder): _holder(allocation)
        for allocation in trace.allocations.itertuples()
    }
    tracks: Tracks = {}
    ordered = trace.spans.sort_values(["start_s", "end_s"], kind="stable")
    for (run, step, holder), holder_spans in ordered.groupby(["run", "step", "holder"], sort=False):
        track = holders.get((run, step, holder), (run, "holders without allocations", holder))
        background = holder_spans["background"].to_numpy(dtype=bool)
        foreground = [_slice(span, arrows) for span in holder_spans[~background].itertuples()]
        tracks.setdefault(track, []).extend(foreground + _samplings(foreground))
        if background.any():
            behind = [_slice(span, arrows) for span in holder_spans[background].itertuples()]
            tracks.setdefault((*track[:2], f"{holder}, background"), []).extend(behind + _samplings(behind))
    return tracks


def _arrows(moved: Sequence[ResponseMove], numbers: ArrowNumbers) -> dict[Any, tuple[tuple[str, int, int], ...]]:
    """Return ends of arrows by the label of their span: from the start of a move to its arrival."""
    arrows: dict[Any, tuple[tuple[str, int, int], ...]] = {}
    for move in moved:
        if move.source is not None and us(move.leave_s) < us(move.arrive_s):
            number = numbers(("span", move.source))
            arrows[move.source] = (("s", number, us(move.leave_s)),)
            arrows[move.target] = (("f", number, us(move.arrive_s) - 1),)
    return arrows


def _slice(span: Any, arrows: Mapping[Any, tuple[tuple[str, int, int], ...]]) -> Slice:
    values = {name: getattr(span, name) for name in ("step", *_SPAN_ARGS)}
    args = jsonable({name: value for name, value in values.items() if not is_null(value)})
    name, flows = NAMES.get(span.phase, span.phase), arrows.get(span.Index, ())
    return Slice(name, us(span.start_s), us(span.end_s), span.phase, args, flows)


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


def instants(trace: Trace) -> Tracks:
    """Events: slices that take no time, on a track of the loop."""
    tracks: Tracks = {}
    for event in trace.events.itertuples():
        values = {"step": event.step, "holder": event.holder, "detail": event.detail}
        args = jsonable({name: value for name, value in values.items() if not is_null(value)})
        at_us = us(event.time_s)
        tracks.setdefault((event.run, LOOP, "events"), []).append(Slice(event.name, at_us, at_us, "event", args))
    return tracks
