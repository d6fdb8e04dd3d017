"""A batch in which all responses of a simulated actor decode, changed in place where one joins or leaves.

Nobody waits for a slot or memory, is evicted, shares a prompt, or computes its context over several iterations. So who joins or
leaves changes the times from there on (``rlhfless.engine.simulated.batch_times``), and nothing else of the schedule. All other
futures are computed from scratch (``rlhfless.engine.simulated.start``).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.protocol import Completion
from rlhfless.engine.simulated.batch_times import BatchTimes, TimedSegment
from rlhfless.engine.simulated.iteration_times import Iterations
from rlhfless.engine.simulated.requests import MEMBER, Members
from rlhfless.engine.simulated.schedule import NO_PREFILL, Prefilled
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray

Row = tuple[Any, ...]
"""The fields of ``MEMBER``."""


class Resident:
    """A response of the batch.

    Attributes:
        row: its state when it joined; joined: boundary at which it did; end: boundary at which it is complete.
        order: of admission. context: KV tokens when it joined; missing: those of them that were not cached.
        offset: its KV tokens less the number of the iteration, which is constant.
    """

    __slots__ = ("context", "end", "joined", "missing", "offset", "order", "row")

    def __init__(self, row: Row, order: int, joined: int) -> None:
        self.row, self.order, self.joined = row, order, joined
        self.context, self.end = row[1] + row[4], joined + row[3] - row[4]
        self.offset = self.context - joined
        self.missing = 0 if row[5] else self.context - row[6]

    @property
    def reserved_tokens(self) -> int:
        """Return the KV tokens that ``reserve`` sets aside for it."""
        tokens: int = self.row[1] + self.row[2]
        return tokens


class Group(NamedTuple):
    """Responses that join together at a boundary that is not committed yet; ``before``: the segment of times without them."""

    at: int
    residents: list[Resident]
    before: TimedSegment


class RunningBatch:
    """The future of a batch from the boundary ``base_s`` on, and what is committed of it; see ``SimulatedSchedule``.

    Args:
        members: who is in the batch.

    Attributes:
        coming: groups that join after the committed boundary, earliest first; waited_for: responses in these.
        iterations: their times. ends: boundaries at which unfinished responses are complete, with their order of admission,
            earliest first.
    """

    shares = begins_with_completions = False
    no_evictions = True

    def __init__(self, members: Members, base_s: float, latency: LatencyModel, admission: Admission) -> None:
        self._latency, self._admission = latency, admission
        self.base_s = self.clock_s = base_s
        self.done, self.coming, self.waited_for = 0, list[Group](), 0
        self._residents = {order: Resident(row, order, 0) for order, row in enumerate(members.tolist())}
        self._ended: list[Resident] = []
        self._left: list[tuple[int, int, int]] = []  # joined, left and offset of those who left
        self._fresh: list[Resident] = []  # joined at the committed boundary, by admission
        self.ends = sorted((one.end, order) for order, one in self._residents.items())
        self.iterations = BatchTimes(latency, base_s, self.ends, {order: one.offset for order, one in self._residents.items()})
        self._reserved_tokens = sum(one.reserved_tokens for one in self._residents.values())
        self._orders, room = len(members), 2 * len(members) + 64
        self._order_of = {one.row[0]: order for order, one in self._residents.items()}  # of responses that are there
        self._names, self._offset, self._there = np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, dtype=bool)
        self._names[: self._orders], self._there[: self._orders] = members["response"], True
        self._offset[: self._orders] = members["generated_tokens"]
        self._seen: tuple[IntArray, IntArray] | None = None  # names and offsets of who is there, until somebody joins or leaves
        self._prefilled: list[tuple[int, int, int]] = []  # iteration, response, computed tokens, as far as committed

    # --- who joins and leaves ---------------------------------------------------------------------------------------------

    def join(self, at: int, rows: Sequence[Row]) -> bool:
        """Let responses join at a boundary, the committed one or after all that are coming; return False where they may not."""
        admission, iterations = self._admission, self.iterations
        ended = self.ending_by(at)
        if len(self.ends) - ended + len(rows) > admission.max_batch or any(row[7] >= 0 or row[3] <= row[4] for row in rows):
            return False
        residents = [Resident(row, self._orders + k, at) for k, row in enumerate(rows)]
        held = self._reserved_tokens + sum(one.reserved_tokens for one in residents)
        reserves = admission.rule == "reserve"
        if reserves:
            held -= sum(self._residents[order].reserved_tokens for _, order in self.ends[:ended])
            if held > admission.kv_capacity_tokens:
                return False
        starting = [*(self._fresh if at == self.done else ()), *residents]
        tokens, computing = self._charged(starting)
        fed, budget = len(self.ends) - ended + len(rows) + tokens, self._latency.token_budget
        if budget is not None and fed > budget:
            return False
        iterations.back_to(at)
        for one in residents:
            iterations.insert(one.end, one.order, one.offset)
        if not reserves and iterations.most_kv_tokens() > admission.kv_capacity_tokens:
            for one in residents:
                iterations.remove(one.end, one.order)
            return False
        before = iterations.restart(tokens, computing, len(starting))
        for one in residents:
            self._residents[one.order] = one
            self._reserved_tokens += one.reserved_tokens
        self._orders += len(residents)
        self.coming.append(Group(at, residents, before))
        self.waited_for += len(residents)
        return True

    def take_back(self, from_s: float = -math.inf) -> None:
        """Take back the groups that join at this time or later."""
        while self.coming and self.iterations.end_s(self.coming[-1].at) >= from_s:
            at, residents, before = self.coming.pop()
            self.iterations.back_to(at)
            for one in residents:
                self._remove(one)
            self._orders -= len(residents)
            self.waited_for -= len(residents)
            self.iterations.undo(before)

    def leave(self, responses: Iterable[int] | None) -> list[Row]:
        """Take responses (all when None) off the batch at the committed boundary, while nobody is coming; return their states
        in order of admission.
        """
        named = self._order_of if responses is None else [r for r in responses if r in self._order_of]
        residents = [self._residents[order] for order in sorted(self._order_of[r] for r in named)]
        states = [self._state(one, self.done) for one in residents]
        self.iterations.back_to(self.done)
        for one in residents:
            self._left.append((one.joined, self.done, one.offset))
            self._remove(one)
            self._there[one.order] = False
            del self._order_of[one.row[0]]
        self._fresh = [one for one in self._fresh if one.order in self._residents]
        self.iterations.restart(*self._charged(self._fresh), len(self._fresh))
        self._seen = None
        return states

    def _charged(self, starting: Sequence[Resident]) -> tuple[int, int]:
        """Return the tokens that prefill is charged for when these responses start, and of how many of them."""
        charged = [int(self._latency.charged_tokens(one.missing)) for one in starting if one.missing]
        return sum(charged), sum(tokens > 0 for tokens in charged)

    def _remove(self, one: Resident) -> None:
        del self._residents[one.order]
        self.iterations.remove(one.end, one.order)
        self._reserved_tokens -= one.reserved_tokens

    # --- what holds at a boundary -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Return whether nothing is left to commit."""
        return not self.ends

    @property
    def reported(self) -> int:
        """Return how many responses are complete."""
        return len(self._ended)

    def ending_by(self, at: int) -> int:
        """Return how many unfinished responses are complete at a boundary."""
        return bisect.bisect_left(self.ends, (at + 1, -1))

    def completes(self, count: int, limit: int | None) -> tuple[int, float]:
        """See ``SimulatedSchedule``."""
        known = min(count, len(self.ends) if limit is None else self.ending_by(limit))
        return known, self.iterations.end_s(self.ends[known - 1][0]) if known else math.inf

    def tokens(self) -> tuple[IntArray, IntArray, int]:
        """See ``SimulatedSchedule``. Who joined at the committed boundary is still in the queue."""
        if self._seen is None:
            there = self._there[: self._orders].nonzero()[0]
            self._seen = self._names[there], self._offset[there]
        names, offset = self._seen
        return names, offset + self.done, len(names) - len(self._fresh)

    def remaining(self, at: int, reported: int) -> tuple[Members, int]:
        """See ``SimulatedSchedule``."""
        there = [one for one in self._residents.values() if one.end > at and one.joined <= at]
        running = sum(one.joined < at or (not at and one not in self._fresh) for one in there)
        return np.array([self._state(one, at) for one in there], dtype=MEMBER), running

    def half_computed(self, at: int) -> IntArray:
        """See ``SimulatedSchedule``."""
        return NO_PREFILL.iteration

    def _state(self, one: Resident, at: int) -> Row:
        """Return the state of a response at a boundary."""
        if one.joined >= at:
            return one.row
        start_s, first_token_s = self._times(one)
        computed = one.row[10] + max(one.missing - 1, 0)
        return (*one.row[:4], one.row[4] + at - one.joined, True, 0, -1, start_s, first_token_s, computed)

    def _times(self, one: Resident) -> tuple[float, float]:
        """Return when a response joined a batch, and when it had its first token."""
        start_s, first_token_s = one.row[8], one.row[9]
        if math.isnan(start_s):
            start_s = self.iterations.end_s(one.joined)
        if math.isnan(first_token_s):
            first_token_s = self.iterations.end_s(one.joined + 1)
        return start_s, first_token_s

    # --- committing -------------------------------------------------------------------------------------------------------

    def commit(self, until: int) -> tuple[int, int]:
        """See ``SimulatedSchedule``."""
        before = len(self._ended)
        if until > self.done and (self._fresh or self.coming):
            started = self._fresh + [one for group in self.coming if group.at < until for one in group.residents]
            self._prefilled += [(one.joined, one.row[0], one.missing - 1) for one in started if one.missing > 1]
            self._fresh = []
        self.done, self.clock_s = until, self.iterations.end_s(until)
        if self.coming:
            self.enter()
        count = self.ending_by(until)
        if not count:
            return before, before
        self._seen = None
        for order in self.iterations.forget(count):
            one = self._residents.pop(order)
            self._ended.append(one)
            self._there[order] = False
            del self._order_of[one.row[0]]
            self._reserved_tokens -= one.reserved_tokens
        return before, len(self._ended)

    def enter(self) -> None:
        """Let the groups join that do so at the committed boundary or before."""
        while self.coming and self.coming[0].at <= self.done:
            group = self.coming.pop(0)
            self.waited_for -= len(group.residents)
            for one in group.residents:
                if one.order >= len(self._names):
                    self._names, self._offset, self._there = (
                        np.concatenate([x, np.zeros_like(x)]) for x in (self._names, self._offset, self._there)
                    )
                self._names[one.order], self._offset[one.order] = one.row[0], one.row[4] - group.at
                self._there[one.order], self._order_of[one.row[0]] = True, one.order
            self._fresh += group.residents if group.at == self.done else []
            self._seen = None

    def ended(self, before: int, reported: int) -> tuple[IntArray, FloatArray, IntArray]:
        """See ``SimulatedSchedule``."""
        ended, end_s = self._ended[before:reported], self.iterations.end_s
        names, lengths = np.array([(one.row[0], one.row[3]) for one in ended], dtype=np.int64).T
        return names, np.array([end_s(one.end) for one in ended]), lengths

    def part(self, first: int, until: int) -> Iterations:
        """See ``SimulatedSchedule``."""
        stays = [(one.joined, one.end, one.offset) for one in (*self._ended, *self._residents.values())]
        joined, left, offset = np.array([*stays, *self._left], dtype=np.int64).reshape(-1, 3).T
        batch, offsets = np.zeros((2, max(int(left.max(initial=0)), until) + 1), np.int64)
        for total, value in ((batch, 1), (offsets, offset)):
            np.add.at(total, joined, value)
            np.add.at(total, left, -value)
        batch, offsets = (total.cumsum()[first:until] for total in (batch, offsets))
        return self.iterations.part(first, until, batch, offsets + np.arange(first, until) * batch)

    def prefilled(self, first: int, until: int) -> Prefilled:
        """See ``SimulatedSchedule``."""
        chunks = [chunk for chunk in self._prefilled if first <= chunk[0] < until]
        return Prefilled(*np.array(chunks, dtype=np.int64).T) if chunks else NO_PREFILL

    def completions(self, places: range, finish_of: Callable[[int], str]) -> list[Completion]:
        """See ``SimulatedSchedule``."""
        made = []
        for one in map(self._ended.__getitem__, places):
            (start_s, first_token_s), name, computed = self._times(one), one.row[0], one.row[10] + max(one.missing - 1, 0)
            end_s = self.iterations.end_s(one.end)
            made.append(Completion(name, end_s, one.row[3], finish_of(name), first_token_s, start_s, computed))
        return made
