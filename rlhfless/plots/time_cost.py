"""Plots policies in the time-cost plane, with the front of plans and the lower bound of all policies.

Inputs are a table of results, a front and a bound, all for the same lengths: those that the policies ran with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.errors import InputError
from rlhfless.plots.clock import clock_of_results, with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines
from rlhfless.plots.palette import BOUND, policy_styles
from rlhfless.plots.plane import BELOW, OUTLINE, PLOT_PX, Range, axis_range, bound_line, bound_ticks, name_points, plans_line
from rlhfless.plots.style import clean, cut_axes, hover, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from solver.generation.pareto_front import Front

CURVE_POINTS = 200
MAX_LABELS, LONGEST_NAME = 14, 40  # more policies are named in the legend
BETTER_PX = (44, -34)  # from the tip of the arrow to the word
NAME = "policy"
"""The name of a policy's text, among the annotations, and the ``meta`` of its point: on a narrow page the legend names it."""
NEEDED = ("policy", "time_s", "gpu_seconds")


def results_by_policy(results: pd.DataFrame) -> pd.DataFrame:
    """Return sums per policy, in order of appearance: ``policy, time_s, gpu_seconds, bound_gpu_seconds, cost_usd``.

    A sum is NaN where a step's value is.

    Args:
        results: rows of policies and steps, or of policies; ``bound_cost_at_time`` counts as ``bound_gpu_seconds``.

    Raises:
        InputError: a column that is needed is missing.
    """
    absent = [name for name in NEEDED if name not in results.columns]
    if absent:
        raise InputError(f"the results have no column {absent[0]!r}; {', '.join(NEEDED)} are needed")
    table = results.rename(columns={"bound_cost_at_time": "bound_gpu_seconds"})
    for name in ("bound_gpu_seconds", "cost_usd"):
        table = table if name in table else table.assign(**{name: np.nan})
    numbers = ["time_s", "gpu_seconds", "bound_gpu_seconds", "cost_usd"]
    table = table[table[["time_s", "gpu_seconds"]].gt(0).all(axis=1)]
    sums = table.groupby("policy", sort=False)[numbers].agg(lambda values: values.astype(float).sum(skipna=False))
    return sums.reset_index()


def plot_plane(
    results: pd.DataFrame,
    front: Front | None = None,
    bound: Callable[[float], float] | tuple[ArrayLike, ArrayLike] | None = None,
    *,
    title: str = "Time and cost of each policy",
    note: str = "",
    names: Mapping[str, str] | None = None,
) -> DataFigure:
    """Plot time and cost of every policy; further to the lower left is better.

    Args:
        results: ``policy, time_s, gpu_seconds`` and, where known, ``bound_gpu_seconds`` (the bound at the policy's own time)
            and ``cost_usd``; several rows of a policy are added up, and the subtitle says how many.
        front: plans that no other plan beats, made for the lengths that the policies ran with, as the bound is: a front for
            predicted lengths can lie below that bound.
        bound: least GPU-seconds at a time, as a function or as (times, GPU-seconds). Without it every policy gets a dash at
            the bound for its own time.
        title, note: clean text above the plot; the note gets the clock of the times where ``results`` says it.
        names: the names of policies beside their points.

    Returns:
        A figure, whose table has the parts ``policies``, ``front`` (``time_s, gpu_seconds, actors``) and ``bound``; for results
        without a row one that says so.
    """
    policies = results_by_policy(results)
    plans = pd.DataFrame(
        [(p.makespan_s, p.gpu_seconds, len(p.actors)) for p in (front.plans if front else ())],
        columns=["time_s", "gpu_seconds", "actors"],
    )
    curve = _curve(bound, policies)
    table = stacked(policies=policies, front=plans, bound=curve)
    if policies.empty:
        return message_figure(title, "There are no results: no policy has run a step.", table)
    fig = figure_of(table)
    if len(curve):
        fig.add_trace(bound_line(curve, "lower bound: no schedule is below", {}, **BELOW))
    elif policies["bound_gpu_seconds"].notna().any():
        fig.add_trace(bound_ticks(policies))
    if len(plans):
        fig.add_trace(plans_line(plans, "best plans with known lengths", "best plan for known lengths,"))
    labelled = len(policies) <= MAX_LABELS
    shown = {policy: clean((names or {}).get(policy, policy), LONGEST_NAME) for policy in policies["policy"]}
    styles = policy_styles(list(shown))

    def style(policy: Any, _: pd.DataFrame) -> dict[str, Any]:
        colour, symbol = styles[policy]
        marker = {"color": colour, "symbol": symbol, "size": 14, "opacity": 0.9, "line": {"width": 1.2, "color": OUTLINE}}
        return {"name": shown[policy], "marker": marker}

    def text(row: Any) -> str:
        above = row.gpu_seconds / row.bound_gpu_seconds - 1 if row.bound_gpu_seconds > 0 else float("nan")
        said = [("time", number(row.time_s, "s")), ("cost", number(row.gpu_seconds, "GPU-seconds"))]
        said += [("price", usd(row.cost_usd))] if row.cost_usd > 0 else []
        said += [("above the lower bound at that time", f"{above:.1%}")] if above == above else []
        return hover(said, shown[row.policy])

    marks = {"mode": "markers", "showlegend": not labelled, "meta": NAME}
    fig.add_traces(lines(policies, "time_s", "gpu_seconds", "policy", style, text, **marks))
    across, up = _ranges(policies, plans, curve)
    fig.update_xaxes(title="time (s)", range=list(across))
    fig.update_yaxes(title="cost (GPU-seconds)", range=list(up))
    if labelled:
        better = [(0.03 * PLOT_PX[0] + BETTER_PX[0] + dx, 0.94 * PLOT_PX[1] + BETTER_PX[1]) for dx in (-16, 0, 16)]
        drawn = ((plans, True), (curve, False))
        name_points(fig, policies, list(shown.values()), (across, up), name=NAME, lines=drawn, marks_px=better)
    fig.add_annotation(
        xref="paper", yref="paper", x=0.03, y=0.06, ax=BETTER_PX[0], ay=BETTER_PX[1], text="better", showarrow=True,
        arrowhead=2, arrowwidth=2, arrowcolor=BOUND, font={"size": 13},
    )  # fmt: skip
    alone = "one schedule only: there is nothing to compare it with" if len(policies) == 1 else ""
    below = "; ".join(filter(None, [note, _added_up(results), alone, cut_axes(time=across[0], cost=up[0])]))
    return styled(fig, title, with_clock(below, clock_of_results(results)), height=472)


def _curve(bound: Callable[[float], float] | tuple[ArrayLike, ArrayLike] | None, policies: pd.DataFrame) -> pd.DataFrame:
    """Return the bound where it is finite, near the policies: ``time_s, gpu_seconds``."""
    times, costs = np.zeros(0), np.zeros(0)
    if callable(bound) and len(policies):
        low, high = policies["time_s"].min(), policies["time_s"].max()
        times = np.linspace(max(low - 1.5 * (high - low), low * 0.5), max(high + 0.6 * (high - low), high * 1.1), CURVE_POINTS)
        costs = np.array([float(bound(float(t))) for t in times])
    elif bound is not None and not callable(bound):
        times, costs = (np.asarray(values, dtype=float) for values in bound)
    return pd.DataFrame({"time_s": times, "gpu_seconds": costs})[np.isfinite(costs)].reset_index(drop=True)


def _added_up(results: pd.DataFrame) -> str:
    """Return over how many steps times and costs are sums; the empty text where a policy has one row."""
    rows = sorted(set(results.groupby("policy").size()))
    if rows == [1]:
        return ""
    return f"sums of {rows[0]:,} steps" if len(rows) == 1 else f"sums of {rows[0]:,} to {rows[-1]:,} steps"


def _ranges(policies: pd.DataFrame, plans: pd.DataFrame, curve: pd.DataFrame) -> tuple[Range, Range]:
    """Return ranges that include the policies, the nearby part of the front, and the bound below them."""
    time_s, cost = policies["time_s"], policies["gpu_seconds"]
    across = axis_range(time_s.min(), time_s.max(), 0.25, 0.18)
    below = curve["gpu_seconds"][curve["time_s"].between(*across)].nsmallest(1)
    near = plans["gpu_seconds"][plans["time_s"].between(*across)]
    low = pd.concat([cost, near, policies["bound_gpu_seconds"].dropna(), below]).min()
    return across, axis_range(low, max([cost.max(), *near]), 0.12, 0.12)
