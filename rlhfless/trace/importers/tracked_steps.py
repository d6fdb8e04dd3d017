"""Steps of a run from the metrics that a framework sent to TensorBoard or wandb, under the names of ``names.py``.

TRL logs the time of every call instead, which ``trl_profiling.py`` adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES, NO_TIMES, framework_of, unknown_phases


def refuse_without(reading: ImportSession) -> None:
    """Raise an error if nothing was found.

    Raises:
        TraceError: no step has a known scalar.
    """
    if not reading.scalars:
        raise TraceError(f"{reading.path}: {NO_TIMES}")


def add_steps(reading: ImportSession, path: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    """Add standard columns of steps to the session's scalars, and a note of whose names they were.

    Nothing is added where no known framework logs its times under these names; a note says so.

    Args:
        path: of the log. steps: metrics by step.
    """
    framework = framework_of({name for values in steps.values() for name in values})
    if framework is None:
        reading.note(f"scalars: {path.name} {NO_TIMES}")
        return
    reading.framework, names = framework, NAMES[framework].tracked()
    used = set(names.own())
    for step in sorted(steps):
        values = {name: value for name, value in steps[step].items() if name in used}
        if columns := names.standard(values):
            row: dict[str, Any] = {**values, **columns, "step": step}
            reading.guard.check_rows(path, len(reading.scalars) + 1)
            reading.scalars.append(row)
    reading.note(f"scalars: seconds of phases under {names.title}'s names")
    for sentence in unknown_phases(names, (name for row in reading.scalars for name in row)):
        reading.note(sentence)
