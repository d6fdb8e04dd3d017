"""Records a plan's history: one line, with its cause, whenever value or bound moves.

Inputs are values, bounds and the clock.
"""

from __future__ import annotations

import time

from solver.model.plan import HistoryEntry

LITTLE = 1e-3  # relative: moves below this, of one cause in a row, are one line


class SearchHistory:
    """Lines of a plan's history, timed in seconds since ``began`` (``perf_counter``)."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines: list[HistoryEntry] = []

    def add(self, cause: str, value: float, bound: float) -> None:
        """Add a line, which says that this part has run, whether or not value or bound have moved."""
        self.lines.append(HistoryEntry(cause, time.perf_counter() - self.began, value, bound))

    def note(self, cause: str, value: float, bound: float) -> None:
        """Add a line if value or bound have moved.

        Small moves of one cause are merged into one line with the time of the last of them. So no move is left out, and the
        last line always shows the current value and bound.
        """
        if self.lines:
            last = self.lines[-1]
            if value >= last.value and bound <= last.lower_bound:
                return
            if len(self.lines) > 2 and last.solver == cause and _little(self.lines[-2], value, bound):
                self.lines.pop()
        self.add(cause, value, bound)


def _little(before: HistoryEntry, value: float, bound: float) -> bool:
    """Return whether neither value nor bound has moved by more than ``LITTLE`` since that line."""
    falls = 0.0 if before.value == value else before.value - value  # both may be infinite
    return falls <= LITTLE * abs(value) and bound - before.lower_bound <= LITTLE * abs(bound)
