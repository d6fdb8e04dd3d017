"""Derives a logged run's times per step from its spans and response times, where the logged scalars do not have them.

Spans take precedence. The time of a phase is what at least one of its foreground spans covers, on the run's own clock; outside
generation, time that an earlier column already has is not counted again. Without spans of generation, its time is from the
first start to the last end of a step's responses, if all of them have times. Both are valid only if no other step generates at
the same time. In asynchronous training several do; such steps get no generation time here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.phase_costs import SPAN_PHASES
from rlhfless.trace.metrics.step_metrics import interval_union_s

COLUMNS = {"generate_s": "generation", "learn_s": "learning", "prepare_s": "preparation", "sync_s": "sync"}
"""Columns of the scalars, and which of ``STEP_PHASES`` each is."""

OVERLAP = 0.01  # share of a step's generation that another step's may reach into: clocks differ


class StepTimes(NamedTuple):
    """Scalars of a run, completed by derived times.

    Attributes:
        scalars: the given ones, and those of ``COLUMNS`` that had no value at all, where something was found; sorted by step,
            with further rows where needed.
        overlapping: steps without a generation time, because other steps generated at the same time.
    """

    scalars: pd.DataFrame
    overlapping: int


def with_step_times(scalars: pd.DataFrame, trace: Trace) -> StepTimes:
    """Return the scalars of a logged run, completed by the times in its trace; given values are not changed.

    Args:
        scalars: one row per ``step``, or none. trace: of the same run. A trace with allocations (an executed run) and a trace
            of several runs add nothing.
    """
    lacking = [name for name in COLUMNS if name not in scalars.columns or not scalars[name].notna().any()]
    if len(trace.allocations) or len(trace.runs) > 1 or not lacking:
        return StepTimes(scalars, 0)
    found, extents = _of_spans(trace.spans)
    if extents.empty:
        extents = _of_responses(trace.rollouts)
        took_s = (extents["end_s"] - extents["start_s"]).where(extents["whole"])
        found = found.reindex(found.index.union(extents.index)).assign(generate_s=took_s)
    overlapping = _overlapping(extents)
    found.loc[overlapping, "generate_s"] = np.nan
    found = found[[name for name in lacking if found[name].notna().any()]].dropna(how="all").rename_axis("step")
    count = len(overlapping) if "generate_s" in lacking else 0
    if found.empty:
        return StepTimes(scalars, count)
    if scalars.empty:
        return StepTimes(found.reset_index(), count)
    filled = scalars.assign(**{name: scalars["step"].map(found[name]) for name in found.columns})
    further = found[~found.index.isin(scalars["step"])].reset_index()
    both = pd.concat([filled, further]) if len(further) else filled
    return StepTimes(both.sort_values("step", kind="stable", ignore_index=True), count)


def _of_spans(spans: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """By step, seconds of ``COLUMNS``, NaN without a span; and ``start_s, end_s`` of generation, where it has spans."""
    foreground = spans[~spans["background"].to_numpy(dtype=bool)]
    seconds: dict[int, dict[str, float]] = {}
    extents: dict[int, dict[str, float]] = {}
    for step, own in foreground.groupby("step", sort=True):
        start_s, end_s = own["start_s"].to_numpy(dtype=float), own["end_s"].to_numpy(dtype=float)
        its = seconds.setdefault(int(step), {})
        covered, chosen = 0.0, np.zeros(len(own), dtype=bool)
        for column, phase in COLUMNS.items():
            spent = own["phase"].isin(SPAN_PHASES[phase]).to_numpy()
            if not spent.any():
                continue
            if column == "generate_s":
                extents[int(step)] = {"start_s": start_s[spent].min(), "end_s": end_s[spent].max()}
            chosen |= spent
            now = interval_union_s(start_s[chosen], end_s[chosen])
            its[column] = now - covered
            covered = now
    return _frame(seconds, list(COLUMNS)), _frame(extents, ["start_s", "end_s"])


def _of_responses(rollouts: pd.DataFrame) -> pd.DataFrame:
    """By step, first ``start_s`` and last ``end_s`` of its responses that have both, and whether all have (``whole``)."""
    if not {"start_s", "end_s"} <= set(rollouts.columns):
        return _frame({}, ["start_s", "end_s", "whole"])
    known = (rollouts["start_s"].notna() & rollouts["end_s"].notna()).to_numpy(dtype=bool)
    steps = rollouts[known].groupby("step")
    extents = steps.agg(start_s=("start_s", "min"), end_s=("end_s", "max")).astype(float)
    return extents.assign(whole=~extents.index.isin(rollouts.loc[~known, "step"]))


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
