"""Texts that have nothing of a run but its progress bar: steps, seconds, and the numbers that OpenRLHF shows in its bar."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.console.progress import BAR
from rlhfless.trace.importers.import_session import ImportSession

SHOWN = re.compile(r"\b([A-Za-z_][\w/]{0,60})=(-?\d{1,20}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?)(?=[,\]])")
LONGEST = 2_000  # characters of a bar
TEXTS = {
    "Training Progress": "verl",
    "Training Batches Processed": "skyrl",
    "Training Step Progress": "skyrl",
    "Episode [": "openrlhf",
    "Train epoch [": "openrlhf",  # of versions before 0.6
}
"""What stands before the bar of a run's steps → the framework."""


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the numbers that a bar shows of each of its steps."""
    for line in lines:
        if " [" in line.text and len(line.text) <= LONGEST and (match := BAR.search(line.text)):
            values = {name: float(number) for name, number in SHOWN.findall(line.text, match.end())}
            if values and int(match[1]):
                yield Entry(line.number, int(match[1]), values)


def _grammar(framework: str, text: str) -> Grammar:
    mark = rf"^\W{{0,20}}{re.escape(text)}.{{0,200}}?{BAR.pattern}" if text else rf"^\s*{BAR.pattern}"
    return Grammar(
        framework, hint=" [", mark=re.compile(mark), example="", near=re.compile(r"(?!)"), files="", entries=entries, bar=text,
    )  # fmt: skip


BARS: tuple[Grammar, ...] = (*(_grammar(framework, text) for text, framework in TEXTS.items()), _grammar("", ""))
"""Asked only where a text has no line of a framework; the last one is any bar without a text before it, as TRL's is."""
