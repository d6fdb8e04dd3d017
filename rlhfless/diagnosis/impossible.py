"""Values of a log that are not possible, such as a share above 1: each is named, and no arithmetic uses it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.phases import own_names

SHARES = ("truncation_rate", "no_signal_rate")
ROUNDED = 1.001  # times the longest response: a mean above it is no matter of rounding


def without_impossible(run: LoggedRun) -> tuple[LoggedRun, tuple[str, ...]]:
    """Return a run whose impossible shares and lengths are unknown, and a sentence on each.

    Seconds are checked where phases are (``phases.step_seconds``).

    Example:
        >>> import pandas as pd
        >>> run, notes = without_impossible(LoggedRun("log", "", pd.DataFrame({"step": [3], "truncation_rate": [1.3]})))
        >>> notes
        ('truncation_rate is 1.300, above 1, in step 3; not used.',)
    """
    unknown: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for columns, wrong, what in _impossible(run):
        unknown |= {name: np.where(wrong, np.nan, run.column(name)) for name in columns}
        notes.append(f"{_name(run, columns[0])} is {what}, in {_steps(run, wrong)}; not used.")
    return (replace(run, steps=run.steps.assign(**unknown)) if unknown else run), tuple(notes)


def _impossible(run: LoggedRun) -> Iterator[tuple[tuple[str, ...], np.ndarray, str]]:
    """Columns, the steps in which their values are impossible, and what these are."""
    for name in SHARES:
        share = run.column(name)
        wrong = (share < 0) | (share > 1)
        if wrong.any():
            first = share[wrong][0]
            yield (name,), wrong, f"{first:.3f}, {'above 1' if first > 1 else 'below 0'}"
    mean, longest = run.column("response_tokens_mean"), run.column("response_tokens_max")
    wrong = mean > ROUNDED * longest
    if wrong.any():
        values = f"{mean[wrong][0]:,.0f}, above {_name(run, 'response_tokens_max')}, {longest[wrong][0]:,.0f}"
        yield ("response_tokens_mean", "response_tokens_max"), wrong, values


def _name(run: LoggedRun, column: str) -> str:
    """The framework's own name of a column, where it has one."""
    return next(iter(own_names(run, column)), column)


def _steps(run: LoggedRun, which: np.ndarray) -> str:
    steps = run.steps["step"].to_numpy()[which]
    return f"step {steps[0]}" + (f" and {len(steps) - 1:,} more" if len(steps) > 1 else "")
