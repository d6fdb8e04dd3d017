"""Precomputed schedule of a simulated actor (who is in the batch in which iteration) and how many of its iterations are
committed.

Schedules are made in ``rlhfless.engine.simulated.start``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhfless.engine.protocol import Completion
from rlhfless.engine.simulated.iteration_times import Iterations
from rlhfless.engine.simulated.requests import Members
from solver.model.workload import FloatArray, IntArray
from solver.timing.residency import Residency

BoolArray = NDArray[np.bool_]


class Prefilled(NamedTuple):
    """Chunks of contexts: (V,) iterations, in order, responses, and computed tokens."""

    iteration: IntArray
    response: IntArray
    tokens: IntArray


NO_PREFILL = Prefilled(*[np.zeros(0, np.int64)] * 3)


class SimulatedSchedule:
    """The future of ``members`` from the boundary ``base_s``; ``commit`` moves a part of it into the past.

    Members keep their state at ``base_s``. Their later state is computed from the number of committed iterations.

    Args:
        running: how many of the members, the first ones, are in the batch.
        residency: when they are in the batch. iterations: the iterations from ``base_s`` on.

    Attributes:
        done: the last committed boundary; clock_s: its time.
        begins_with_completions: nothing is committed yet, and responses that need no iterations are complete at ``base_s``.
        finish: (n,) boundaries at which responses end, in order; finishing: (n,) their rows in this order (ties by row).
        reported: how many of these are committed.
    """

    def __init__(self, members: Members, running: int, base_s: float, residency: Residency, iterations: Iterations) -> None:
        self.members, self.residency, self.iterations = members, residency, iterations
        self._running, self.base_s = running, base_s
        self.no_evictions = len(residency.response) == len(members)  # nobody is evicted
        if self.no_evictions:
            last = residency.last
        else:
            last = np.zeros(len(members), np.int64)
            np.maximum.at(last, residency.response, residency.last)
        self._last = last
        self._together = self.no_evictions and not residency.ready.any() and not residency.prefill[:running].any()
        short = last.max(initial=0) < 1 << 16  # sorted several times as fast
        self.finishing = (last.astype(np.uint16) if short else last).argsort(kind="stable")
        self.finish = last[self.finishing]
        self._names = members["response"]
        self.shares = bool((members["prompt"] >= 0).any())
        self.done = self.reported = 0
        self.clock_s = base_s
        self.begins_with_completions = len(last) > 0 and not self.finish[0]
        self._seen: tuple[IntArray, int] = NO_PREFILL.iteration, 0  # unfinished rows, batch first, and its size
        self._seen_until = -1.0  # the boundary at which something else is to be seen
        self._changes: IntArray | None = None  # boundaries at which batch or queue change
        self._chunks: Prefilled | None = None
        self._final_facts: tuple[FloatArray, FloatArray, IntArray] | None = None  # of completions

    def ended(self, before: int, reported: int) -> tuple[IntArray, FloatArray, IntArray]:
        """Return the responses of the completions from one place of ``finishing`` to another, their times and lengths."""
        rows = self.finishing[before:reported]
        times_s = self.iterations.boundary_s[self.finish[before:reported]]
        lengths: IntArray = self.members["target_tokens"][rows]
        return self._names[rows], times_s, lengths

    @property
    def over(self) -> bool:
        """Return whether nothing is left to commit."""
        return self.done == self.iterations.last

    def completed_by(self, index: int) -> int:
        """Return how many responses end at this boundary or before it."""
        return int(self.finish.searchsorted(index, side="right"))

    # --- what holds at a boundary -----------------------------------------------------------------------------------------

    def batch(self, at: int) -> IntArray:
        """Return the rows in the batch at a boundary, in order of admission."""
        if not at:
            return np.arange(self._running)
        residency = self.residency
        inside: IntArray = (
            residency.last > at if self._together else (residency.first < at) & (residency.last > at)
        ).nonzero()[0]
        if self.no_evictions:  # rows join in their order
            return inside
        rows: IntArray = residency.response[inside[np.lexsort((residency.response[inside], residency.first[inside]))]]
        return rows

    def tokens(self) -> tuple[IntArray, IntArray, int]:
        """Return the unfinished responses, those in the batch first, in order of admission; their committed tokens; and how
        many are in the batch.
        """
        if self.done >= self._seen_until:
            rows = inside = self.batch(self.done)
            if len(self._names) > self.reported + len(inside):
                queued = np.ones(len(self._names), dtype=bool)
                queued[self.finishing[: self.reported]] = False
                queued[inside] = False
                rows = np.concatenate([inside, queued.nonzero()[0]])
            self._seen, self._seen_until = (rows, len(inside)), self._next_change()
        rows, running = self._seen
        return self._names[rows], self._tokens_at(self.done)[rows], running

    def _next_change(self) -> float:
        """Return the next boundary after ``done`` at which a response joins, leaves or completes."""
        if not self.done:
            return 0.0  # what needs no iterations may still be committed
        if self._together:
            return float(self.finish[self.reported]) if self.reported < len(self.finish) else math.inf
        if self._changes is None:
            self._changes = np.unique(np.concatenate([self.residency.first + 1, self.residency.last]))
        place = int(self._changes.searchsorted(self.done, side="right"))
        return float(self._changes[place]) if place < len(self._changes) else math.inf

    def part(self, first: int, until: int) -> Iterations:
        """Return the iterations from boundary ``first`` to boundary ``until``, which must be computed already."""
        return self.iterations.part(first, until)

    def completes(self, count: int, limit: int | None) -> tuple[int, float]:
        """Return how many of the ``count`` next completions come no later than the boundary ``limit``, and the time of the last
        of these; infinite where there are none.
        """
        ends = self.finish[self.reported : self.reported + count]
        known = len(ends) if limit is None else int(ends.searchsorted(limit, side="right"))
        return known, float(self.iterations.boundary_s[ends[known - 1]]) if known else math.inf

    def _tokens_at(self, at: int) -> IntArray:
        """Return (n,) tokens of every row at a boundary."""
        generated, residency = self.members["generated_tokens"], self.residency
        decoded = np.maximum(np.minimum(residency.last, at) - residency.ready, 0)
        if self.no_evictions:
            return np.asarray(generated + decoded)
        tokens: IntArray = generated.copy()
        np.add.at(tokens, residency.response, decoded)
        return tokens

    def remaining(self, at: int, reported: int) -> tuple[Members, int]:
        """Return the unfinished responses at a boundary: their state then (batch first, then queue), and the batch size.

        Evicted responses are at the front of the queue, the last evicted first.

        Args:
            reported: number of completions that are excluded.
        """
        inside = self.batch(at)
        if len(inside) < len(self.members) - reported:
            rest = np.ones(len(self.members), dtype=bool)
            rest[self.finishing[:reported]] = rest[inside] = False
            queue = np.flatnonzero(rest)
            rows = np.concatenate([inside, queue if self.no_evictions else self._evicted_first(queue, at)])
        else:
            rows = inside
        members = self.members.take(rows)
        if at and self._together:
            self._note_all(members, rows, at)
        elif at:
            self._note(members, rows, len(inside), at)
        return members, len(inside)

    def _evicted_first(self, queue: IntArray, at: int) -> IntArray:
        left, residency = np.full(len(self.members), -1), self.residency
        gone = (residency.last <= at) & (residency.last > residency.first)
        np.maximum.at(left, residency.response[gone], residency.last[gone])
        return queue[np.argsort(-left[queue], kind="stable")]

    def _note(self, members: Members, rows: IntArray, inside: int, at: int) -> None:
        """Update these rows of ``members`` to their state at a boundary."""
        joined, members["start_s"], members["first_token_s"], members["prefill_tokens"] = (x[rows] for x in self._facts(at))
        members["generated_tokens"] = self._tokens_at(at)[rows]
        members["has_kv"][joined] = False
        members["has_kv"][:inside] = True
        members["cached_tokens"][joined], members["prompt"][joined] = 0, -1  # who is evicted computes its whole context
        residency = self.residency
        for stay in self.half_computed(at).tolist():
            row = int(residency.response[stay])
            one = members[int(np.flatnonzero(rows[:inside] == row)[0])]
            one["has_kv"], one["cached_tokens"] = (
                False,
                residency.context[stay] - residency.prefill[stay] + residency.computed(at)[stay],
            )
            if not np.any((residency.response == row) & (residency.first < residency.first[stay])):  # else it was evicted
                one["prompt"] = self.members["prompt"][row]

    def half_computed(self, at: int) -> IntArray:
        """Return the intervals in the batch at a boundary of which some context is not computed."""
        residency = self.residency
        late = (residency.prefill > 0) & (residency.ready >= at) & (residency.last > at)
        return np.flatnonzero(late & ((residency.first < at) | ((residency.first == 0) & (residency.response < self._running))))

    def _note_all(self, members: Members, rows: IntArray, at: int) -> None:
        """Like ``_note`` where every response joined in the first iteration: only the tokens of earlier members change."""
        members["generated_tokens"] += at
        old = int(rows.searchsorted(self._running))
        new = members[old:]
        if not len(new):
            return
        new["has_kv"], new["cached_tokens"], new["prompt"] = True, 0, -1
        new["prefill_tokens"] += self.residency.computed()[rows[old:]]
        for name, index in (("start_s", 0), ("first_token_s", 1)):
            unknown = np.isnan(new[name])
            if unknown.any():
                new[name][unknown] = self.iterations.end_s(index)

    def _facts(self, at: int) -> tuple[BoolArray, FloatArray, FloatArray, IntArray]:
        """Return, for every row at a boundary: whether it has joined, when it first did anywhere, when its first token was
        generated (NaN before that), and prefill tokens.
        """
        residency, members = self.residency, self.members
        begun = np.flatnonzero((residency.first < at) & (residency.last > residency.first))
        if not self.no_evictions:
            begun = begun[np.argsort(-residency.first[begun], kind="stable")]  # of equal rows the last assignment holds
        rows, first = residency.response[begun], residency.first[begun]
        joined = np.zeros(len(members), dtype=bool)
        joined[rows] = True
        start_s, first_token_s, prefill = (members[name].copy() for name in ("start_s", "first_token_s", "prefill_tokens"))
        np.add.at(prefill, rows, residency.computed(at)[begun])
        new = np.isnan(start_s[rows])
        start_s[rows[new]] = self.iterations.boundary_s[first[new]]
        new = np.isnan(first_token_s[rows]) & (residency.ready[begun] < np.minimum(residency.last[begun], at))
        first_token_s[rows[new]] = self.iterations.boundary_s[residency.ready[begun][new] + 1]
        return joined, start_s, first_token_s, prefill

    # --- committing -----------------------------------------------------------------------------------------------------

    def commit(self, until: int) -> tuple[int, int]:
        """Commit the iterations up to boundary ``until``; returns the range in ``finishing`` of responses that are complete
        now.
        """
        before = self.reported
        self.done, self.reported = until, self.completed_by(until)
        self.clock_s, self.begins_with_completions = self.iterations.end_s(until), False
        return before, self.reported

    def computing(self, first: int, until: int) -> IntArray:
        """Return the rows whose context is complete in an iteration between two boundaries."""
        residency = self.residency
        return residency.response[(residency.ready >= first) & (residency.ready < until) & (residency.last > residency.ready)]

    def prefilled(self, first: int, until: int) -> Prefilled:
        """Return the chunks of contexts that are computed between two boundaries, by iteration, in order of admission."""
        if not len(self.iterations.prefill_at):
            return NO_PREFILL
        if self._chunks is None:
            at, of, tokens = self.residency.chunks
            tokens = tokens - (at == self.residency.ready[of])  # the last one of a context is decoded
            some = tokens > 0
            self._chunks = Prefilled(at[some], self._names[self.residency.response[of[some]]], tokens[some])
        part = slice(*self._chunks.iteration.searchsorted([first, until]))
        return Prefilled(*(column[part] for column in self._chunks))

    def completions(self, places: range, finish_of: Callable[[int], str]) -> list[Completion]:
        """Return the completions at these places of ``finishing``; ``finish_of`` returns the finish reason of a response."""
        if self._final_facts is None:
            self._final_facts = self._facts(self.iterations.last)[1:]
        rows = self.finishing[places.start : places.stop : places.step]
        end_s = self.iterations.boundary_s[self._last[rows]]
        start_s, first_token_s, prefill = (x[rows] for x in self._final_facts)
        ends = (np.where(np.isnan(x), end_s, x).tolist() for x in (first_token_s, start_s))
        names = self._names[rows].tolist()
        columns = (names, end_s.tolist(), self.members["target_tokens"][rows].tolist(), map(finish_of, names), *ends)
        return list(map(Completion, *columns, prefill.tolist()))
