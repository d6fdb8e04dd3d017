"""The GPUs of a run, as its user states them or its log names them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlhfless.diagnosis.logged_run import LoggedRun

MOST_GPUS = 1e6  # of one run; more is no number of GPUs


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
    of_log = run.facts.get("gpus", 0.0)
    total = _first(stated.gpus, _same(run, "gpus"), of_log if 0 < of_log <= MOST_GPUS else None)
    generate = _first(stated.gpus_generate, _same(run, "gpus_generate"))
    train = _first(stated.gpus_train, _same(run, "gpus_train"))
    if total is None and generate is not None and train is not None:
        total = generate + train
    if total is not None and generate is not None and train is None and generate < total:
        train = total - generate
    if total is not None and train is not None and generate is None and train < total:
        generate = total - train
    return Gpus(total, generate, train)


def _same(run: LoggedRun, column: str) -> float | None:
    """The value of a column that is equal in all steps that have it."""
    values = np.unique(run.column(column))
    values = values[(values > 0) & (values <= MOST_GPUS)]
    return float(values[0]) if len(values) == 1 else None


def _first(*values: float | None) -> float | None:
    return next((float(value) for value in values if value is not None), None)
