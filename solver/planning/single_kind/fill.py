"""Fills actors up to a makespan: later, shorter items use the time that earlier ones leave.

Input: ``SortedWork``. Actors open in order of the longest item that is not placed yet. Each takes the next items in order while
they end in time. The time left on it goes to the largest later items that still fit. They are no longer than the actor's
longest item, so next to it they cost only their load. Once all slots are taken, an item runs in the slot that is free first. If
it ends there before the actor's longest response, it costs its load and a prefill call. A longer item also costs the iterations
by which it is late. So an actor whose long responses fill its slots is filled up with short ones, not with a second wave of
long ones.
"""

from __future__ import annotations

import heapq
import itertools

import numpy as np

from solver.model.workload import IntArray
from solver.planning.single_kind.items import SortedWork

MOST_FILLED = 6000  # items; with more, filling takes longer than it gains


class _FilledActor:
    """State of one actor while it is filled, in iterations (slots) and seconds (loads, prefill calls)."""

    def __init__(self, work: SortedWork, room_s: float) -> None:
        self.slots = work.slots
        self.base_s, self.call_s, self.room_s = work.base_s, work.call_s, room_s
        self.ends: list[int] = []  # a heap: when each taken slot is free again
        self.iterations = 0
        self.load_s = 0.0
        self.called_at = -1  # the last iteration with a prefill call, which serves all that join then

    def left_s(self) -> float:
        """Return the seconds left for further loads, without more iterations."""
        return self.room_s - self.load_s - self.base_s * self.iterations

    def spare_iterations(self) -> int:
        """Return the length of the longest response that would not make the actor run longer."""
        return self.iterations if len(self.ends) < self.slots else self.iterations - self.ends[0]

    def take(self, lengths: list[int], load_s: float, computes: bool) -> bool:
        """Take an item with responses of these lengths (none of them 0) and return True, if it ends in time."""
        if len(lengths) + len(self.ends) <= self.slots:
            iterations = max([self.iterations, *lengths])
            load_s += self.call_s if computes and self.called_at < 0 else 0.0
            if load_s + self.load_s + self.base_s * iterations > self.room_s:
                return False
            for length in lengths:
                heapq.heappush(self.ends, length)
            self.iterations, self.load_s = iterations, self.load_s + load_s
            self.called_at = max(self.called_at, 0 if computes else -1)
            return True
        ends = self.ends.copy() if len(lengths) > 1 else self.ends
        iterations, called_at = self.iterations, self.called_at
        for length in lengths:
            begin = ends[0] if len(ends) >= self.slots else 0
            if computes and begin > called_at:
                load_s, called_at = load_s + self.call_s, begin
            iterations = max(iterations, begin + length)
            if load_s + self.load_s + self.base_s * iterations > self.room_s:
                return False
            (heapq.heapreplace if len(ends) >= self.slots else heapq.heappush)(ends, begin + length)
        self.ends, self.iterations, self.called_at = ends, iterations, called_at
        self.load_s += load_s
        return True


def fill(work: SortedWork, makespan_s: float) -> list[IntArray] | None:
    """Return groups of items, in order of admission, that end by ``makespan_s``; None if that takes more actors than
    there are."""
    total = len(work)
    item_load, computes = work.item_load.tolist(), work.computes.tolist()
    edges = work.edge.tolist()
    iterations = work.iterations.tolist()
    lengths = [[n for n in iterations[a:b] if n > 0] for a, b in itertools.pairwise(edges)]
    falling = -work.length  # rises with the position
    no_heavier = -np.maximum.accumulate(work.item_load[::-1])[::-1]  # rises too: no item from there on is heavier
    following = list(range(total + 1))  # union-find: the first item at or after a position that is not placed

    def unplaced(position: int) -> int:
        root = position
        while following[root] != root:
            root = following[root]
        while following[position] != root:
            following[position], position = root, following[position]
        return root

    groups: list[IntArray] = []
    slack = 1e-9 * max(makespan_s, 1.0)
    while (first := unplaced(0)) < total:
        if len(groups) == work.max_actors:
            return None
        actor = _FilledActor(work, makespan_s - work.ready_of(len(groups)) + slack)
        group: list[int] = []
        i = first
        while (
            i < total and len(actor.ends) + len(lengths[i]) <= actor.slots and actor.take(lengths[i], item_load[i], computes[i])
        ):
            group.append(i)
            following[i] = i + 1
            i = unplaced(i)
        if not group:
            if not actor.take(lengths[first], item_load[first], computes[first]):
                return None  # it would be late even alone
            group.append(first)
            following[first] = first + 1
        while True:
            first_light = int(no_heavier.searchsorted(-actor.left_s(), side="left"))
            first_short = int(falling.searchsorted(-actor.spare_iterations(), side="left"))
            i = unplaced(max(first_light, first_short))
            if i >= total:
                i = unplaced(first_light)  # nothing is short enough for a free slot: run longer
            if i >= total or not actor.take(lengths[i], item_load[i], computes[i]):
                i = unplaced(int(no_heavier.searchsorted(-(actor.left_s() - actor.call_s), side="left")))
                if i >= total or not actor.take(lengths[i], item_load[i], computes[i]):
                    break
            group.append(i)
            following[i] = i + 1
        groups.append(np.array(group, dtype=np.int64))
    return groups
