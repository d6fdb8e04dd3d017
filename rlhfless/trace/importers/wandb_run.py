"""Imports scalars of steps from the file that wandb keeps of a run: ``wandb/run-*/run-*.wandb``, offline runs included.

Each call of ``wandb.log`` is a record with a row of metrics. Times of NeMo-RL, slime, verl and OpenRLHF have names of their own
(``names.py``), TRL's are added up (``trl_profiling.py``). The log has no responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.event_records import IncompleteRecordError, fields, wandb_records
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.record import finite, is_number
from rlhfless.trace.importers.tracked_steps import add_rows, refuse_without

HISTORY = 2  # field of a record: one row of metrics
ITEM, KEY, NESTED_KEY, VALUE_JSON = 1, 1, 2, 16  # of a row, and of each metric in it


def files(path: Path) -> list[Path]:
    """Return the run files of a run's folder or of a folder of runs, or the one file."""
    if path.is_file():
        return [path] if path.name.endswith((".wandb", ".wandb.gz")) else []
    for pattern in ("*.wandb*", "*run-*/*.wandb*", "wandb/*run-*/*.wandb*"):
        found = {file.resolve(): file for file in path.glob(pattern) if files(file)}  # wandb links to the latest run
        if found:
            return sorted(found)
    return []


def detect(path: Path) -> bool:
    """Return whether the path is such a file or a folder with one."""
    return bool(files(path))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars; yields no responses."""
    run_files = files(reading.path) or [reading.path]
    if len(run_files) > 1:
        names = ", ".join(file.parent.name for file in run_files[:4])
        raise TraceError(f"{reading.path}: has {len(run_files)} runs of wandb ({names}); the file of one run is needed")
    reading.expect(run_files)
    read_run(reading, run_files[0])
    refuse_without(reading)
    yield from ()


def read_run(reading: ImportSession, path: Path) -> None:
    """Add the scalars of a run file to the session.

    Raises:
        TraceError: the file is damaged.
    """
    rows: list[dict[str, float]] = []
    try:
        with reading.open(path) as stream:
            for number, message in enumerate(wandb_records(path, stream, reading.guard), start=1):
                try:
                    rows += [_row(field.value) for field in fields(message) if field.number == HISTORY]
                except ValueError as error:
                    raise TraceError(f"{path}: record {number} has {error}; an intact wandb run file is needed") from error
    except IncompleteRecordError:
        reading.note(f"{path.name}: the last record is incomplete and was left out")
    add_rows(reading, path, rows)


def _row(message: Any) -> dict[str, float]:
    """Return the metrics of one row that are finite numbers."""
    row = {}
    for item in fields(message) if isinstance(message, bytes) else ():
        if item.number != ITEM or not isinstance(item.value, bytes):
            continue
        name, text = "", b""
        for field in fields(item.value):
            if field.number in (KEY, NESTED_KEY) and isinstance(field.value, bytes):
                name += ("." if name else "") + field.value.decode("utf-8", "replace")
            elif field.number == VALUE_JSON and isinstance(field.value, bytes):
                text = field.value
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue  # wandb's own charts and texts
        number = finite(value) if is_number(value) else None
        if number is not None:
            row[name] = number
    return row


FORMAT = Format("wandb", "a run file of wandb (run-*.wandb)", detect, read)
