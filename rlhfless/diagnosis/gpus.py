"""The GPUs of a run, as its user states them or its log names them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlhfless.diagnosis.logged_run import LoggedRun

MOST_GPUS = 1e6  # of one run; more is no number of GPUs
ROUNDED = 0.02  # relative difference to a whole number of GPUs that rounded logs leave


class Gpus(NamedTuple):
    """GPUs of a run; None where nobody says it.

    Attributes:
        total: of the run. generate, train: of each side, where they are different GPUs.
    """

    total: float | None
    generate: float | None
    train: float | None


def gpus_of(run: LoggedRun) -> Gpus:
    """Return the GPUs that were stated, else those that the log names; of the two sides, one follows from the other."""
    stated = run.stated
    total = _first(stated.gpus, same_in_all(run, "gpus"), run.facts.get("gpus"), gpus_of_throughput(run))
    generate = _first(stated.gpus_generate, same_in_all(run, "gpus_generate"))
    train = _first(stated.gpus_train, same_in_all(run, "gpus_train"))
    if generate is not None and train is not None and generate + train > (total or 0):
        total = generate + train
    if total is not None and generate is not None and train is None and generate < total:
        train = total - generate
    if total is not None and train is not None and generate is None and train < total:
        generate = total - train
    return Gpus(total, generate, train)


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
