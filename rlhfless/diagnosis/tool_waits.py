"""Waits for tools: how much of generation the slowest request spends in them, which no order of responses mends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlhfless.diagnosis.engine_speed import SLOWEST, generation_of_run, waits_for_tools
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    BOUND,
    COUNTED,
    GENERATION_TIME,
    TIME,
    Collected,
    Finding,
    Number,
    Part,
    mean_of,
    number,
)
from rlhfless.diagnosis.phases import step_seconds

WORTH_SAYING = 0.05  # of the time
MOSTLY = 0.5  # of generation: above it, lengths say little of when responses end
OF_ALL = "timing_s/agent_loop/tool_calls"  # verl: seconds of a request in its tools; beside it those of the slowest request
OF_SLOWEST = f"{SLOWEST}/tool_calls"
AT_MOST = "tools_of_generation_at_most_share"


class _Waits(NamedTuple):
    """Seconds of steps, (s,) each.

    Attributes:
        waited: of the slowest request in tools, or the longest that one waited. generation: of the step.
        least: that generation takes without any wait for tools. what: "request" or "response".
        slowest: whether they are of the one that ends last. counted: whether of single responses.
    """

    waited: np.ndarray
    generation: np.ndarray
    least: np.ndarray
    what: str
    slowest: bool
    counted: bool


def tool_waits(run: LoggedRun, found: Collected) -> Part:
    """Return the seconds that requests wait for tools, and what generation without these waits saves at most."""
    notes: list[str] = []
    waits = _counted(run) or _logged(run, notes)
    if waits is None:
        return Part(notes=tuple(notes))
    numbers = [_longest(waits)]
    mean_s = run.column(f"{OF_ALL}/mean")
    if not waits.counted and not np.isnan(mean_s).all():
        numbers.append(mean_of("tools_s_mean", mean_s, "steps", "mean seconds of a request in tools"))
    known = waits.generation > 0
    if not known.any():
        said = f"what share of generation waits for tools are, of up to {numbers[0].value:,.1f} s; its seconds would tell"
        return Part(tuple(numbers), cannot_say=(said,), notes=tuple(notes))
    waited, generation, least = (values[known] for values in (waits.waited, waits.generation, waits.least))
    saved = np.clip(np.minimum(waited, generation - least), 0.0, None)
    share = float(saved.sum() / generation.sum())
    how = "waits for tools, and no more than generation without what the slowest response takes beside its own"
    numbers.append(number(AT_MOST, share, BOUND, f"share of generation: {how}"))
    of_run = generation_of_run(run, found)
    at_stake, of = (share, GENERATION_TIME) if of_run is None else (of_run * share, TIME)
    if at_stake < WORTH_SAYING:
        return Part(tuple(numbers), notes=tuple(notes))
    who = f"the slowest {waits.what}" if waits.slowest else f"one {waits.what}"
    least_s = (1 - share) * generation.mean()
    sentence = (
        f"Tools: {who} waits {waited.mean():,.1f} of {generation.mean():,.1f} s of generation for tools; without such waits "
        f"generation takes at least {least_s:,.1f} s. No order of responses and no faster engine shortens them."
    )
    unknown = "which tools responses wait for, and whether these are slow or have too few workers"
    if not waits.slowest:
        line = "the end of each response" if waits.counted else OF_SLOWEST
        unknown += f"; whether what waits longest ends last ({line} would tell)"
    finding = Finding("waiting", at_stake, sentence, (numbers[0].key, AT_MOST), of)
    return Part(tuple(numbers), (finding,), cannot_say=(unknown,), notes=tuple(notes))


def mostly_tools(found: Collected) -> bool:
    """Return whether generation is mostly a wait for tools."""
    return (found.numbers.value(AT_MOST) or 0.0) > MOSTLY


def _longest(waits: _Waits) -> Number:
    whose = f"the slowest {waits.what}" if waits.slowest else f"the {waits.what} that waits longest"
    if waits.counted:
        return number("tools_s", float(waits.waited.mean()), COUNTED, f"waits between turns of {whose}, mean of the steps")
    return mean_of("tools_s", waits.waited, "steps", f"seconds in tools of {whose}")


def _counted(run: LoggedRun) -> _Waits | None:
    """Of the last response of each step where starts and ends are logged, else the longest of one response."""
    if run.responses is None or not (waits := waits_for_tools(run.responses)).any():
        return None
    rows = run.responses.assign(waits_s=waits)
    timed = {"start_s", "end_s"} <= set(rows.columns) and not rows[["start_s", "end_s"]].isna().any(axis=None)
    generate = dict(zip(run.steps["step"], run.column("generate_s"), strict=True)) if len(run.steps) else {}
    steps = []
    for step, each in rows.groupby("step"):
        if timed:
            ends = (each["end_s"] - each["start_s"].min()).to_numpy(dtype=float)
            own = each["waits_s"].to_numpy(dtype=float)
            steps.append((own[int(ends.argmax())], ends.max(), (ends - own).max()))
        else:
            steps.append((each["waits_s"].max(), generate.get(step, np.nan), 0.0))
    waited, generation, least = np.array(steps, dtype=float).T
    return _Waits(waited, generation, least, "response", timed, counted=True)


def _logged(run: LoggedRun, notes: list[str]) -> _Waits | None:
    """Of verl's slowest request, else the longest seconds in tools of one request."""
    slowest, longest = run.column(OF_SLOWEST), run.column(f"{OF_ALL}/max")
    waited = np.where(np.isnan(slowest), longest, slowest)
    generation = step_seconds(run).phases.get("generate_s", np.full(len(waited), np.nan))
    more = waited > generation
    if more.any():
        notes.append("Seconds of one request in tools are more than those of generation; not used where they are.")
    waited = np.where(more, np.nan, waited)
    used = waited >= 0
    if not (waited[used] > 0).any():
        return None
    least = np.nan_to_num(run.column("request_s_max"))  # without tools
    return _Waits(waited[used], generation[used], least[used], "request", not np.isnan(slowest[used]).any(), counted=False)
