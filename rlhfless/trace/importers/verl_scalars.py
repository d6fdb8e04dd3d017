"""Imports the scalars of verl's file logger: ``{experiment}.jsonl``, one line ``{"step": n, "data": {...}}`` per step.

Asynchronous trainers write several lines per step: of the side that generates, of training, and of validation. The log has no
responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rlhfless.trace.importers.console.grammar import Entry
from rlhfless.trace.importers.console.steps import Steps
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession, first_record
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.record import Record
from rlhfless.trace.importers.scalars import numbers

OF_EVERY_RUN = (
    "step_s", "generate_s", "prepare_s", "learn_s", "sync_s", "response_tokens_mean", "response_tokens_min",
    "response_tokens_max", "prompt_tokens_mean", "truncation_rate", "reward_mean",
)  # fmt: skip
OPTIONAL = {  # of runs with a reference model, with a critic, and of other trainers
    "timing_s/ref", "timing_s/values", "timing_s/update_critic", "timing_s/sync_rollout_weights", "perf/time_per_step",
    "timing_s/generate_async", "timing_s/param_sync", "timing_s/timing_s/param_sync", "timing_s/old", "timing_s/wait_prev_gen",
    "timing_s/generate_sequences",
}  # fmt: skip
EXPECTED = frozenset(NAMES["verl"].own(*OF_EVERY_RUN)) - OPTIONAL
"""Of the step's data; of its other scalars, which depend on the run, every number is kept."""


def detect(path: Path) -> bool:
    """Return whether the path is a file of JSON lines whose first record has ``step`` and ``data``."""
    if not path.is_file() or ".jsonl" not in path.suffixes:
        return False
    first = first_record(path)
    return "step" in first and isinstance(first.get("data"), dict)


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars; yields no responses. A record without data raises a ``TraceError``."""
    reading.expect([reading.path])
    names = NAMES["verl"]
    steps = Steps(names)
    for record in reading.records(reading.path):
        data = record.values.get("data")
        if not isinstance(data, dict):
            record.refuse("data", data, "an object of the step's scalars")
        values = numbers(Record(data, record.path, record.line), names.own())
        reading.fields.update(EXPECTED & values.keys())
        steps.add(Entry(record.line, record.whole("step"), values))
    reading.scalars += steps.rows()
    for note in steps.notes():
        reading.note(note)
    yield from ()


FORMAT = Format(
    "verl-scalars", "verl's scalars (the file logger's .jsonl)", detect, read,
    known_fields=EXPECTED | {"step", "data"}, expected=EXPECTED | {"step", "data"},
)  # fmt: skip
