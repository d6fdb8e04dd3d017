"""Imports console text of a training run, in whatever framework printed it: scalars of steps, and no responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.console.bars import BARS
from rlhfless.trace.importers.console.grammar import Grammar
from rlhfless.trace.importers.console.grammars import GRAMMARS
from rlhfless.trace.importers.console.lines import Line, console_lines
from rlhfless.trace.importers.console.pasted import pasted
from rlhfless.trace.importers.console.progress import ProgressBar
from rlhfless.trace.importers.console.steps import Steps
from rlhfless.trace.importers.engine_lines import EngineLines
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import PEEK_BYTES, ImportOptions, ImportSession
from rlhfless.trace.importers.names import NAMES, Names, unknown_phases
from rlhfless.trace.importers.summary import OTHER_FRAMEWORK
from rlhfless.trace.schema.casts import clean, listed, shown

OTHER_FILES = (".parquet", ".pt", ".jsonl", ".json", ".csv", ".wandb")
"""Endings of files that are no console text."""

MOST_OF_BINARY = 100  # lines at the beginning without a zero byte, of a file that is a text

TIMES = frozenset({"elapsed_s", "seconds_per_step", "run_s", "steps_per_s"})
"""Facts of a run that say something without any step."""

TITLES = listed(NAMES[one.framework].title for one in GRAMMARS)
NEEDED = f"the console of one of these is needed: {TITLES}; or the log of vLLM or SGLang"


def detect(path: Path) -> bool:
    """Return whether the first 16 MiB of a text have a line that only one framework prints, or a progress bar of steps."""
    try:
        return _is_text(path) and (_grammar(path, ImportOptions()) or _bar(path, ImportOptions())) is not None
    except TraceError:
        return False  # the reader reports what is wrong with it


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars, the progress bar's facts and the engine's lines beside them; yields no responses.

    The first framework that a line is marked by is the file's; lines of another one are left out and noted.

    Raises:
        TraceError: no line is any framework's, or no record of a step is complete.
    """
    reading.expect([reading.path])
    grammar = _grammar(reading.path, reading.options) or _bar(reading.path, reading.options)
    if grammar is None:
        raise TraceError(f"{reading.path}: {missing(reading.path) or f'is no console text; that of {TITLES} is needed'}")
    names = NAMES.get(grammar.framework, Names("a framework that the text does not name", {}))
    reading.framework = grammar.framework
    only = "a progress bar and no line of a step, " if grammar in BARS else ""
    reading.note(f"console: {only}printed by {names.title}")
    steps, bar, engine = Steps(names), ProgressBar(grammar.bar), EngineLines()
    with _lines(reading) as lines:
        for entry in grammar.entries(_watched(lines, grammar, bar, engine, reading), reading):
            steps.add(entry)
    engine.report_to(reading)
    rows = list(steps.rows())
    for note in steps.notes():
        reading.note(note)
    reading.facts.update(bar.facts())
    if not rows and not reading.engine and TIMES.isdisjoint(reading.facts):
        raise TraceError(
            f"{reading.path}: has lines of {names.title}, but no complete record of a step; a line {grammar.example} that is "
            "not cut is needed"
        )
    rows = grammar.finish(rows, reading)
    reading.scalars += rows
    reading.fields.update(name for row in rows for name in row)
    for sentence in unknown_phases(names, reading.fields):
        reading.note(sentence)
    yield from ()


def missing(path: Path) -> str:
    """Return what a text lacks to be console text that can be read: the framework whose lines it nearly has, the first of
    them, and which other file of that framework would do. Empty for what is no text.
    """
    if not _is_text(path):
        return ""
    found: dict[str, tuple[int, Line]] = {}
    try:
        with _lines(ImportSession(path, ImportOptions()), PEEK_BYTES) as lines:
            for line in lines:
                if "\0" in line.text and line.number < MOST_OF_BINARY:
                    return ""
                for one in GRAMMARS:
                    if one.near.search(line.text):
                        count, first = found.get(one.framework, (0, line))
                        found[one.framework] = (count + 1, first)
    except TraceError:
        return ""
    if not found:
        return f"is a text without any line that a framework prints of a step or an engine of its requests; {NEEDED}"
    nearest = max(GRAMMARS, key=lambda one: found.get(one.framework, (0, None))[0])
    _, first = found[nearest.framework]
    printable = "".join(letter if letter.isprintable() else " " for letter in clean(first.text.strip()))
    return (
        f"is nearly console text of {NAMES[nearest.framework].title}, by line {first.number:,} ({shown(printable, 80)}), but "
        f"has no line {nearest.example}; the console with those lines is needed, or {nearest.files}"
    )


def _is_text(path: Path) -> bool:
    return path.is_file() and not path.name.lower().removesuffix(".gz").endswith(OTHER_FILES)


@contextmanager
def _lines(reading: ImportSession, most_bytes: int | None = None) -> Iterator[Iterator[Line]]:
    """Yield the lines of a file, or those of so many of its bytes: a line of gigabytes counts, too, though it is none."""
    with reading.open(reading.path) as stream:
        yield console_lines(stream, reading.note, most_bytes)


def _grammar(path: Path, options: ImportOptions) -> Grammar | None:
    """Return the grammar of the first line of the file's beginning that is marked; of a text without such a line, that of names
    and numbers which people pasted; None if there are none.

    The beginning is read in a session of its own, so that it counts once in the progress bar and against the limits.
    """
    with _lines(ImportSession(path, replace(options, progress=False)), PEEK_BYTES) as lines:
        if marked := next((one for line in lines for one in GRAMMARS if one.marks(line)), None):
            return marked
    with _lines(ImportSession(path, replace(options, progress=False)), PEEK_BYTES) as lines:
        return pasted(lines)


def _bar(path: Path, options: ImportOptions) -> Grammar | None:
    """Return the grammar of the progress bars in the file's beginning, a framework's own before those that are anybody's; None
    if there are none.
    """
    with _lines(ImportSession(path, replace(options, progress=False)), PEEK_BYTES) as lines:
        found = {one for line in lines for one in BARS if one.marks(line)}
    return next((one for one in BARS if one in found), None)


def _watched(
    lines: Iterable[Line], grammar: Grammar, bar: ProgressBar, engine: EngineLines, reading: ImportSession
) -> Iterator[Line]:
    """Yield the lines of a framework, and follow its progress bar and its engines; lines that only another framework prints
    are left out.
    """
    others = [one for one in GRAMMARS if one is not grammar]
    for line in lines:
        bar.see(line.text)
        if (row := engine.line(line.number, line.raw)) is not None:
            reading.guard.check_rows(reading.path, len(reading.engine) + 1)
            reading.engine.append(row)
        if other := next((one for one in others if one.marks(line)), None):
            reading.note(
                f"frameworks: read as the console of {NAMES[grammar.framework].title}; lines of {NAMES[other.framework].title} "
                f"are left out, and {OTHER_FRAMEWORK}"
            )
        else:
            yield line


FORMAT = Format("console", "console text of a training run", detect, read)
