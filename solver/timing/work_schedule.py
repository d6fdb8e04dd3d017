"""Decides when work beside decoding runs: passes of a reference model, gradients of finished groups, transfers.

The planner and the executor call this one function, so planned and executed times agree. It is a list scheduler.

1. An item is ready at its ``ready_s``, and not before the gate that it waits for is open. A gate opens when the last item
   that it counts has ended. So "a group's gradient runs when all its responses are prepared" is one gate per group.
2. No server idles while an item of its place is ready (non-delay schedule). Among ready items the one with the smallest
   ``priority`` starts first, then the one that was ready first, then the one with the smallest index.
3. Among free servers an item takes one that has worked before, the one that is free for longest. A further server is opened
   only when all of those are busy, so as few GPUs as possible are allocated.

Invariants, which the tests check on random instances: an item starts neither before it is ready nor before its gate is open. A
server runs one item at a time and none before it is free. No free server could have started an item earlier.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given
from solver.model.workload import FloatArray

IntArray = NDArray[np.int64]
NO_GATE = -1


@dataclass(frozen=True, eq=False)
class WorkItems:
    """The I items of work of a step.

    Attributes:
        seconds: (I,) seconds of each item on one server.
        ready_s: (I,) earliest start, or one for all.
        waits_for: (I,) gate that must be open before the item starts, ``NO_GATE`` for none.
        counts_for: (I,) gate that opens once this item and all others that count for it have ended, ``NO_GATE`` for none. Or
            (N, 2) pairs of an item and a gate that it counts for, where an item counts for several.
        place: (I,) place that the item runs in, or one for all; only servers of the same place run it.
        priority: (I,) order among ready items, or one for all; smaller starts first.

    Raises:
        PlanningError: seconds are negative, a number is not finite, an array has another length, or an item waits for a gate
            that no item counts for.
    """

    seconds: FloatArray
    ready_s: FloatArray
    waits_for: IntArray
    counts_for: IntArray
    place: IntArray
    priority: FloatArray

    def __init__(
        self,
        seconds: ArrayLike,
        ready_s: ArrayLike = 0.0,
        waits_for: ArrayLike = NO_GATE,
        counts_for: ArrayLike = NO_GATE,
        place: ArrayLike = 0,
        priority: ArrayLike = 0.0,
    ) -> None:
        length = _array("seconds", seconds, None, float)
        for name, values, kind in (
            ("seconds", length, float), ("ready_s", ready_s, float), ("waits_for", waits_for, np.int64),
            ("counts_for", counts_for, np.int64), ("place", place, np.int64), ("priority", priority, float),
        ):  # fmt: skip
            object.__setattr__(self, name, _array(name, values, len(length), kind, pairs=name == "counts_for"))
        wrong = np.flatnonzero(~np.isfinite(self.seconds) | (self.seconds < 0))
        if len(wrong):
            raise PlanningError(
                f"seconds of work item {wrong[0]} are {self.seconds[wrong[0]]:g}; a finite number of 0 or more is needed"
            )
        for name in ("ready_s", "priority"):
            wrong = np.flatnonzero(~np.isfinite(getattr(self, name)))
            if len(wrong):
                number = getattr(self, name)[wrong[0]]
                raise PlanningError(f"{name} of work item {wrong[0]} is {number:g}; a finite number is needed")
        items, gates = self.counting
        if len(wrong := items[(items < 0) | (items >= len(length))]):
            raise PlanningError(f"counts_for names work item {wrong[0]}; items are 0 to {len(length) - 1}")
        closed = np.setdiff1d(self.waits_for[self.waits_for != NO_GATE], gates)
        if len(closed):
            item = int(np.flatnonzero(self.waits_for == closed[0])[0])
            raise PlanningError(f"work item {item} waits for gate {closed[0]}, but no item counts for that gate")

    def __len__(self) -> int:
        """Number of items."""
        return len(self.seconds)

    @property
    def counting(self) -> tuple[IntArray, IntArray]:
        """Return (N,) items and (N,) gates that they count for, each pair once."""
        if self.counts_for.ndim == 2:
            pairs = np.unique(self.counts_for, axis=0)
            return pairs[:, 0], pairs[:, 1]
        items = np.flatnonzero(self.counts_for != NO_GATE)
        return items, self.counts_for[items]


@dataclass(frozen=True, eq=False)
class WorkSchedule:
    """When and where each of I items runs.

    Attributes:
        server: (I,) index of its server.
        start_s, end_s: (I,) its start and end.
        order: (I,) items in the order in which they started.
    """

    server: IntArray
    start_s: FloatArray
    end_s: FloatArray
    order: IntArray

    @property
    def finished_s(self) -> float:
        """When the last item ends; minus infinity without items."""
        return float(self.end_s.max(initial=-math.inf))

    def intervals(self) -> list[WorkInterval]:
        """Return the intervals in which a server works without a pause, in the order in which they start."""
        found: list[WorkInterval] = []
        latest: dict[int, WorkInterval] = {}
        for item in self.order.tolist():
            server, start_s, end_s = int(self.server[item]), float(self.start_s[item]), float(self.end_s[item])
            if server in latest and latest[server].end_s == start_s:
                latest[server].end_s = end_s
                latest[server].items.append(item)
            else:
                latest[server] = WorkInterval(server, start_s, end_s, [item])
                found.append(latest[server])
        return found


@dataclass
class WorkInterval:
    """An interval in which one server runs ``items``, one after the other, without a pause."""

    server: int
    start_s: float
    end_s: float
    items: list[int]


def schedule_work(items: WorkItems, free_s: ArrayLike, place: ArrayLike = 0) -> WorkSchedule:
    """Return when and where every item runs, by the list schedule of this file.

    Args:
        free_s: (S,) when each server is free for work; minus infinity for one that nothing else uses.
        place: (S,) place of each server, or one for all.

    Raises:
        PlanningError: a free time is no number, an item's place has no server, or items wait for each other in a circle.

    Example:
        >>> from solver.timing.work_schedule import WorkItems, schedule_work
        >>> prepare = WorkItems([2.0, 2.0, 1.0], ready_s=[0.0, 1.0, 1.0])
        >>> schedule_work(prepare, free_s=[0.0, 0.0]).end_s.tolist()
        [2.0, 3.0, 3.0]
    """
    free = _array("free_s", free_s, None, float)
    if np.isnan(free).any() or (free == math.inf).any():
        raise PlanningError(f"free_s of server {int(np.flatnonzero(np.isnan(free) | (free == math.inf))[0])} is no number")
    places = _array("place of servers", place, len(free), np.int64)
    without = np.setdiff1d(items.place, places)
    if len(without):
        item = int(np.flatnonzero(items.place == without[0])[0])
        raise PlanningError(f"work item {item} runs in place {without[0]}, but no server is in that place; add one")
    return _ListScheduler(items, free, places).run()


class _ListScheduler:
    """State of one call: items by readiness, servers by place, and the items that gates still wait for."""

    def __init__(self, items: WorkItems, free_s: FloatArray, places: IntArray) -> None:
        self.items = items
        self.seconds, self.ready_s = items.seconds.tolist(), items.ready_s.tolist()  # lists: reading an array's entry is slow
        self.place, self.priority = items.place.tolist(), items.priority.tolist()
        self.left: dict[int, int] = {}
        self.counts_for: dict[int, list[int]] = {}  # gates by item
        for item, gate in zip(*(numbers.tolist() for numbers in items.counting), strict=True):
            self.counts_for.setdefault(item, []).append(gate)
            self.left[gate] = self.left.get(gate, 0) + 1
        self.waiting: dict[int, list[int]] = {}
        self.coming: list[tuple[float, int]] = []  # (ready_s, item), gate open
        for item, (gate, ready_s) in enumerate(zip(items.waits_for.tolist(), self.ready_s, strict=True)):
            if gate == NO_GATE:
                self.coming.append((ready_s, item))
            else:
                self.waiting.setdefault(gate, []).append(item)
        heapq.heapify(self.coming)
        self.ready: dict[int, list[tuple[float, float, int]]] = {p: [] for p in set(places.tolist())}
        self.used: dict[int, list[tuple[float, int]]] = {p: [] for p in self.ready}  # idle servers that have worked
        self.unused: dict[int, list[tuple[float, int]]] = {p: [] for p in self.ready}  # idle servers that have not
        self.places = places.tolist()
        self.freeing = [(at_s, server) for server, at_s in enumerate(free_s.tolist())]  # (time, server that becomes idle)
        heapq.heapify(self.freeing)
        self.running: list[tuple[float, int, int]] = []  # (end, item, server)

    def run(self) -> WorkSchedule:
        """Go from event to event: items end, gates open, servers become free, ready items start."""
        count = len(self.items)
        server, start_s, end_s = [-1] * count, [0.0] * count, [0.0] * count
        order: list[int] = []
        now_s = -math.inf
        while len(order) < count:
            self._admit(now_s)
            started = False
            for place, ready in self.ready.items():
                while ready and (idle := self.used[place] or self.unused[place]):
                    item, chosen = heapq.heappop(ready)[2], heapq.heappop(idle)[1]
                    begin_s = max(now_s, self.ready_s[item])
                    server[item], start_s[item], end_s[item] = chosen, begin_s, begin_s + self.seconds[item]
                    order.append(item)
                    heapq.heappush(self.running, (end_s[item], item, chosen))
                    started = True
            if started:
                continue  # an item of no seconds may have ended at once
            later = [heap[0][0] for heap in (self.coming, self.freeing, self.running) if heap]
            if not later:
                stuck = int(next(item for items in self.waiting.values() for item in items))
                raise PlanningError(
                    f"work item {stuck} waits for a gate that never opens; remove the circle of items that wait for each other"
                )
            now_s = min(later)
        return WorkSchedule(np.array(server, np.int64), np.array(start_s), np.array(end_s), np.array(order, np.int64))

    def _admit(self, now_s: float) -> None:
        """Take in what has happened by ``now_s``."""
        while self.running and self.running[0][0] <= now_s:
            end_s, item, server = heapq.heappop(self.running)
            heapq.heappush(self.used[self.places[server]], (end_s, server))
            for gate in self.counts_for.get(item, ()):
                self.left[gate] -= 1
                if self.left[gate] == 0:
                    for opened in self.waiting.pop(gate, ()):
                        heapq.heappush(self.coming, (max(end_s, self.ready_s[opened]), opened))
        while self.freeing and self.freeing[0][0] <= now_s:
            at_s, server = heapq.heappop(self.freeing)
            heapq.heappush(self.unused[self.places[server]], (at_s, server))
        while self.coming and self.coming[0][0] <= now_s:
            ready_s, item = heapq.heappop(self.coming)
            heapq.heappush(self.ready[self.place[item]], (self.priority[item], ready_s, item))


def _array(name: str, values: ArrayLike, length: int | None, kind: type, pairs: bool = False) -> NDArray[Any]:
    """Return ``values`` as an array of one dimension, one number repeated to ``length``; refuse anything else.

    ``pairs``: it may also be any number of pairs.
    """
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise PlanningError(f"{name} is {as_given(values)}; numbers are needed") from None
    if kind is np.int64 and not np.array_equal(array, np.floor(array)):
        raise PlanningError(f"{name} has numbers that are not whole; whole numbers are needed")
    array = array.astype(kind)
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if pairs and array.ndim == 2 and array.shape[1] == 2:
        return array
    if array.ndim != 1 or (length is not None and len(array) != length):
        needed = "one number each" if length is None else f"({length},)"
        raise PlanningError(f"{name} has shape {array.shape}; {needed} is needed")
    return array
