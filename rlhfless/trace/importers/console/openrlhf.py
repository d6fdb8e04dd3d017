"""OpenRLHF's console text: a line ``Global step {n}: {dict}`` per step; the dict is Python's repr."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line, parse_dict, unwrapped
from rlhfless.trace.importers.import_session import ImportSession

MARK = re.compile(r"Global step (\d{1,15})(?: \[[^\]]{0,40}\])?: (\{.*)")


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the dict of every step."""
    for line in unwrapped(lines, _is_open, _goes_on):
        if "Global step" in line.text and (match := MARK.search(line.text)):
            yield Entry(line.number, int(match[1]), parse_dict(match[2]))


def _is_open(text: str) -> bool:
    return "Global step" in text and "}" not in text[text.rfind("Global step") :] and MARK.search(text) is not None


def _goes_on(before: str, after: str) -> str | None:
    """Return a dict that a terminal wrapped with the next line, unless that begins another step."""
    return before + after if _is_open(before) and MARK.search(after) is None else None


GRAMMAR = Grammar(
    "openrlhf",
    hint="Global step",
    mark=MARK,
    example="Global step N: {...}",
    near=re.compile(r"[Gg]lobal step \d"),
    files="its TensorBoard or wandb files",
    entries=entries,
    bar="Episode",
)
