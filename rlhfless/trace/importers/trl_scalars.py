"""Imports the scalars that TRL's trainer logged per step, from ``log_history`` in ``trainer_state.json``.

The file is recognised by its content under any name. The log has no responses.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format, numbered
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.record import Record, finite, is_number
from rlhfless.trace.importers.scalars import numbers
from rlhfless.trace.importers.trl_steps import OF_RESPONSES, add_evaluations, as_numbers, evaluation_s, generations, whole_run

FILES = ("trainer_state.json", "trainer_state.json.gz")
HISTORY = re.compile(rb'(?<!\\)"log_history"\s*:\s*\[')
PEEK_BYTES = 2**20  # within which the list begins
OTHERS = (".parquet", ".pt", ".csv", ".jsonl", ".wandb")  # endings of files that are not looked into


class TrainerState(NamedTuple):
    """What a trainer's state says beside its scalars.

    Attributes:
        logging_steps: how many steps one entry covers, 1 if the state does not say. evaluated: steps after which it evaluated.
        evaluation_s: seconds of these evaluations by step, of those that log them.
    """

    logging_steps: int = 1
    evaluated: frozenset[int] = frozenset()
    evaluation_s: Mapping[int, float] = {}


def files(path: Path) -> list[Path]:
    """Return the state file of a run's folder, or of its last checkpoint; or the file itself."""
    if path.is_file():
        return [path] if path.name in FILES or _has_history(path) else []
    folders = [path, *(folder for _, folder in reversed(numbered(path, r"checkpoint-(\d+)")))]
    return [folder / name for folder in folders for name in FILES if (folder / name).is_file()][:1]


def _has_history(path: Path) -> bool:
    """Return whether a file is a JSON object with the list ``log_history``."""
    name = path.name.lower()
    if name.removesuffix(".gz").endswith(OTHERS):
        return False
    try:
        with gzip.open(path, "rb") if name.endswith(".gz") else open(path, "rb") as stream:
            start = stream.read(PEEK_BYTES)
    except (OSError, EOFError, zlib.error):
        return False  # not this format; the reader reports what is wrong with it
    return start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and HISTORY.search(start) is not None


def detect(path: Path) -> bool:
    """Return whether the path is such a file, or a folder with one under TRL's own name."""
    return bool(files(path))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the scalars of steps that generated, and the numbers of the whole run; yields no responses."""
    states = files(reading.path) or [reading.path]
    reading.expect(states)
    seconds: dict[int, float] = {}
    for path in states:
        seconds |= read_state(reading, path).evaluation_s
    reading.scalars[:] = generations(reading.scalars, reading)
    add_evaluations(reading.scalars, seconds)
    for values in reading.scalars:
        reading.fields.update(values)
    yield from ()


def read_state(reading: ImportSession, path: Path) -> TrainerState:
    """Add the scalars of one state file to the session, and return what else it says.

    Raises:
        TraceError: the file is not a trainer state.
    """
    state = reading.document(path)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise TraceError(f"{path}: has no list 'log_history'; a trainer_state.json is needed")
    reading.framework = "trl"
    steps: dict[int, dict[str, Any]] = {}
    names, evaluated = NAMES["trl"], set()
    seconds: dict[int, float] = {}
    for number, entry in enumerate(history, start=1):
        if not isinstance(entry, dict):
            raise TraceError(f"{path}: entry {number} of 'log_history' is not a JSON object; a trainer_state.json is needed")
        record = Record(as_numbers(entry), path, number)
        step, facts = record.whole("step"), whole_run(record.values)
        if any(name.startswith("eval_") for name in entry):
            evaluated.add(step)
            if (took := evaluation_s(record.values)) is not None:
                seconds[step] = seconds.get(step, 0.0) + took
        elif facts:
            reading.facts.update(facts)
        else:
            steps.setdefault(step, {}).update(numbers(record, names.own()))
    for step, values in sorted(steps.items()):
        reading.scalars.append({**values, **names.standard(values), "step": step})
    every = _count(state, "logging_steps")
    counts = {"planned_steps": _count(state, "max_steps"), "steps_done": _count(state, "global_step"), "logging_steps": every}
    reading.facts.update({fact: float(count) for fact, count in counts.items() if count})
    return TrainerState(every or 1, frozenset(evaluated), seconds)


def _count(state: dict[str, Any], name: str) -> int:
    """Return a positive whole number of the state; 0 if it has none."""
    number = finite(state[name]) if is_number(state.get(name)) else None
    return int(number) if number is not None and number >= 1 and number == int(number) else 0


FORMAT = Format(
    "trl-scalars", "TRL's scalars (trainer_state.json)", detect, read,
    expected=frozenset(name for column in ("step_s", *OF_RESPONSES) for name in NAMES["trl"].first(column)),
)  # fmt: skip
