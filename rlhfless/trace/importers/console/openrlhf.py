"""OpenRLHF's console text: a line ``Global step {n}: {dict}`` per step; the dict is Python's repr."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line, parse_dict
from rlhfless.trace.importers.import_session import ImportSession

MARK = re.compile(r"Global step (\d{1,15})(?: \[[^\]]{0,40}\])?: (\{.*)")


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the dict of every step."""
    for line in lines:
        if "Global step" in line.text and (match := MARK.search(line.text)):
            yield Entry(line.number, int(match[1]), parse_dict(match[2]))


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
