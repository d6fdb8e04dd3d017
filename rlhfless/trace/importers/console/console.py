"""Imports console text of a training run, in whatever framework printed it: scalars of steps, and no responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.console.grammar import Grammar
from rlhfless.trace.importers.console.grammars import GRAMMARS
from rlhfless.trace.importers.console.lines import Line, console_lines
from rlhfless.trace.importers.console.progress import ProgressBar
from rlhfless.trace.importers.console.steps import Steps
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import PEEK_BYTES, ImportOptions, ImportSession
from rlhfless.trace.importers.names import NAMES, unknown_phases
from rlhfless.trace.schema.casts import listed

OTHER_FILES = (".parquet", ".pt", ".jsonl", ".json", ".csv")
"""Endings of files that are no console text."""


def detect(path: Path) -> bool:
    """Return whether the first 16 MiB of a text have a line that only one framework prints."""
    if not path.is_file() or path.suffix.lower() in OTHER_FILES:
        return False
    try:
        return _grammar(ImportSession(path, ImportOptions())) is not None
    except TraceError:
        return False  # whoever reads it says what is wrong with it


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars and the progress bar's facts; yields no responses.

    The first framework that a line is marked by is the file's; lines of another one are left out and noted.

    Raises:
        TraceError: no line is any framework's.
    """
    reading.expect([reading.path])
    grammar = _grammar(reading)
    if grammar is None:
        forms = listed(f"{one.example} ({NAMES[one.framework].title})" for one in GRAMMARS)
        raise TraceError(f"{reading.path}: no line of it is a framework's record of a step; a line such as {forms} is needed")
    names = NAMES[grammar.framework]
    reading.framework = grammar.framework
    steps, bar = Steps(names), ProgressBar(grammar.bar)
    with _lines(reading) as lines:
        for entry in grammar.entries(_watched(lines, grammar, bar, reading), reading):
            steps.add(entry)
    rows = list(steps.rows())
    reading.fields.update(name for row in rows for name in row)
    reading.scalars += rows
    reading.facts.update(bar.facts())
    for note in steps.notes():
        reading.note(note)
    if not rows and not reading.facts:
        raise TraceError(
            f"{reading.path}: has no complete record of a step, such as {grammar.example}; a line that is not cut is needed"
        )
    for sentence in unknown_phases(names, reading.fields):
        reading.note(sentence)
    yield from ()


@contextmanager
def _lines(reading: ImportSession) -> Iterator[Iterator[Line]]:
    with reading.open(reading.path) as stream:
        yield console_lines(stream, reading.note)


def _grammar(reading: ImportSession) -> Grammar | None:
    """Return the grammar of the first line of the file's beginning that is marked; None if no line is."""
    with _lines(reading) as lines:
        size = 0
        for line in lines:
            size += len(line.text) + 1
            if size > PEEK_BYTES:
                return None
            if found := next((one for one in GRAMMARS if one.marks(line)), None):
                return found
    return None


def _watched(lines: Iterable[Line], grammar: Grammar, bar: ProgressBar, reading: ImportSession) -> Iterator[Line]:
    """Yield the lines of a framework, and follow its progress bar; lines of other frameworks are left out."""
    others = [one for one in GRAMMARS if one is not grammar]
    for line in lines:
        bar.see(line.text)
        if other := next((one for one in others if one.marks(line)), None):
            reading.note(
                f"{reading.path.name}: is read as {NAMES[grammar.framework].title}'s; lines of {NAMES[other.framework].title} "
                "are left out, which a file of their own is needed for"
            )
            continue
        yield line


FORMAT = Format("console", f"console text of {listed(NAMES[one.framework].title for one in GRAMMARS)}", detect, read)
