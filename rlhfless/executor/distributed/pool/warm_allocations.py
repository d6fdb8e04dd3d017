"""Writes the GPU time of waiting actors as trace rows: separate holders named ``warm-`` plus their first GPU, with the role
``warm``.

A second of a GPU is charged once. Time in which another holder of the step had the GPU (a learner that shares it with a
sleeping actor) is charged to that holder.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.step.record import StepRecord


@dataclass
class WarmRow:
    """GPU time of one waiting actor, finished or up to now. ``starting``: the interval in which it was not up yet."""

    place: ActorPlacement
    start_s: float
    end_s: float
    starting: tuple[float, float] | None


def holder_at(place: ActorPlacement) -> str:
    """Return the name in the trace of an actor that waits at this place."""
    return f"warm-{place.gpu_ids[0]}"


def write_warm(record: StepRecord, row: WarmRow) -> None:
    """Add the allocation, and the start within it, to the record."""
    place, holder = row.place, holder_at(row.place)
    for gpu_ids, start_s, end_s in list(_alone(record, row)):
        record.allocate(holder, "warm", place._replace(gpu_ids=gpu_ids), start_s, end_s)
        if row.starting is not None:
            record.span(holder, "start", max(start_s, row.starting[0]), min(end_s, row.starting[1]), call="prewarm")


def _alone(record: StepRecord, row: WarmRow) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Yield the time intervals, each with those GPUs that no other holder of the record has during it."""
    other_holders = [
        (set(a["gpu_ids"]), a["start_s"], a["end_s"])
        for a in record.allocations
        if a["start_s"] < row.end_s and a["end_s"] > row.start_s and not set(row.place.gpu_ids).isdisjoint(a["gpu_ids"])
    ]
    inside = {t for _, *ends in other_holders for t in ends if row.start_s < t < row.end_s}
    at = [row.start_s, *sorted(inside), row.end_s]
    for start_s, end_s in itertools.pairwise(at):
        taken = {gpu for gpus, begin_s, over_s in other_holders if begin_s <= start_s and over_s >= end_s for gpu in gpus}
        left = tuple(gpu for gpu in row.place.gpu_ids if gpu not in taken)
        if left and end_s > start_s:
            yield left, start_s, end_s
