"""Steps of a run from the metrics that a framework sent to TensorBoard or wandb, under the names of ``names.py``.

Where TRL logs the time of every call, to wandb, ``trl_profiling.py`` adds them up instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers import trl_profiling
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES, NO_TIMES, PHASES, Names, framework_of, unknown_phases
from rlhfless.trace.importers.scalars import RUN
from rlhfless.trace.importers.trl_steps import COUNTER, generations, whole_run

VALIDATION = "timing/validation"
"""Folder of NeMo-RL's seconds of validation, which the folder of a step's phases does not have."""


STEPS = ("_step", "step", "Step", "global_step", "trainer/global_step")
"""The step of a row, where its framework names none."""

LARGEST_STEP = 1 << 53


def refuse_without(reading: ImportSession) -> None:
    """Raise an error if nothing was found.

    Raises:
        TraceError: no step has a known scalar.
    """
    if not reading.scalars:
        raise TraceError(f"{reading.path}: {NO_TIMES}")


def add_rows(reading: ImportSession, path: Path, rows: Sequence[Mapping[str, float]], run: str | None = None) -> None:
    """Add the steps of rows of metrics, as wandb and trackio log them: a step may have several rows, a row few of the metrics.

    Args:
        path: of the log. run: its name, where the log has several.
    """
    if trl_profiling.profiled(rows) and run is None:
        trl_profiling.add_steps(reading, rows)
        return
    framework = framework_of({name for row in rows for name in row})
    own = None if framework is None else NAMES[framework].tracked_step
    key = next((key for key in (own, *STEPS) if key is not None and any(key in row for row in rows)), None)
    steps: dict[int, dict[str, float]] = {}
    for at, row in enumerate(rows):
        number = row.get(key, -1.0) if key is not None else float(at)  # rows without it are of no step
        if 0 <= number < LARGEST_STEP:
            steps.setdefault(int(number), {}).update(row)
        elif framework == "trl":
            reading.facts.update(whole_run(row))
    add_steps(reading, path, steps, run)


def add_steps(reading: ImportSession, path: Path, steps: Mapping[int, Mapping[str, float]], run: str | None = None) -> None:
    """Add standard columns of steps to the session's scalars, and a note of whose names they were.

    Nothing is added where no framework is known by the names; a note says so. Of TRL there is a row per generation
    (``trl_steps.generations``).

    Args:
        path: of the log. steps: metrics by step. run: its name, where the log has several.
    """
    framework = framework_of({name for values in steps.values() for name in values})
    if framework is None:
        reading.note(f"scalars: {path.name} {NO_TIMES}")
        return
    reading.framework, names = framework, NAMES[framework]
    if framework == "trl":  # as in its own log
        steps = {step: {_own(name, names): value for name, value in values.items()} for step, values in steps.items()}
        for values in steps.values():
            reading.facts.update(whole_run(values))
    else:
        names = names.tracked()
    used, timed = set(names.own()), [name for name in names.own("step_s", *PHASES) if not name.endswith("/total")]
    folders = {name.rpartition("/")[0] for name in timed} - {""}  # parts of a total are beside it
    folders |= {VALIDATION} if framework == "nemo-rl" else set()
    used |= {COUNTER} if framework == "trl" else set()
    rows = []
    for step in sorted(steps):
        values = {name: value for name, value in steps[step].items() if name in used or name.rpartition("/")[0] in folders}
        if columns := names.standard(steps[step]):
            rows.append({**values, **columns, "step": step})
            reading.guard.check_rows(path, len(reading.scalars) + len(rows))
    if framework == "trl":
        rows = generations(rows, reading)
    reading.scalars += [row if run is None else {**row, RUN: run} for row in rows]
    reading.note(f"scalars: under {names.title}'s names")
    for sentence in unknown_phases(names, (name for row in reading.scalars for name in row)):
        reading.note(sentence)


def _own(name: str, names: Names) -> str:
    return name.removeprefix(names.tracked_prefix)
