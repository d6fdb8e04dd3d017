"""Spans of a simulated actor between two committed boundaries, built from its schedule when they are first read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from rlhfless.engine.protocol import EngineSpan
from rlhfless.engine.simulated.schedule import NOBODY, SimulatedSchedule


class LazySpans(Sequence[EngineSpan]):
    """Spans of a schedule's iterations from boundary ``first`` to ``until``, and of parts added later.

    There is one prefill span for every iteration with a prefill, and one decode span for every interval between.
    """

    __slots__ = ("_parts", "_spans")

    def __init__(self, schedule: SimulatedSchedule, slots: int, first: int, until: int) -> None:
        self._parts = [_Part(schedule, slots, first, until)]
        self._spans: list[EngineSpan] | None = None

    def add(self, later: LazySpans) -> None:
        """Append the actor's later spans to this sequence."""
        assert self._spans is None, "spans that were read already cannot be extended"
        for part in later._parts:
            last = self._parts[-1]
            if part.schedule is last.schedule and part.first == last.until:
                last.until = part.until
            else:
                last.shrink()
                self._parts.append(part)

    def _all(self) -> list[EngineSpan]:
        if self._spans is None:
            self._spans = [span for part in self._parts for span in part.spans()]
            self._parts.clear()
        return self._spans

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, index: int) -> EngineSpan: ...
    @overload
    def __getitem__(self, index: slice) -> list[EngineSpan]: ...
    def __getitem__(self, index: int | slice) -> EngineSpan | list[EngineSpan]:
        return self._all()[index]

    def __iter__(self) -> Iterator[EngineSpan]:
        return iter(self._all())


class _Part:
    """Committed iterations of one schedule."""

    __slots__ = ("first", "iterations", "prefilled", "schedule", "slots", "until")

    def __init__(self, schedule: SimulatedSchedule, slots: int, first: int, until: int) -> None:
        self.schedule: SimulatedSchedule | None = schedule
        self.iterations, self.prefilled = schedule.iterations, NOBODY  # what ``schedule`` says, where there is one
        self.slots, self.first, self.until = slots, first, until

    def shrink(self) -> None:
        """Free the memory of the schedule's later iterations, which will not be committed."""
        if self.schedule is not None:
            prefilled = self.schedule.prefilled(self.first, self.until)
            self.prefilled, self.schedule = prefilled._replace(iteration=prefilled.iteration - self.first), None
            self.iterations, self.first, self.until = self.iterations.part(self.first, self.until), 0, self.until - self.first

    def spans(self) -> list[EngineSpan]:
        """Return its spans."""
        done, first, until = self.iterations, self.first, self.until
        if until == first:
            return []
        low, high = np.searchsorted(done.prefill_at, [first, until])
        prefills, prefill_s = done.prefill_at[low:high], done.prefill_s[low:high]
        begins = prefills if len(prefills) and prefills[0] == first else np.append(first, prefills)
        at_s, seconds = done.boundary_s[first : until + 1], np.diff(done.boundary_s[first : until + 1])
        batch, kv_tokens = done.batch[first:until], done.kv_tokens[first:until]
        seconds[prefills - first] -= prefill_s
        at = begins - first
        total = np.add.reduceat(seconds, at)
        tokens = np.add.reduceat(batch, at)
        weight = np.where(total > 0, total, 1.0)
        batch_mean, kv_mean = (
            np.where(total > 0, np.add.reduceat(seconds * x, at) / weight, x[at]) for x in (batch, kv_tokens)
        )
        batch_mean = np.minimum(batch_mean, self.slots)  # weights of times round, a batch has no more than its slots
        ready = at_s[at].copy()
        ready[len(at) - len(prefills) :] += prefill_s
        ends = at_s[np.append(at[1:], until - first)]
        spans = []
        columns = (ready, ends, batch_mean, tokens, kv_mean)
        decoded = zip(*(column.tolist() for column in columns), strict=True)
        starts_s, computing, computed_tokens = at_s[prefills - first], done.computing[low:high], done.computed_tokens[low:high]
        joined = self.prefilled if self.schedule is None else self.schedule.prefilled(first, until)
        who = list(zip(joined.response.tolist(), joined.tokens.tolist(), strict=True))
        after = joined.iteration.searchsorted(prefills, side="right")
        slices = map(slice, np.append(0, after[:-1]).tolist(), after.tolist())
        computed = zip(starts_s.tolist(), computing.tolist(), computed_tokens.tolist(), slices, strict=True)
        slots, prefilled = self.slots, len(at) - len(prefills)
        for k, (begin_s, end_s, mean, decoded_tokens, kv) in enumerate(decoded):
            if k >= prefilled:
                from_s, count, held, whose = next(computed)
                spans.append(EngineSpan("prefill", from_s, begin_s, float(count), slots, held, float(held), None, who[whose]))
            if decoded_tokens:
                spans.append(EngineSpan("decode", begin_s, end_s, mean, slots, decoded_tokens, kv))
        return spans
