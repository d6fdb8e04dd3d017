"""The GPUs of a run, as its user states them or its log names them.

A column of a table of runs comes first: one stated number cannot be that of runs of several sizes. All else that a log tells,
such as ``perf/throughput``, is about the GPUs that its framework counts, so what a user states comes before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Number, counted

MOST_GPUS = 1e6  # of one run; more is no number of GPUs
ROUNDED = 0.02  # relative difference to a whole number of GPUs that rounded logs leave


class Gpus(NamedTuple):
    """GPUs of a run; None if unknown.

    Attributes:
        total: of the run. generate, train: of each side, where they are different GPUs.
    """

    total: float | None
    generate: float | None
    train: float | None


def gpus_of(run: LoggedRun) -> Gpus:
    """Return the GPUs of the log's own columns, else those stated, else what the log tells otherwise.

    Of the two sides, one follows from the other.
    """
    stated = run.stated
    own = same_in_all(run, "gpus")
    total = _first(own, stated.gpus, *recorded(run).values())
    sides = _first(stated.gpus_generate), _first(stated.gpus_train)
    if own is not None and sum(side or 0 for side in sides) > own:
        sides = None, None  # stated of a run of another size
    generate = _first(same_in_all(run, "gpus_generate"), sides[0])
    train = _first(same_in_all(run, "gpus_train"), sides[1])
    if generate is not None and train is not None and generate + train > (total or 0):
        total = generate + train
    if total is not None and generate is not None and train is None and generate < total:
        train = total - generate
    if total is not None and train is not None and generate is None and train < total:
        generate = total - train
    return Gpus(total, generate, train)


def generating_gpus(run: LoggedRun, derived: Number | None) -> float | None:
    """Return the GPUs that generate: those of their side, else those that a rate per generating GPU tells, else all.

    Args:
        derived: by that rate. It counts where it is fewer than all by more than rounding: training has GPUs of its own then.
    """
    gpus = gpus_of(run)
    if gpus.generate is not None or derived is None:
        return gpus.generate or gpus.total
    return derived.value if gpus.total is None or derived.high * (1 + SAME) < gpus.total else gpus.total


def recorded(run: LoggedRun) -> dict[str, float]:
    """Return the GPUs of a log by what it has beside its columns: a recorded cluster, or a rate per GPU."""
    ways = {"the recorded cluster": run.facts.get("gpus"), "perf/throughput, which is per GPU": gpus_of_throughput(run)}
    return {way: float(value) for way, value in ways.items() if value is not None}


class GpusInWords(NamedTuple):
    """The GPUs of a run in words: how many, and who says so.

    Attributes:
        sentence: without the full stop; empty where nobody says it. contradicts: whether the log has another number.
    """

    sentence: str = ""
    contradicts: bool = False


NOT_STATED = GpusInWords()
SAME = 0.02  # relative difference of two ways to one number of GPUs


def gpus_in_words(run: LoggedRun, derived: Number | None, *, apart: bool) -> GpusInWords:
    """Return the GPUs of a run in words, and whether what was stated contradicts the log.

    Args:
        derived: the GPUs that follow from counts and rates of the log; as ``gpus_generate``, training may have others.
        apart: whether training has GPUs of its own.
    """
    gpus, stated = gpus_of(run), run.stated.gpus
    sides = same_in_all(run, "gpus_generate"), same_in_all(run, "gpus_train")
    own = {"its own count": same_in_all(run, "gpus"), **recorded(run)}
    if None not in sides:
        own = {"its own count": sum(filter(None, sides))}
    generating = derived is not None and derived.key == "gpus_generate"
    if derived is not None and stated is not None and _within(stated, derived):
        own[derived.how] = float(stated)
    elif derived is not None and not (stated is not None and (apart or (generating and stated > derived.high))):
        own[derived.how] = float(round(derived.value))
    known = {way: value for way, value in own.items() if value is not None}
    divided = "" if None in sides else f": {sides[0]:,.0f} generate and {sides[1]:,.0f} train"
    if stated is None:
        if not known:
            return NOT_STATED
        way, value = next(iter(known.items()))
        which = " that generate" if generating and derived is not None and way == derived.how else ""
        return GpusInWords(f"{value:,.0f}{which}, as the log has it{divided}")
    of_sides = run.stated.gpus_generate, run.stated.gpus_train
    if None not in (*sides, *of_sides) and of_sides != sides:
        said = f"you stated {of_sides[0]:,.0f} that generate and {of_sides[1]:,.0f} that train"
        return GpusInWords(f"{said}, and the log has {sides[0]:,.0f} and {sides[1]:,.0f}; the log's are used", contradicts=True)
    if None not in sides and stated in (sides[0], gpus.total):
        read = "--gpus is read as those that generate" if stated == sides[0] else "--gpus is read as all of them"
        by = "" if run.stated.gpus_generate is not None else f"; {read}"
        return GpusInWords(f"{gpus.total:,.0f}, as the log has it{divided}{by}")
    other = {way: value for way, value in known.items() if value != stated}
    if other:
        said = "; ".join(f"{value:,.0f} by {way}" for way, value in other.items())
        counts = f"what follows is for {counted(gpus.total or stated, 'GPU')}"
        return GpusInWords(f"you stated {stated:,}, and the log has {said}{divided}; {counts}", contradicts=True)
    if known:
        return GpusInWords(f"{stated:,}, as you stated and as the log has it")
    whose = "; they are read as all of them, as no --learner-gpus is given" if apart and gpus.generate is None else ""
    return GpusInWords(f"{stated:,}, as you stated, not in the log{whose}")


def _within(stated: int, derived: Number) -> bool:
    """Return whether a derived number of GPUs may be the stated one: rates are means, which the log rounds."""
    return derived.low * (1 - SAME) <= stated <= derived.high * (1 + SAME)


def were_stated(gpus: int) -> str:
    """Return how many GPUs a user stated, as the start of a sentence."""
    return f"{counted(gpus, 'GPU')} {'was' if gpus == 1 else 'were'} stated"


def gpus_of_throughput(run: LoggedRun) -> float | None:
    """Return the GPUs by verl's ``perf/throughput``, which is the tokens of a step per second and GPU; None where it is not
    logged, or gives no whole number that is the same in all steps.
    """
    per_s = run.column("tokens_total") / np.where(run.column("step_s") > 0, run.column("step_s"), np.nan)
    per_gpu = run.column("perf/throughput")
    gpus = per_s / np.where(per_gpu > 0, per_gpu, np.nan)
    gpus = gpus[np.isfinite(gpus)]
    whole = np.unique(np.round(gpus))
    same = len(whole) == 1 and whole[0] >= 1 and bool((np.abs(gpus - whole[0]) <= ROUNDED * whole[0]).all())
    return float(whole[0]) if same else None


def same_in_all(run: LoggedRun, column: str) -> float | None:
    """Return the value above 0 of a column that is equal in all steps that have it; None where it differs or is unknown."""
    values = np.unique(run.column(column))
    values = values[values > 0]
    return float(values[0]) if len(values) == 1 else None


def _first(*values: float | None) -> float | None:
    return next((float(value) for value in values if value is not None and 0 < value <= MOST_GPUS), None)
