"""Imports scalars of steps from TensorBoard's event files: ``events.out.tfevents.*``.

NeMo-RL, slime, verl and OpenRLHF write them. The names of a framework's times are in ``names.py``. The log has no
responses. TRL writes its profile of phases to wandb only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.event_records import IncompleteRecordError, fields, tensorboard_records
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.record import finite
from rlhfless.trace.importers.tracked_steps import add_steps, refuse_without

MARK = "events.out.tfevents."
STEP, SUMMARY, SESSION = 2, 5, 7  # fields of an event
STATUS, START = 1, 1  # field of its session: the run began, or went on, at the event's step
VALUE, TAG, NUMBER = 1, 1, 2  # of its summary, and of each value in it


def files(path: Path) -> list[Path]:
    """Return the event files of a folder, or of its folder ``tensorboard``, or the one file; in the order of their start."""
    if path.is_file():
        return [path] if path.name.startswith(MARK) else []
    return sorted(path.glob(f"{MARK}*")) or sorted((path / "tensorboard").glob(f"{MARK}*"))


def detect(path: Path) -> bool:
    """Return whether the path is such a file or a folder with some."""
    return bool(files(path))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars; yields no responses."""
    event_files = files(reading.path) or [reading.path]
    reading.expect(event_files)
    read_events(reading, event_files)
    refuse_without(reading)
    yield from ()


def read_events(reading: ImportSession, event_files: list[Path]) -> None:
    """Add the scalars of a run's event files to the session; where a step was logged again, the later values count. Where a
    run went on at a step, later ones of before are left out, as in TensorBoard (``purge_step``).

    Raises:
        TraceError: a file is damaged.
    """
    steps: dict[int, dict[str, float]] = {}
    for path in event_files:
        try:
            with reading.open(path) as stream:
                for number, message in enumerate(tensorboard_records(path, stream, reading.guard), start=1):
                    _add(message, steps, path, number)
        except IncompleteRecordError:
            reading.note(f"{path.name}: the last record is incomplete and was left out")
    add_steps(reading, event_files[0] if len(event_files) == 1 else event_files[0].parent, steps)


def _add(message: bytes, steps: dict[int, dict[str, float]], path: Path, number: int) -> None:
    """Add the numbers of one event, or remove those that it undoes."""
    step, starts = 0, False
    values: dict[str, float] = {}
    try:
        for field in fields(message):
            if field.number == STEP and isinstance(field.value, int):
                step = field.value
            elif field.number == SUMMARY and isinstance(field.value, bytes):
                values.update(_numbers(field.value))
            elif field.number == SESSION and isinstance(field.value, bytes):
                starts = any(one == (STATUS, START) for one in fields(field.value))
    except ValueError as error:
        raise TraceError(f"{path}: record {number} has {error}; an intact TensorBoard event file is needed") from error
    if starts:
        for undone in [known for known in steps if known >= step]:
            del steps[undone]
    if values and step < 1 << 53:  # a negative step is a number above
        steps.setdefault(step, {}).update(values)


def _numbers(summary: bytes) -> Iterator[tuple[str, float]]:
    for one in fields(summary):
        if one.number != VALUE or not isinstance(one.value, bytes):
            continue
        tag, number = "", None
        for field in fields(one.value):
            if field.number == TAG and isinstance(field.value, bytes):
                tag = field.value.decode("utf-8", "replace")
            elif field.number == NUMBER and isinstance(field.value, bytes) and len(field.value) == 4:
                number = finite(struct.unpack("<f", field.value)[0])
        if number is not None:
            yield tag, number


FORMAT = Format("tensorboard", "TensorBoard's scalars (events.out.tfevents.*)", detect, read)
