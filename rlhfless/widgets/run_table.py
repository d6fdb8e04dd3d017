"""Tables that compare several runs or policies, with differences marked. ``compare`` without its widgets.

Input are traces by name; the first is the base of the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rlhfless.trace import Limits, Trace, TraceError, read_trace, step_metrics
from rlhfless.trace.metrics.step_metrics import total_usd
from rlhfless.widgets.loaded_run import LoadedRun

SUMS = ("time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd")
LESS_IS_BETTER = (*SUMS, "idle_share")
COLUMNS = (*SUMS, "idle_share", "actors", "responses", "response_tokens_mean", "reward_mean", "truncated_share")
NOTICED = 0.005
"""Relative differences that are smaller are not marked."""


class Compared(NamedTuple):
    """Tables of several runs.

    Attributes:
        table: one row per name, over the steps that all have: sums of times and costs, means of ``actors`` and the other
            columns.
        relative: the same relative to the first row, minus 1.
        marks: ``better``, ``worse``, ``differs`` (where neither is) or the empty text, in the same cells.
        steps: the steps that all of them have.
        differs: what the runs' descriptions differ in: ``name`` → one text per run.
    """

    table: pd.DataFrame
    relative: pd.DataFrame
    marks: pd.DataFrame
    steps: list[int]
    differs: dict[str, list[str]]


def read_run(trace: LoadedRun | Trace | str | Path, name: str = "", limits: Limits | None = None) -> Trace:
    """Return a trace, that of a loaded run, or read it from its folder.

    Args:
        name: the user's name for it, for messages. limits: maximal amounts to read of its folder; None takes the default.

    Raises:
        TraceError: it is neither, or cannot be read.
    """
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, LoadedRun):
        return trace.trace
    if isinstance(trace, str | Path):
        return read_trace(trace, limits)
    raise TraceError(
        f"{name}{': ' if name else ''}a {type(trace).__name__} is no trace; a Trace or the path of a trace folder is needed"
    )


def read_runs(traces: Mapping[str, LoadedRun | Trace | str | Path], limits: Limits | None = None) -> dict[str, Trace]:
    """Return name to trace, from traces, loaded runs and folders; ``limits`` as in ``read_run``.

    Raises:
        TraceError: they have no names, or one is no trace.
    """
    if not isinstance(traces, Mapping):
        raise TraceError(f"the runs are given as a {type(traces).__name__}; a mapping from names to traces is needed")
    return {name: read_run(trace, str(name), limits) for name, trace in traces.items()}


def compared(
    traces: Mapping[str, LoadedRun | Trace | str | Path], step: int | None = None, *, limits: Limits | None = None
) -> Compared:
    """Compare the numbers of several traces.

    Args:
        traces: name to trace, loaded run or trace folder; each of one run.
        step: this one alone; all steps that they share when None.
        limits: see ``read_run``.

    Raises:
        TraceError: there is none, one is no trace or holds several runs, or they share no step.
    """
    traces = read_runs(traces, limits)
    if not traces:
        raise TraceError("there are no traces to compare; at least one is needed")
    for trace in traces.values():
        _ = trace.run  # refuses several runs
    steps = sorted(set.intersection(*(set(trace.steps) for trace in traces.values())))
    steps = steps if step is None else [number for number in steps if number == step]
    if not steps:
        what = "no step" if step is None else f"no step {step!r:.80}"
        raise TraceError(f"the traces have {what} in common; give runs of the same steps")
    rows = {}
    for name, trace in traces.items():
        metrics = step_metrics(trace)
        of_run = metrics[metrics["step"].isin(steps)]
        sums = of_run[list(SUMS)].sum(min_count=1).astype(float)
        sums["cost_usd"] = total_usd(of_run)
        weights = of_run["responses"].astype(float)
        means = {
            key: float((of_run[key].astype(float) * weights).sum() / weights.sum())
            if of_run[key].notna().all()
            else float("nan")
            for key in ("response_tokens_mean", "reward_mean", "truncated_share")
        }
        rows[str(name)] = {
            **sums,
            "idle_share": sums["idle_gpu_seconds"] / sums["gpu_seconds"] if sums["gpu_seconds"] > 0 else float("nan"),
            "actors": float(of_run["actors"].astype(float).mean()),
            "responses": float(weights.sum()),
            **means,
        }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).astype(float)
    first = table.iloc[0]
    relative = table / first.where(first != 0) - 1
    marks = relative.apply(lambda column: column.map(lambda change: _mark(str(column.name), change)))
    return Compared(table, relative, marks, steps, _differs(traces))


def _mark(column: str, change: float) -> str:
    if not abs(change) > NOTICED:
        return ""
    if column in LESS_IS_BETTER:
        return "better" if change < 0 else "worse"
    return ("better" if change > 0 else "worse") if column == "reward_mean" else "differs"


def _differs(traces: Mapping[str, Trace]) -> dict[str, list[str]]:
    """Differences between the descriptions of the runs; cluster and configuration are compared entry by entry."""
    flat = []
    for trace in traces.values():
        values_of: dict[str, str] = {}
        for key, value in trace.meta.items():
            if isinstance(value, dict):
                values_of |= {f"{key}.{name}": str(inner) for name, inner in value.items()}
            elif key != "steps":
                values_of[key] = str(value)
        flat.append(values_of)
    names = sorted({name for values_of in flat for name in values_of})
    columns = {name: [values_of.get(name, "not recorded") for values_of in flat] for name in names}
    return {name: values for name, values in columns.items() if len(set(values)) > 1}
