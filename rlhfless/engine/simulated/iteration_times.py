"""End times of a simulated actor's iterations, computed only as far as they are read, because arrivals may change later ones.

Inputs: batch sizes, KV tokens and the latency model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray
from solver.timing.batching import Timeline

NONE: IntArray = np.zeros(0, np.int64)
NO_TIME: FloatArray = np.zeros(0)
AT_ONCE = 64  # iterations that are worked out together, at least: fewer are hardly faster
FIRST = 6  # iterations that are worked out one by one at first: often the next arrival joins before that
FEW = 10  # iterations that are worked out one by one where no more are asked for


class TimedSegment(NamedTuple):
    """Iterations whose times are summed from one boundary, ``first``, on; ``last``: the boundary at which nothing is left.

    Other fields are those of ``Iterations``.
    """

    first: int
    last: int
    base_s: float
    joins_s: float
    prefill_at: IntArray
    prefill_s: FloatArray
    computed_tokens: IntArray
    computing: IntArray


class Iterations:
    """Iterations of an actor from the boundary ``base_s`` on.

    Args:
        batch, kv_tokens: (I,) responses in the batch of each iteration, and their KV tokens.
        prefill_tokens: that prefill is charged for in the first iteration, for ``computing`` responses; joins: number of
            responses that join then.

    Attributes:
        boundary_s: (I+1,) boundaries between iterations, of which the first ``timed`` + 1 are computed.
        prefill_at: (P,) iterations with a prefill; prefill_s, computed_tokens, computing: (P,) seconds of these at the start of
            each, tokens that it computes besides those that are decoded, and responses of which it computes some.
    """

    __slots__ = (
        "_base_s", "_first", "_joins_s", "_latency", "_took", "_took_s", "batch", "boundary_s", "computed_tokens", "computing",
        "kv_tokens", "last", "prefill_at", "prefill_s", "timed",
    )  # fmt: skip

    def __init__(
        self,
        latency: LatencyModel,
        base_s: float,
        batch: IntArray,
        kv_tokens: IntArray,
        prefill_tokens: int = 0,
        computing: int = 0,
        joins: int = 0,
    ) -> None:
        self.batch, self.kv_tokens, self.last = batch, kv_tokens, len(batch)
        self._latency, self._base_s = latency, base_s
        self.prefill_at = self.computed_tokens = self.computing = NONE
        self.prefill_s: FloatArray = NO_TIME
        self.boundary_s: FloatArray = np.empty(self.last + 1)
        self._took: FloatArray = np.empty(self.last + 1)  # since ``_first``, where summing began
        self.boundary_s[0] = base_s
        self._begin(0, prefill_tokens, computing, joins)

    def _begin(self, at: int, prefill_tokens: int, computing: int, joins: int) -> None:
        """Sum from a boundary on; the iteration there has this prefill, and so many responses join."""
        latency, self._joins_s = self._latency, self._latency.join_s * joins
        self._first = self.timed = at
        self._took_s = 0.0
        if len(self.prefill_at) and self.prefill_at[-1] >= at:
            before = int(self.prefill_at.searchsorted(at))
            self.prefill_at, self.prefill_s = self.prefill_at[:before], self.prefill_s[:before]
            self.computed_tokens, self.computing = self.computed_tokens[:before], self.computing[:before]
        if prefill_tokens:
            decoded = 0 if latency.mixes else computing
            seconds: FloatArray = latency.prefill_s([prefill_tokens])
            if latency.mixes:
                size = int(self.batch[at])
                iteration_s = latency.one_iteration_s(size, int(self.kv_tokens[at]), prefill_tokens)
                seconds = np.array([iteration_s * prefill_tokens / (size + prefill_tokens)])
            self.prefill_at, self.prefill_s = np.append(self.prefill_at, at), np.append(self.prefill_s, seconds)
            self.computed_tokens = np.append(self.computed_tokens, prefill_tokens - decoded)
            self.computing = np.append(self.computing, computing)

    # --- changes in place -------------------------------------------------------------------------------------------------

    def segment(self) -> TimedSegment:
        """Return the present segment, to come back to."""
        return TimedSegment(
            self._first, self.last, self._base_s, self._joins_s, self.prefill_at, self.prefill_s, self.computed_tokens,
            self.computing,
        )  # fmt: skip

    def restart(self, at: int, prefill_tokens: int, computing: int, joins: int) -> None:
        """Begin another segment at a boundary whose time is known, after the iterations from there on were changed."""
        self._base_s = float(self.boundary_s[at])
        self._begin(at, prefill_tokens, computing, joins)

    def undo(self, before: TimedSegment) -> None:
        """Go back to the segment before the last one, after its iterations were changed back."""
        at = self._first
        (
            self._first, self.last, self._base_s, self._joins_s, self.prefill_at, self.prefill_s, self.computed_tokens,
            self.computing,
        ) = before  # fmt: skip
        self.timed, self._took_s = at, float(self._took[at]) if at > self._first else 0.0

    def change(self, at: int, end: int, sign: int, kv_tokens: int) -> None:
        """Add (or with ``sign`` -1 take away) a response from iteration ``at`` to ``end``, which begins with ``kv_tokens``."""
        if end > len(self.batch):
            more = np.zeros(max(end, 2 * len(self.batch)) - len(self.batch), np.int64)
            self.batch, self.kv_tokens = np.append(self.batch, more), np.append(self.kv_tokens, more)
            self.boundary_s, self._took = np.append(self.boundary_s, more), np.append(self._took, more)
        self.batch[at:end] += sign
        if sign > 0:
            self.kv_tokens[at:end] += np.arange(kv_tokens, kv_tokens + end - at)
        else:
            self.kv_tokens[at:end] -= np.arange(kv_tokens, kv_tokens + end - at)

    def most_kv_tokens(self, at: int) -> int:
        """Return the most KV tokens of any iteration from ``at`` on."""
        return int(self.kv_tokens[at : self.last].max(initial=0))

    @classmethod
    def of(cls, timeline: Timeline, latency: LatencyModel, base_s: float) -> Iterations:
        """Return the iterations of a timeline."""
        new = cls(latency, base_s, timeline.batch, timeline.kv_tokens)
        new.boundary_s, new.timed = base_s + timeline.boundary_s, new.last
        new.prefill_at = np.flatnonzero(timeline.prefill_tokens)
        at, of, tokens = timeline.residency.chunks
        if latency.mixes:
            at = at[tokens > (at == timeline.residency.ready[of])]
        new.computing = np.bincount(at, minlength=new.last)[new.prefill_at]
        new.prefill_s, charged = timeline.prefill_s[new.prefill_at], timeline.prefill_tokens[new.prefill_at]
        new.computed_tokens = charged if latency.mixes else charged - new.computing  # the last of each is decoded
        return new

    def part(self, first: int, until: int) -> Iterations:
        """Return the iterations from boundary ``first`` to boundary ``until``, which must be computed already."""
        part = Iterations(self._latency, self._base_s, self.batch[first:until].copy(), self.kv_tokens[first:until].copy())
        part.boundary_s, part.timed = self.boundary_s[first : until + 1].copy(), until - first
        if len(self.prefill_at):
            within = slice(*self.prefill_at.searchsorted([first, until]))
            part.prefill_at, part.computed_tokens = self.prefill_at[within] - first, self.computed_tokens[within]
            part.prefill_s, part.computing = self.prefill_s[within], self.computing[within]
        return part

    def end_s(self, index: int) -> float:
        """Return the time of a boundary."""
        if index > self.timed:
            self._work_out(index)
        return float(self.boundary_s[index])

    def times(self, indices: IntArray) -> FloatArray:
        """Return the times of boundaries, in order."""
        if len(indices) and indices[-1] > self.timed:
            self._work_out(int(indices[-1]))
        return self.boundary_s[indices]

    def first_from(self, at_s: float) -> int:
        """Return the first boundary at or after ``at_s``; the last one where all are before."""
        self._reach(at_s)
        return min(int(self.boundary_s[: self.timed + 1].searchsorted(at_s, side="left")), self.last)

    def last_by(self, at_s: float) -> int:
        """Return the last boundary at or before ``at_s``; -1 where all are later."""
        self._reach(at_s)
        return int(self.boundary_s[: self.timed + 1].searchsorted(at_s, side="right")) - 1

    def _reach(self, at_s: float) -> None:
        """Compute boundaries until one is after ``at_s``."""
        while self.timed < self.last and self.boundary_s[self.timed] <= at_s:
            if self.timed < self._first + FIRST and at_s < np.inf:
                self._work_out_next()
            else:
                self._work_out(self.last if at_s == np.inf else self.timed + AT_ONCE)

    def _work_out(self, until: int) -> None:
        if until - self.timed <= FEW:
            while self.timed < until:
                self._work_out_next()
            return
        begin, until = self.timed, min(max(until, self.timed + AT_ONCE), self.last)
        took = np.empty(until - begin + 1)
        took[0] = self._took_s
        took[1:] = self._latency.iteration_s(self.batch[begin:until], self.kv_tokens[begin:until])
        if begin == self._first:
            took[1] = self._first_s()
        took.cumsum(out=took)  # summed from ``base_s`` on, in however many parts: the same sums
        self._took[begin + 1 : until + 1] = took[1:]
        self.boundary_s[begin + 1 : until + 1] = self._base_s + took[1:]
        self._took_s, self.timed = float(took[-1]), until

    def _work_out_next(self) -> None:
        k = self.timed
        if k == self._first:
            self._took_s += self._first_s()
        else:
            self._took_s += self._latency.one_iteration_s(int(self.batch[k]), int(self.kv_tokens[k]))
        self.timed = k + 1
        self._took[k + 1] = self._took_s
        self.boundary_s[k + 1] = self._base_s + self._took_s

    def _first_s(self) -> float:
        """Return the seconds of the first iteration, including prefill and those of admitting responses."""
        latency, at = self._latency, self._first
        size, kv_tokens, prompts, prefill_s = int(self.batch[at]), int(self.kv_tokens[at]), 0, 0.0
        if len(self.prefill_at) and self.prefill_at[-1] == at:
            prompts, prefill_s = int(self.computed_tokens[-1]), float(self.prefill_s[-1])
        if latency.mixes:
            return latency.one_iteration_s(size, kv_tokens, prompts) + self._joins_s
        return latency.one_iteration_s(size, kv_tokens) + prefill_s + self._joins_s
