"""Collects what console text says about steps: records of one step from several processes, restarts, runs, a bounded amount."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry
from rlhfless.trace.importers.names import Names
from rlhfless.trace.importers.record import finite, is_number
from rlhfless.trace.schema.casts import clean
from solver.model.plurals import counted

LONGEST_NAME = 200  # characters of a metric's name
MOST_NAMES = 2_000  # different names
MOST_NUMBERS = 2_000_000  # kept of all steps; beyond them, those behind the standard columns only
MOST_STEPS = 100_000
LARGEST_STEP = 1 << 53
MOST_NOTED = 10  # kinds of what was left out


class Steps:
    """The steps of a log, each with its numbers.

    Several records of one step are joined: frameworks print one per process. A record that repeats its step with other numbers
    is of a later attempt. The attempt of a restart replaces the step. Where the numbers of steps begin again at the first one,
    another run begins.

    Args:
        names: of the framework.
    """

    def __init__(self, names: Names) -> None:
        self._names, self._known = names, frozenset(names.own())
        self._runs: list[dict[int, dict[str, float]]] = [{}]
        self._seen: set[str] = set()
        self._numbers = self._count = self._again = 0
        self._broken = self._first_broken = 0
        self._left_out: dict[tuple[str, str], int] = {}

    def add(self, entry: Entry) -> None:
        """Take the next record."""
        if entry.values is None or not 0 <= entry.step < LARGEST_STEP:
            self._broken, self._first_broken = self._broken + 1, self._first_broken or entry.line
            return
        values, steps = self._numbers_of(entry.values), self._runs[-1]
        if not values:
            return
        before = steps.get(entry.step)
        if before is not None and not self._repeats(before, values):
            before.update(values)
        elif self._count >= MOST_STEPS:
            self._leave_out("record", f"of steps after the first {MOST_STEPS:,}")
            return
        elif before is not None and entry.step == min(steps):
            self._runs.append({entry.step: values})
        else:
            steps[entry.step] = values
            self._again += before is not None
        self._count += before is None
        self._numbers += len(values)

    def _repeats(self, before: Mapping[str, float], values: Mapping[str, float]) -> bool:
        """Return whether a record contradicts what is known of its step."""
        other = {name for name in before.keys() & values.keys() if before[name] != values[name]}
        return 2 * len(other) > len(values) or not self._known.isdisjoint(other)

    def _numbers_of(self, logged: Mapping[str, Any]) -> dict[str, float]:
        values = {}
        for key, value in logged.items():
            name = clean(str(key))
            number = finite(value) if is_number(value) else None
            if number is not None and (name in self._known or self._keeps(name)):
                values[name] = number
            elif name in self._known and value is not None:
                self._leave_out("value", f"of '{name}' without a finite number")
        return values

    def _keeps(self, name: str) -> bool:
        """Return whether a number behind no standard column is kept, so that memory is bounded."""
        if len(name) > LONGEST_NAME:
            self._leave_out("number", f"with names of more than {LONGEST_NAME} characters")
        elif self._numbers >= MOST_NUMBERS:
            self._leave_out("number", f"after the first {MOST_NUMBERS:,} behind no standard column")
        elif name not in self._seen and len(self._seen) >= MOST_NAMES:
            self._leave_out("number", f"with further names than the first {MOST_NAMES:,}")
        else:
            self._seen.add(name)
            return True
        return False

    def _leave_out(self, noun: str, which: str) -> None:
        """Count one more of what is left out: a noun in the singular, and what follows it."""
        self._left_out[noun, which] = self._left_out.get((noun, which), 0) + 1

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the numbers of each step, with its standard columns and ``step``, and ``run`` where there are several runs. A
        value of a standard column that is impossible is left out.
        """
        for run, steps in enumerate(self._runs, start=1):
            named = {"run": str(run)} if len(self._runs) > 1 else {}
            for step, values in steps.items():
                columns = self._names.standard(values)
                for column in [name for name, value in columns.items() if value < 0 and name != "reward_mean"]:
                    self._leave_out("value", f"of {column} below 0")
                    del columns[column]
                yield {**values, **columns, "step": step, **named}

    def notes(self) -> Iterator[str]:
        """Yield sentences about what was left out or replaced, after the rows."""
        if self._broken:
            yield (
                f"{counted(self._broken, 'line')} of steps are incomplete or mixed with others and were left out, first line "
                f"{self._first_broken}"
            )
        if len(self._runs) > 1:
            yield f"runs: the steps begin again, so the log has {len(self._runs)} runs"
        if self._again:
            yield f"restarts: {counted(self._again, 'record')} of a step replaced those of an earlier attempt"
        if self._left_out:
            several = [f"{counted(times, noun)} {which}" for (noun, which), times in self._left_out.items()]
            further = f"; and {len(several) - MOST_NOTED} more kinds" if len(several) > MOST_NOTED else ""
            yield f"left out: {'; '.join(several[:MOST_NOTED])}{further}"
