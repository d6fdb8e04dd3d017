"""Derives a logged run's times per step from its spans and response times, where the logged scalars do not have them.

Spans take precedence. The time of a phase is what at least one of its foreground spans covers, on the run's own clock. Outside
generation, time that an earlier column already has is not counted again. In steps without spans of generation, its time is from
the first start to the last end of their responses. All of them must have times. Both are valid only if no other step generates
at the same time. In asynchronous training several do; such steps get no generation time here. Where some responses of a step
lack a time, the step took at least from its first known time to its last. This is a lower bound and not a time of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.intervals import partition_s
from rlhfless.trace.metrics.phase_costs import STEP_PHASE

COLUMNS = {"generate_s": "generation", "learn_s": "learning", "prepare_s": "preparation", "sync_s": "sync"}
"""Columns of the scalars, and which of ``STEP_PHASES`` each is."""

OVERLAP = 0.01  # share of a step's generation that another step's may reach into: clocks differ


NO_BOUNDS = pd.Series(dtype=float)


class StepTimes(NamedTuple):
    """Averages per step of a run, completed with times derived from its spans.

    Attributes:
        scalars: the given rows; columns of ``COLUMNS`` that had no value at all are filled where times were found; sorted by
            step, with new rows where needed.
        overlapping: steps without a generation time, because other steps generated at the same time.
        at_least_s: lower bounds on the seconds of generation, by step, for steps in which some responses lack a time.
    """

    scalars: pd.DataFrame
    overlapping: tuple[int, ...] = ()
    at_least_s: pd.Series = NO_BOUNDS


def with_step_times(scalars: pd.DataFrame, trace: Trace) -> StepTimes:
    """Return the averages per step of a logged run, completed with the times in its trace; given values are not changed.

    Args:
        scalars: one row per ``step``; may be empty.
        trace: the trace of the same run. A trace with allocations (an executed run), or of several runs, adds nothing.
    """
    lacking = [name for name in COLUMNS if name not in scalars.columns or not scalars[name].notna().any()]
    if len(trace.allocations) or len(trace.runs) > 1 or not lacking:
        return StepTimes(scalars)
    times, extents = _of_spans(trace.spans)
    of_responses = _of_responses(trace.rollouts)
    of_responses = of_responses[~of_responses.index.isin(extents.index)]
    took_s = of_responses["end_s"] - of_responses["start_s"]
    whole = of_responses["whole"].astype(bool)
    times = times.reindex(times.index.union(took_s.index))
    times["generate_s"] = times["generate_s"].fillna(took_s[whole])
    extents = pd.concat([frame for frame in (extents, of_responses) if len(frame)] or [extents])
    overlapping = _overlapping(extents)
    times.loc[overlapping, "generate_s"] = np.nan
    lacks = "generate_s" in lacking
    at_least_s = took_s[~whole & ~took_s.index.isin(overlapping) & (took_s > 0)] if lacks else NO_BOUNDS
    left_out = tuple(sorted(map(int, overlapping))) if lacks else ()
    times = times[[name for name in lacking if times[name].notna().any()]].dropna(how="all").rename_axis("step")
    if times.empty:
        return StepTimes(scalars, left_out, at_least_s)
    if scalars.empty:
        return StepTimes(times.reset_index(), left_out, at_least_s)
    filled = scalars.assign(**{name: scalars["step"].map(times[name]) for name in times.columns})
    further = times[~times.index.isin(scalars["step"])].reset_index()
    both = pd.concat([filled, further]) if len(further) else filled
    return StepTimes(both.sort_values("step", kind="stable", ignore_index=True), left_out, at_least_s)


def _of_spans(spans: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return, by step, seconds of ``COLUMNS``, NaN without a span; and ``start_s, end_s`` of generation, where it has spans."""
    foreground = spans[~spans["background"].to_numpy(dtype=bool)]
    seconds: dict[int, dict[str, float]] = {}
    extents: dict[int, dict[str, float]] = {}
    for step, step_spans in foreground.groupby("step", sort=True):
        start_s, end_s = step_spans["start_s"].to_numpy(dtype=float), step_spans["end_s"].to_numpy(dtype=float)
        label = step_spans["phase"].map(STEP_PHASE).to_numpy()
        recorded = {column: phase for column, phase in COLUMNS.items() if (label == phase).any()}
        spent = partition_s(label, start_s, end_s, recorded.values())
        seconds[int(step)] = {column: spent[phase] for column, phase in recorded.items()}
        if "generate_s" in recorded:
            generating = label == COLUMNS["generate_s"]
            extents[int(step)] = {"start_s": start_s[generating].min(), "end_s": end_s[generating].max()}
    return _frame(seconds, list(COLUMNS)), _frame(extents, ["start_s", "end_s"])


def _of_responses(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Return, by step, first and last known time of its responses (``start_s, end_s``), and whether all have both
    (``whole``)."""
    known = rollouts.reindex(columns=["start_s", "end_s"]).astype(float)
    steps = known.groupby(rollouts["step"])
    first_s, last_s = steps.min().min(axis=1), steps.max().max(axis=1)
    whole = known.notna().all(axis=1).groupby(rollouts["step"]).all()
    return pd.DataFrame({"start_s": first_s, "end_s": last_s, "whole": whole}).dropna()


def _overlapping(extents: pd.DataFrame) -> pd.Index:
    """Return the steps whose generation overlaps with another step's."""
    ordered = extents.sort_values("start_s", kind="stable")
    start_s, end_s = ordered["start_s"].to_numpy(dtype=float), ordered["end_s"].to_numpy(dtype=float)
    before = np.concatenate([[-np.inf], np.maximum.accumulate(end_s)])[: len(end_s)]  # the last end of those that began earlier
    after = np.append(start_s, np.inf)[1:]
    shared_s = np.maximum(np.minimum(before, end_s) - start_s, end_s - after)
    return ordered.index[shared_s > OVERLAP * (end_s - start_s)]


def _frame(rows: dict[int, dict[str, float]], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), dtype="int64"), columns=columns, dtype=float)
