"""Named intervals on tracks, in whole microseconds, and how overlapping ones are distributed over lanes."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from rlhfless.trace.errors import TraceError
from rlhfless.trace.schema.casts import LARGEST_WHOLE_NUMBER


@dataclass(frozen=True)
class Slice:
    """A named interval on a track, from ``start_us`` to ``end_us``.

    Attributes:
        flows: ends of arrows: ``s`` where one leaves, ``f`` where one arrives, its number, and when in microseconds.
    """

    name: str
    start_us: int
    end_us: int
    category: str
    args: dict[str, Any] = field(default_factory=dict)
    flows: tuple[tuple[str, int, int], ...] = ()


Track: TypeAlias = tuple[str, str, str]  # a run, a process of it and a thread in that
Tracks: TypeAlias = dict[Track, list[Slice]]
Counter: TypeAlias = tuple[str, str, list[tuple[int, float]]]  # its name, its unit, values at microseconds


class ArrowNumbers:
    """Numbers of arrows, from 1: the same for the same key."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)


def us(seconds: Any) -> int:
    """Return seconds as whole microseconds.

    Raises:
        TraceError: the time is too large.
    """
    if seconds * 1e6 > LARGEST_WHOLE_NUMBER:
        raise TraceError(
            f"a time of {seconds:g} s is too late for a timeline in microseconds; seconds since the run's start are needed"
        )
    return round(float(seconds) * 1e6)


def all_us(seconds: np.ndarray) -> np.ndarray:
    """Return (N,) seconds as whole microseconds.

    Raises:
        TraceError: a time is too large.
    """
    if len(seconds):
        us(seconds.max())
    return np.round(seconds * 1e6).astype(np.int64)


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


def disjoint_lanes(start_us: Sequence[int], end_us: Sequence[int]) -> list[int]:
    """Return the lane of each interval, from 0, so that no two intervals of a lane overlap; intervals are sorted by start.

    As many lanes are used as intervals overlap at most, as each takes the lowest lane that is free.

    Example:
        >>> disjoint_lanes([0, 1, 2], [2, 5, 3])
        [0, 1, 0]
    """
    running: list[tuple[int, int]] = []
    free: list[int] = []
    chosen: list[int] = []
    for start, end in zip(start_us, end_us, strict=True):
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        lane = heapq.heappop(free) if free else len(running)
        heapq.heappush(running, (end, lane))
        chosen.append(lane)
    return chosen
