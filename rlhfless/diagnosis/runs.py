"""Several runs or layouts of GPUs side by side: GPU-hours per step or item, how well more GPUs scale, cheapest and fastest.

Runs are compared by the same unit: steps, which then are taken to have the same work, or items where the log counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from rlhfless.diagnosis.asynchronous import waits_for_nothing
from rlhfless.diagnosis.gpus import gpus_of
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import DERIVED, GPU_HOURS, TIME, Collected, Finding, Number, Part, number
from rlhfless.diagnosis.phases import medians, step_seconds
from rlhfless.diagnosis.whole_run import LARGEST
from rlhfless.trace.importers.scalars import RUN, runs_of
from rlhfless.trace.schema.casts import shown

COLUMNS = ["run", "gpus", "gpus_generate", "gpus_train", "unit", "seconds", "gpu_hours"]
SAME = 0.02  # relative difference of times that are taken as equal
WORTH_SAYING = 0.03


def runs(run: LoggedRun, found: Collected) -> Part:
    """Return how the runs of a log compare; nothing of a log of one run."""
    table = runs_frame(run)
    if len(table) < 2:
        return Part()
    notes = _surplus(run)
    unit = _common_unit(table)
    if unit is None:
        notes.append("The runs are not compared: no two of them have seconds per step, or per item.")
        return Part(notes=tuple(notes))
    compared = table[table["unit"] == unit].reset_index(drop=True)
    if len(compared) < len(table):
        left_out = ", ".join(shown(name, 40) for name in table.loc[table["unit"] != unit, "run"])
        notes.append(f"Without seconds per {unit}, and not compared: {left_out}.")
    if unit == "step":
        notes.append("Steps of different runs are compared as if each had the same work.")
    if medians(run):
        notes.append("Medians do not add up: the median of a step is not the sum of the medians of its phases.")
    numbers = list(_numbers(compared, unit))
    if len(compared) < 2:
        return Part(tuple(numbers), notes=tuple(notes))
    pair_numbers, said = _scaling(compared, unit)
    return Part((*numbers, *pair_numbers), tuple(_findings(compared, unit, said)), notes=tuple(notes))


def _surplus(run: LoggedRun) -> list[str]:
    """Say which layouts, of several, generate more than training takes."""
    idle = [(name, gpus_of(one)) for name, one in each_run(run) if waits_for_nothing(one)]
    known = [f"{shown(name, 60)} ({of.generate:,.0f} + {of.train:,.0f} GPUs)" for name, of in idle if of.generate and of.train]
    if len(known) < 2:
        return []
    return [
        f"Training waits for nothing in {' and '.join(known)}: in each, the next GPU belongs to training, not to generation."
    ]


def each_run(run: LoggedRun) -> Iterator[tuple[str, LoggedRun]]:
    """Yield the runs of a log of scalars by name; of a log that names none, itself with an empty name."""
    names = runs_of(run.steps)
    if not names:
        yield "", run
    for name in names:
        yield name, replace(run, steps=run.steps[run.steps[RUN] == name].reset_index(drop=True))


def runs_frame(run: LoggedRun) -> pd.DataFrame:
    """Return one row per run: ``run, gpus, gpus_generate, gpus_train, unit, seconds, gpu_hours``; NaN where unknown.

    ``unit`` is "item" where the run counts items, else "step"; seconds and GPU-hours are per unit.
    """
    rows = []
    for name, one in each_run(run):
        gpus, (unit, seconds) = gpus_of(one), _seconds_per_unit(one)
        gpu_hours = np.nan if gpus.total is None else gpus.total * seconds / 3600
        rows.append((name, gpus.total, gpus.generate, gpus.train, unit, seconds, gpu_hours))
    numbers = dict.fromkeys(COLUMNS[1:4] + COLUMNS[5:], float)
    return pd.DataFrame(rows, columns=COLUMNS).astype(numbers)


def _seconds_per_unit(run: LoggedRun) -> tuple[str, float]:
    """Mean seconds per item, else per step, of the run's rows; NaN where unknown."""
    took, items, steps = (_positive(run, name) for name in ("run_s", "items", "steps_done"))
    for unit, count in (("item", items), ("step", steps)):
        both = ~np.isnan(took) & ~np.isnan(count)
        if both.any():
            return unit, float(took[both].sum() / count[both].sum())
    seconds = step_seconds(run)
    usual = seconds.ordinary(seconds.step_s)
    if usual.any():
        return "step", float(seconds.step_s[usual].mean())
    whole = took[~np.isnan(took)]
    return ("run", float(whole.mean())) if len(whole) else ("", np.nan)


def _positive(run: LoggedRun, name: str) -> np.ndarray:
    values = run.column(name)
    return np.where((values > 0) & (values <= LARGEST), values, np.nan)


def _common_unit(table: pd.DataFrame) -> str | None:
    """The unit that most of the runs have; None if none has any."""
    units = table.loc[table["unit"] != "", "unit"]
    return None if units.empty else str(units.value_counts().index[0])


def _numbers(table: pd.DataFrame, unit: str) -> Iterator[Number]:
    for row in table.itertuples():
        key = f"runs/{shown(row.run, 60)}"
        yield number(f"{key}/{unit}_s", row.seconds, DERIVED, f"seconds per {unit}")
        if not np.isnan(row.gpu_hours):
            how = f"{row.gpus:,.0f} GPUs for the seconds of a {unit}"
            yield number(f"{key}/gpu_hours_per_{unit}", row.gpu_hours, DERIVED, how)


def _scaling(table: pd.DataFrame, unit: str) -> tuple[list[Number], list[str]]:
    """How well each larger run scales against the smallest one, and from which size on more GPUs win nothing."""
    known = table.dropna(subset=["gpus"]).sort_values(["gpus", "seconds"], kind="stable")
    sizes = known.drop_duplicates("gpus")  # the fastest layout of each size
    if len(sizes) < 2:
        return [], []
    least = sizes.iloc[0]
    numbers, said = [], []
    for row in sizes.iloc[1:].itertuples():
        efficiency = least["gpu_hours"] / row.gpu_hours
        how = f"GPU-hours per {unit} of {shown(least['run'], 60)} over its own; 1 is perfect scaling"
        numbers.append(number(f"runs/{shown(row.run, 60)}/scaling_efficiency_share", efficiency, DERIVED, how))
    last = sizes.iloc[-1]
    numbers.append(number("scaling_efficiency_share", numbers[-1].value, DERIVED, numbers[-1].how))
    faster = f"{least['seconds'] / last['seconds']:.2f} times as fast"
    said.append(
        f"From {least['gpus']:,.0f} to {last['gpus']:,.0f} GPUs a {unit} is {faster}, {numbers[-1].value:.0%} of what perfect "
        "scaling would give."
    )
    for smaller, larger in zip(sizes.iloc[:-1].itertuples(), sizes.iloc[1:].itertuples(), strict=True):
        if larger.seconds >= (1 - SAME) * smaller.seconds:
            said.append(
                f"From {smaller.gpus:,.0f} to {larger.gpus:,.0f} GPUs nothing is won: {smaller.seconds:,.4g} and "
                f"{larger.seconds:,.4g} s per {unit}."
            )
            break  # the first size from which on more is of no use
    return numbers, said


def _findings(table: pd.DataFrame, unit: str, said: list[str]) -> Iterator[Finding]:
    """What the choice of the GPUs decides: the fastest, the cheapest, and how they scale; nothing of unknown GPUs."""
    known = table.dropna(subset=["gpu_hours"])
    if len(known) < 2:
        return
    fastest, slowest = known.loc[known["seconds"].idxmin()], known.loc[known["seconds"].idxmax()]
    cheapest, dearest = known.loc[known["gpu_hours"].idxmin()], known.loc[known["gpu_hours"].idxmax()]
    in_time, in_gpu_hours = 1 - fastest["seconds"] / slowest["seconds"], 1 - cheapest["gpu_hours"] / dearest["gpu_hours"]
    at_stake, of = (float(in_time), TIME) if in_time > in_gpu_hours else (float(in_gpu_hours), GPU_HOURS)
    if at_stake < WORTH_SAYING:
        return
    sentence = (
        f"{shown(fastest['run'], 60)} is the fastest with {fastest['seconds']:,.4g} s per {unit}, and "
        f"{shown(cheapest['run'], 60)} is the cheapest with {cheapest['gpu_hours']:,.4g} GPU-hours per {unit}, where "
        f"{shown(dearest['run'], 60)} takes {dearest['gpu_hours']:,.4g}."
    )
    proof = [f"runs/{shown(one['run'], 60)}/gpu_hours_per_{unit}" for one in (cheapest, dearest)]
    yield Finding("layout", at_stake, " ".join([sentence, *said]), tuple(dict.fromkeys(proof)), of)
