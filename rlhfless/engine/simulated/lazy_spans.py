"""Spans of a simulated actor between two committed boundaries, built from its schedule when they are first read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

import numpy as np

from rlhfless.engine.common.spans import IterationRun, PrefillPart, spans_of
from rlhfless.engine.protocol import EngineSpan
from rlhfless.engine.simulated.iteration_times import Iterations
from rlhfless.engine.simulated.running_batch import RunningBatch
from rlhfless.engine.simulated.schedule import NO_PREFILL, SimulatedSchedule


class LazySpans(Sequence[EngineSpan]):
    """Spans of a schedule's iterations from boundary ``first`` to ``until``, and of parts added later.

    There is one prefill span for every iteration with a prefill, and one decode span for every interval between.
    """

    __slots__ = ("_parts", "_slots", "_spans")

    def __init__(self, schedule: SimulatedSchedule | RunningBatch, slots: int, first: int, until: int) -> None:
        self._parts, self._slots = [_Part(schedule, first, until)], slots
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
            self._spans = spans_of(chain.from_iterable(part.iteration_runs() for part in self._parts), self._slots)
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

    __slots__ = ("first", "iterations", "prefilled", "schedule", "until")

    def __init__(self, schedule: SimulatedSchedule | RunningBatch, first: int, until: int) -> None:
        self.schedule: SimulatedSchedule | RunningBatch | None = schedule
        self.iterations: Iterations | None = None  # once there is no schedule
        self.prefilled, self.first, self.until = NO_PREFILL, first, until

    def shrink(self) -> None:
        """Free the memory of the schedule's later iterations, which will not be committed."""
        if self.schedule is not None:
            self.iterations, prefilled = (
                self.schedule.part(self.first, self.until),
                self.schedule.prefilled(self.first, self.until),
            )
            self.prefilled, self.schedule = prefilled._replace(iteration=prefilled.iteration - self.first), None

    def iteration_runs(self) -> list[IterationRun]:
        """Return its iterations as runs, each from one with a prefill to the next."""
        if self.until == self.first:
            return []
        self.shrink()
        done, joined = self.iterations, self.prefilled
        assert done is not None
        at, prefill_s, at_s = done.prefill_at, done.prefill_s, done.boundary_s
        seconds = np.diff(at_s)
        seconds[at] -= prefill_s
        begins = at if len(at) and not at[0] else np.append(0, at)
        before = len(begins) - len(at)  # 1 where the first run has no prefill
        start_s, decode_from_s = at_s[begins], at_s[begins]
        decode_from_s[before:] += prefill_s
        end_s = at_s[np.append(begins[1:], done.last)]
        who = list(zip(joined.response.tolist(), joined.tokens.tolist(), strict=True))
        after = joined.iteration.searchsorted(at, side="right").tolist()
        counts = zip(done.computing.tolist(), done.computed_tokens.tolist(), strict=True)
        computed = [who[slice(*edges)] for edges in zip([0, *after[:-1]], after, strict=True)] if after else []
        parts: list[PrefillPart | None] = [None] * before
        parts += [PrefillPart(*count, chunks) for count, chunks in zip(counts, computed, strict=True)]
        sums = (np.add.reduceat(column, begins) for column in (done.batch, seconds * done.batch, seconds * done.kv_tokens))
        columns = (column.tolist() for column in (start_s, decode_from_s, end_s, *sums))
        return list(map(IterationRun, *columns, parts))
