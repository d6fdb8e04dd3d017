"""End times of the iterations of a batch in which all responses decode, summed only as far as they are read.

From one completion to the next the batch is constant and every response grows by one token per iteration. So a few numbers are
the whole state at the last boundary whose time is known. Who joins or leaves changes these numbers and nothing else.
"""

from __future__ import annotations

import bisect
import itertools
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from rlhfless.engine.simulated.iteration_times import Iterations
from solver.model.latency import LatencyModel
from solver.model.workload import IntArray

AT_ONCE = 16  # iterations that are summed together at most where a time is looked for


class BeginningPrefill(NamedTuple):
    """Prefill at the start of iteration ``at``: its seconds, computed tokens besides those that are decoded, and responses."""

    at: int
    seconds: float
    tokens: int
    responses: int


class TimedSegment(NamedTuple):
    """Iterations whose times are summed from one boundary, ``first``, on: its time, and seconds of responses that join there.

    ``replaced``: prefill that had begun there before.
    """

    first: int
    base_s: float
    joins_s: float
    prefill: BeginningPrefill | None
    replaced: BeginningPrefill | None


class BatchTimes:
    """Boundaries between iterations, from ``base_s`` on.

    Attributes:
        ends: boundaries at which responses are complete, with their order of admission, earliest first.
        offset_of: of each of these responses by order: its KV tokens less the number of the iteration, which is constant.
        timed: the last boundary whose time is known.
    """

    __slots__ = (
        "_added_up_s", "_boundary_s", "_latency", "_offset", "_passed", "_prefills", "_segment", "_size", "_took", "ends",
        "offset_of", "timed",
    )  # fmt: skip

    def __init__(self, latency: LatencyModel, base_s: float, ends: list[tuple[int, int]], offset_of: dict[int, int]) -> None:
        self._latency, self.ends, self.offset_of = latency, ends, offset_of
        self._added_up_s = partial(_added_up_s, latency) if latency.table is None else latency.table.added_up_s
        self._boundary_s, self._took = [base_s], [0.0]  # took: seconds since the segment's start
        self.timed = self._passed = 0  # passed: responses of ``ends`` that are complete at ``timed``
        self._size, self._offset = len(ends), sum(offset_of.values())  # of the batch in the iteration after ``timed``
        self._segment = TimedSegment(0, base_s, 0.0, None, None)
        self._prefills: list[BeginningPrefill] = []

    @property
    def last(self) -> int:
        """Return the boundary at which nothing is left."""
        return self.ends[-1][0] if self.ends else self.timed

    # --- who joins and leaves ---------------------------------------------------------------------------------------------

    def back_to(self, at: int) -> None:
        """Forget the times after a boundary."""
        if at >= self.timed:
            return
        while self._passed and self.ends[self._passed - 1][0] > at:
            self._passed -= 1
            self._size += 1
            self._offset += self.offset_of[self.ends[self._passed][1]]
        del self._boundary_s[at + 1 :], self._took[at + 1 :]
        self.timed = at

    def insert(self, end: int, order: int, offset: int) -> None:
        """Let a response join at ``timed``."""
        bisect.insort(self.ends, (end, order))
        self.offset_of[order] = offset
        self._size, self._offset = self._size + 1, self._offset + offset

    def remove(self, end: int, order: int) -> None:
        """Take a response off the batch that would decode at ``timed``."""
        del self.ends[bisect.bisect_left(self.ends, (end, order))]
        self._size, self._offset = self._size - 1, self._offset - self.offset_of.pop(order)

    def forget(self, count: int) -> list[int]:
        """Take off the next ``count`` responses, which are complete; returns their orders of admission."""
        orders = [order for _, order in self.ends[:count]]
        del self.ends[:count]
        self._passed -= count
        for order in orders:
            del self.offset_of[order]
        return orders

    def restart(self, prefill_tokens: int, computing: int, joins: int) -> TimedSegment:
        """Sum from ``timed`` on; the iteration there has this prefill for ``computing`` responses, and so many responses join.

        Returns the segment before.
        """
        at, latency, before = self.timed, self._latency, self._segment
        replaced = self._prefills.pop() if self._prefills and self._prefills[-1].at == at else None
        prefill = None
        if prefill_tokens:
            if latency.mixes:
                iteration_s = latency.one_iteration_s(self._size, self._offset + at * self._size, prefill_tokens)
                seconds = iteration_s * prefill_tokens / (self._size + prefill_tokens)
                prefill = BeginningPrefill(at, seconds, prefill_tokens, computing)
            else:
                prefill = BeginningPrefill(at, latency.recompute_s(prefill_tokens), prefill_tokens - computing, computing)
            self._prefills.append(prefill)
        self._segment = TimedSegment(at, self._boundary_s[at], latency.join_s * joins, prefill, replaced)
        return before

    def undo(self, before: TimedSegment) -> None:
        """Go back to the segment before this one, whose start is ``timed``, after who joined was removed."""
        if self._segment.prefill is not None:
            self._prefills.pop()
        if self._segment.replaced is not None:
            self._prefills.append(self._segment.replaced)
        self._segment = before

    # --- times ------------------------------------------------------------------------------------------------------------

    def end_s(self, index: int) -> float:
        """Return the time of a boundary."""
        if index > self.timed:
            self._sum_up(index, math.inf)
        return self._boundary_s[index]

    def first_from(self, at_s: float) -> int:
        """Return the first boundary at or after ``at_s``; the last one where all are before."""
        if self._boundary_s[-1] <= at_s:
            self._sum_up(self.last, at_s)
        return min(bisect.bisect_left(self._boundary_s, at_s), self.last)

    def last_by(self, at_s: float) -> int:
        """Return the last boundary at or before ``at_s``; -1 where all are later."""
        if self._boundary_s[-1] <= at_s:
            self._sum_up(self.last, at_s)
        return bisect.bisect_right(self._boundary_s, at_s) - 1

    def _sum_up(self, until: int, until_s: float) -> None:
        """Sum up to a boundary, or until one is after ``until_s``."""
        latency, added_up_s, ends, (first, base_s, joins_s, prefill, _) = (
            self._latency,
            self._added_up_s,
            self.ends,
            self._segment,
        )
        boundary_s, took, at, size = self._boundary_s, self._took, self.timed, self._size
        while at < until and boundary_s[-1] <= until_s:
            end, kv_tokens = ends[self._passed][0], self._offset + at * size
            if at == first:
                if prefill is None:
                    seconds = latency.one_iteration_s(size, kv_tokens) + joins_s
                elif latency.mixes:
                    seconds = latency.one_iteration_s(size, kv_tokens, prefill.tokens) + joins_s
                else:
                    seconds = latency.one_iteration_s(size, kv_tokens) + prefill.seconds + joins_s
                new = [0.0 + seconds]
            else:
                count = min(end, until) - at
                if until_s < math.inf:
                    count = min(count, AT_ONCE)
                new = added_up_s(took[-1], size, kv_tokens, count)
            took += new
            boundary_s += [base_s + took_s for took_s in new]
            at += len(new)
            if at == end:
                while self._passed < len(ends) and ends[self._passed][0] == at:
                    size -= 1
                    self._offset -= self.offset_of[ends[self._passed][1]]
                    self._passed += 1
                self._size = size
        self.timed = at

    # --- KV tokens --------------------------------------------------------------------------------------------------------

    def most_kv_tokens(self) -> int:
        """Return the most KV tokens of any iteration from ``timed`` on."""
        most, size, offset = 0, self._size, self._offset
        for end, order in self.ends[self._passed :]:
            most = max(most, offset + (end - 1) * size)  # tokens grow until somebody is complete
            size, offset = size - 1, offset - self.offset_of[order]
        return most

    def part(self, first: int, until: int, batch: IntArray, kv_tokens: IntArray) -> Iterations:
        """Return the iterations from one boundary to another with their (I,) batches and KV tokens."""
        within = [p for p in self._prefills if first <= p.at < until]
        at, tokens, responses = np.array([(p.at, p.tokens, p.responses) for p in within], dtype=np.int64).reshape(-1, 3).T
        seconds, boundary_s = np.array([p.seconds for p in within]), np.array(self._boundary_s[first : until + 1])
        return Iterations(boundary_s, batch, kv_tokens, at - first, seconds, tokens, responses)


def _added_up_s(latency: LatencyModel, from_s: float, batch: int, kv_tokens: int, count: int) -> list[float]:
    """Return ``IterationTable.added_up_s`` of a latency model that has no table."""
    seconds = (latency.one_iteration_s(batch, kv_tokens + k * batch) for k in range(count))
    return list(itertools.accumulate(seconds, initial=from_s))[1:]
