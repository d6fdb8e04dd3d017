"""Adds up the seconds of a step's phases from TRL's profile in wandb.

The profile has a row for every call: ``profiling/Time taken: {Trainer}.{method}``. TRL logs ``step_time`` as seconds of its
``training_step``, over all micro-batches. Each of them calls ``_prepare_inputs``. Where a new batch is due, this generates,
scores and computes log-probabilities. What it takes outside generation and sending weights is preparation. What ``step_time``
has beyond it is learning, without the optimizer's own step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES, TRL_CALLS
from rlhfless.trace.importers.trl_steps import OF_RESPONSES
from solver.model.plurals import counted

CALL = re.compile(r"profiling/Time taken: \w+\.(.+)")
WHOLE = "_prepare_inputs"
SCORED = "_calculate_rewards"
STEP, STEP_TIME = "train/global_step", "train/step_time"


def profiled(rows: Iterable[Mapping[str, float]]) -> bool:
    """Return whether rows of metrics have times of TRL's calls."""
    return any(CALL.fullmatch(name) for row in rows for name in row)


def add_steps(reading: ImportSession, rows: Sequence[Mapping[str, float]]) -> None:
    """Add the seconds of each generation's phases to the session's scalars, at the step that logs it.

    Updates from the responses of an earlier step add their seconds to that step. An entry over several generations gives their
    mean. Calls of an evaluation are left out.

    Args:
        rows: metrics in the order in which they were logged.
    """
    reading.framework = "trl"
    calls: dict[str, list[float]] = {}
    before = learned = generated = left_out = 0
    complete = (0, 0)  # steps and generations before the last one, which may go on after the log's end
    for row in rows:
        for name, seconds in row.items():
            if match := CALL.fullmatch(name):
                calls.setdefault(match[1], []).append(seconds)
        if STEP not in row:
            continue
        if STEP_TIME not in row:
            if any(name.startswith("eval/") for name in row):
                calls = {}
            continue
        step = int(row[STEP])
        updates = step - before
        before = step
        if updates > len(calls.get(WHOLE, ())) or updates < 1:  # a run that was resumed: its first entry covers fewer steps
            left_out += 1
        else:
            if generations := _add(reading, row, step, updates, calls):
                complete = (learned, generated)
            learned, generated = learned + updates, generated + generations
        calls = {}
    reading.note("scalars: seconds of phases from TRL's profile; learning is without the optimizer's own step")
    steps, generations = complete if complete[1] else (learned, generated)
    if steps > generations > 0:
        reading.facts["steps_per_generation"] = steps / generations
    if left_out:
        reading.note(f"scalars: {counted(left_out, 'entry', 'entries')} after a resumption have no seconds of phases")


def _add(reading: ImportSession, row: Mapping[str, float], step: int, updates: int, calls: Mapping[str, list[float]]) -> int:
    """Add one entry of the log, which covers ``updates`` steps. Return the number of its generations."""
    prepared_s, generate_s, sync_s = (
        sum(sum(calls.get(name, ())) for name in names) for names in ((WHOLE,), TRL_CALLS["generate_s"], TRL_CALLS["sync_s"])
    )
    seconds = {
        "step_s": updates * row[STEP_TIME],
        "generate_s": generate_s,
        "prepare_s": max(0.0, prepared_s - generate_s - sync_s),
        "learn_s": max(0.0, updates * row[STEP_TIME] - prepared_s),
        "sync_s": sync_s,
    }
    generations = len(calls.get(SCORED, ())) or int(generate_s > 0)
    if generations:
        of_one = {name: value / generations for name, value in seconds.items()}
        shown = OF_RESPONSES if generations == 1 else ()  # means over several generations are of no step's responses
        logged = {name: value for name, value in NAMES["trl"].tracked().standard(row).items() if name in shown}
        reading.scalars.append({**logged, **of_one, "step": step})
    elif reading.scalars:
        for name in ("step_s", "prepare_s", "learn_s"):
            reading.scalars[-1][name] += seconds[name]
    return generations
