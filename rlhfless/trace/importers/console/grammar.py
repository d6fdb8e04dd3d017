"""What one framework's console text looks like, and how its steps are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.import_session import ImportSession


class Entry(NamedTuple):
    """What one line, or one block of lines, says about a step.

    Attributes:
        line: its number. step: its step.
        values: the framework's own names → what the line has; other than numbers are left out. None if the line is incomplete
            or mixed with another one.
    """

    line: int
    step: int
    values: Mapping[str, Any] | None


def as_read(rows: list[dict[str, Any]], reading: ImportSession) -> list[dict[str, Any]]:
    """Return the rows as they were read."""
    return rows


@dataclass(frozen=True)
class Grammar:
    """The console text of one framework.

    Attributes:
        framework: key of ``names.NAMES``.
        hint: text that every marked line contains; it is looked for first, because that is fast.
        mark: of lines that only this framework prints.
        example: form of such a line, for messages.
        near: of lines that nearly are marked, for the refusal of a text; it also contains a part of the form.
        files: what else of this framework can be read, for messages.
        entries: yields what the lines say about steps, in their order. It may report facts and notes to the session, and never
            raises.
        bar: text before the framework's progress bar of steps, which may be empty; None if it prints no such bar.
        finish: turns the rows of all steps, with their standard columns, into those of the log, at its end.
    """

    framework: str
    hint: str
    mark: re.Pattern[str]
    example: str
    near: re.Pattern[str]
    files: str
    entries: Callable[[Iterable[Line], ImportSession], Iterator[Entry]]
    bar: str | None = ""
    finish: Callable[[list[dict[str, Any]], ImportSession], list[dict[str, Any]]] = as_read

    def marks(self, line: Line) -> bool:
        """Return whether a line is one that only this framework prints."""
        return self.hint in line.text and self.mark.search(line.text) is not None
