"""Collects what console text says about steps: records of one step from several processes, restarts, and a bounded amount."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry
from rlhfless.trace.importers.names import Names
from rlhfless.trace.importers.record import finite, is_number
from rlhfless.trace.schema.casts import clean
from solver.model.plurals import counted

LONGEST_NAME = 200  # characters of a metric's name
MOST_NAMES = 2_000  # different names
MOST_NUMBERS = 2_000_000  # kept of all steps; beyond them, those behind the standard columns only
MOST_STEPS = 200_000
LARGEST_STEP = 1 << 53


class Steps:
    """The steps of a run, each with its numbers.

    Several records of one step are joined: frameworks print one per process. A record that repeats numbers of its step replaces
    the step, as after a restart; the later one counts.

    Args:
        names: of the framework.
    """

    def __init__(self, names: Names) -> None:
        self._names, self._known = names, frozenset(names.own())
        self._steps: dict[int, dict[str, float]] = {}
        self._seen: set[str] = set()
        self._numbers = 0
        self._again: set[int] = set()
        self._broken = self._first_broken = 0
        self._left_out: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        """Take the next record."""
        if entry.values is None or not 0 <= entry.step < LARGEST_STEP:
            self._broken, self._first_broken = self._broken + 1, self._first_broken or entry.line
            return
        values = self._numbers_of(entry)
        before = self._steps.get(entry.step)
        if before is None and len(self._steps) >= MOST_STEPS:
            self._leave_out(f"steps beyond the first {MOST_STEPS:,}")
            return
        if before is None or any(before[name] != values[name] for name in before.keys() & values.keys()):
            self._steps[entry.step] = values
            if before is not None:
                self._again.add(entry.step)
        else:
            before.update(values)
        self._numbers += len(values)

    def _numbers_of(self, entry: Entry) -> dict[str, float]:
        values = {}
        for key, value in (entry.values or {}).items():
            name = clean(str(key))
            if not is_number(value) or (number := finite(value)) is None:
                if name in self._known and value is not None:
                    self._leave_out(f"values of '{name}' that are no finite number")
                continue
            if name not in self._known and not self._keeps(name):
                continue
            values[name] = number
        return values

    def _keeps(self, name: str) -> bool:
        """Return whether a number behind no standard column is kept, so that memory is bounded."""
        if len(name) > LONGEST_NAME:
            self._leave_out(f"numbers with names of more than {LONGEST_NAME} characters")
            return False
        if self._numbers >= MOST_NUMBERS:
            self._leave_out(f"numbers beyond the first {MOST_NUMBERS:,} that are behind no standard column")
            return False
        if name not in self._seen:
            if len(self._seen) >= MOST_NAMES:
                self._leave_out(f"numbers with further names than the first {MOST_NAMES:,}")
                return False
            self._seen.add(name)
        return True

    def _leave_out(self, what: str) -> None:
        self._left_out[what] = self._left_out.get(what, 0) + 1

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the numbers of each step, with its standard columns and ``step``. An impossible value of a standard column is
        left out.
        """
        for step, values in self._steps.items():
            columns = self._names.standard(values)
            for column in [name for name, value in columns.items() if value < 0 and name != "reward_mean"]:
                self._leave_out(f"values of {column} below 0")
                del columns[column]
            yield {**values, **columns, "step": step}

    def notes(self) -> Iterator[str]:
        """Yield sentences about what was left out or replaced, after the rows."""
        if self._broken:
            yield (
                f"{counted(self._broken, 'line')} of steps are incomplete or mixed with others and were left out, first "
                f"line {self._first_broken}"
            )
        if self._again:
            yield f"restarts: the scalars of {counted(len(self._again), 'step')} were logged twice; the later ones count"
        for what, times in self._left_out.items():
            yield f"left out: {what} ({counted(times, 'time')})"
