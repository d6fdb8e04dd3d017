"""What a call of a simulated engine has committed: parts of several schedules, put together."""

from __future__ import annotations

from collections.abc import Callable

from rlhfless.engine.protocol import Completion, Progress
from rlhfless.engine.simulated.completions import Completions, joined
from rlhfless.engine.simulated.lazy_spans import LazySpans
from rlhfless.engine.simulated.start import Schedule


class CommittedParts:
    """Committed progress, part by part, after that of calls ``before``."""

    def __init__(self, *before: Progress) -> None:
        self.completions: list[Completions] = [Completions.of(one.completions) for one in before if one.completions]
        self.spans: list[LazySpans] = [one.spans for one in before if isinstance(one.spans, LazySpans)]

    def add(self, schedule: Schedule, slots: int, first: int, before: int, finish_of: Callable[[int], str]) -> None:
        """Add what a schedule has committed beyond the boundary ``first`` and the first ``before`` completions."""
        if schedule.done > first:
            self.spans.append(LazySpans(schedule, slots, first, schedule.done))
        if (reported := schedule.reported) > before:
            responses, ends_s, tokens = schedule.ended(before, reported)

            def make(places: range) -> list[Completion]:
                return schedule.completions(places, finish_of)

            self.completions.append(Completions(responses, ends_s, tokens, make, range(before, reported)))

    def progress(self) -> Progress:
        """Return all of it."""
        if len(self.spans) > 1:
            for later in self.spans[1:]:
                self.spans[0].add(later)
        return Progress(joined(self.completions), self.spans[0] if self.spans else [])
