"""What found what, and when: the lines of a plan's history, each booked under its cause as soon as value or bound moves.

Knows values, bounds and the clock; nothing of how either comes about.
"""

from __future__ import annotations

import time

from solver.model.plan import HistoryEntry

LITTLE = 1e-3  # relative: moves below this, of one cause in a row, are one line


class SearchHistory:
    """Lines since ``began`` (``perf_counter``)."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines: list[HistoryEntry] = []

    def note(self, cause: str, value: float, bound: float) -> None:
        """A line when value or bound have moved. Moves of one cause that are little together are one line, with the time of the
        last of them, so that nothing is left out and the last line always says how things stand."""
        if self.lines:
            last = self.lines[-1]
            if value >= last.value and bound <= last.lower_bound:
                return
            if len(self.lines) > 2 and last.solver == cause and _little(self.lines[-2], value, bound):
                self.lines.pop()
        self.lines.append(HistoryEntry(cause, time.perf_counter() - self.began, value, bound))


def _little(before: HistoryEntry, value: float, bound: float) -> bool:
    """Whether neither has moved by more than ``LITTLE`` since that line."""
    falls = 0.0 if before.value == value else before.value - value  # both may be infinite
    return falls <= LITTLE * abs(value) and bound - before.lower_bound <= LITTLE * abs(bound)
