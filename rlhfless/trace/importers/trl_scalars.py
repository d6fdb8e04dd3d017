"""Imports the scalars that TRL's trainer logged per step, from ``log_history`` in ``trainer_state.json``.

The log has no responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format, numbered
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.record import Record
from rlhfless.trace.importers.scalars import numbers

FILES = ("trainer_state.json", "trainer_state.json.gz")
OF_RESPONSES = (
    "response_tokens_mean", "response_tokens_min", "response_tokens_max", "truncation_rate", "reward_mean",
)  # fmt: skip
"""Standard columns that are about the step's responses."""


class TrainerState(NamedTuple):
    """What a trainer's state says beside its scalars.

    Attributes:
        logging_steps: how many steps one entry covers, 1 if the state does not say. evaluated: steps after which it evaluated.
    """

    logging_steps: int = 1
    evaluated: frozenset[int] = frozenset()


def files(path: Path) -> list[Path]:
    """Return the state file of a run's folder, or of its last checkpoint; or the file itself."""
    if path.is_file():
        return [path] if path.name in FILES else []
    folders = [path, *(folder for _, folder in reversed(numbered(path, r"checkpoint-(\d+)")))]
    return [folder / name for folder in folders for name in FILES if (folder / name).is_file()][:1]


def detect(path: Path) -> bool:
    """Return whether the path is such a file or a folder with one."""
    return bool(files(path))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars; yields no responses."""
    states = files(reading.path) or [reading.path]
    reading.expect(states)
    for path in states:
        read_state(reading, path)
    for values in reading.scalars:
        reading.fields.update(values)
    yield from ()


def read_state(reading: ImportSession, path: Path) -> TrainerState:
    """Add the scalars of one state file to the session, and return what else it says.

    Raises:
        TraceError: the file is not a trainer state.
    """
    with reading.open(path) as stream:
        raw = reading.guard.document(path, stream)
    try:
        state = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not JSON; an intact file is needed") from error
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise TraceError(f"{path}: has no list 'log_history'; a trainer_state.json is needed")
    steps: dict[int, dict[str, Any]] = {}
    names, evaluated = NAMES["trl"], set()
    for number, entry in enumerate(history, start=1):
        if not isinstance(entry, dict):
            raise TraceError(f"{path}: entry {number} of 'log_history' is not a JSON object; a trainer_state.json is needed")
        record = Record(entry, path, number)
        if any(name.startswith("eval_") for name in entry):
            evaluated.add(record.whole("step"))
        steps.setdefault(record.whole("step"), {}).update(numbers(record, names.own()))
    for step, values in steps.items():  # a step has several entries: losses, an evaluation, the end of training
        reading.scalars.append({**values, **names.standard(values), "step": step})
    every = state.get("logging_steps")
    return TrainerState(every if isinstance(every, int) and every > 0 else 1, frozenset(evaluated))


FORMAT = Format(
    "trl-scalars", "TRL's scalars (trainer_state.json)", detect, read,
    expected=frozenset(NAMES["trl"].own("step_s", *OF_RESPONSES)),
)  # fmt: skip
