"""What a call of a simulated engine has committed: parts of several schedules, put together."""

from __future__ import annotations

from rlhfless.engine.protocol import Progress
from rlhfless.engine.simulated.completions import Completions, joined
from rlhfless.engine.simulated.lazy_spans import LazySpans


class CommittedParts:
    """CommittedParts progress, part by part, after ``before``."""

    def __init__(self, before: Progress | None = None) -> None:
        self.completions: list[Completions] = []
        self.spans: list[LazySpans] = []
        if before is not None:
            self.completions += [Completions.of(before.completions)] if before.completions else []
            self.spans += [before.spans] if isinstance(before.spans, LazySpans) else []

    def progress(self) -> Progress:
        """Return all of it."""
        if len(self.spans) > 1:
            for later in self.spans[1:]:
                self.spans[0].add(later)
        return Progress(joined(self.completions), self.spans[0] if self.spans else [])
