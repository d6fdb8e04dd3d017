"""Plots policies in the time-cost plane, with the front of plans and the lower bound of all policies.

Inputs are a table of results, a front and a bound, all for the same lengths: those that the policies ran with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from rlhfless.errors import InputError
from rlhfless.plots.clock import clock_of_results, with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BOUND, ORANGE, policy_styles
from rlhfless.plots.point_labels import line_marks, place_labels
from rlhfless.plots.style import clean, counted, cut_axes, hover, message_figure, number, styled, unmarked, usd
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from solver.generation.pareto_front import Front

CURVE_POINTS = 200
MAX_LABELS, LONGEST_NAME = 14, 40  # more policies are named in the legend
PLOT_PX = (620.0, 330.0)  # about what a notebook's output leaves for the plot; names are placed for it
BETTER_PX = (44, -34)  # from the tip of the arrow to the word
NAME = "policy"
"""The name of a policy's text, among the annotations, and the ``meta`` of its point: on a narrow page the legend names it."""
FRONT = "best plans with known lengths"
NEEDED = ("policy", "time_s", "gpu_seconds")


class _Data(NamedTuple):
    """The data of the time-cost plane.

    Attributes:
        points: one row per policy: ``policy, time_s, gpu_seconds, bound_gpu_seconds`` and ``cost_usd`` (NaN when unknown).
        front: ``time_s, gpu_seconds, actors`` of the plans of the front.
        bound: ``time_s, gpu_seconds`` of the bound curve, where it is finite.
        missing: why there is nothing to show, or the empty text.
    """

    points: pd.DataFrame
    front: pd.DataFrame
    bound: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return policies, front and bound below each other."""
        return stacked(policies=self.points, front=self.front, bound=self.bound)


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


def _data(
    results: pd.DataFrame,
    front: Front | None = None,
    bound: Callable[[float], float] | tuple[ArrayLike, ArrayLike] | None = None,
) -> _Data:
    """Return the data of ``plot_plane``; for the arguments see there."""
    points = results_by_policy(results)
    plans = pd.DataFrame(
        [(p.makespan_s, p.gpu_seconds, len(p.actors)) for p in (front.plans if front else ())],
        columns=["time_s", "gpu_seconds", "actors"],
    )
    curve = pd.DataFrame({"time_s": [], "gpu_seconds": []}, dtype=float)
    if callable(bound) and len(points):
        low, high = points["time_s"].min(), points["time_s"].max()
        times = np.linspace(max(low - 1.5 * (high - low), low * 0.5), max(high + 0.6 * (high - low), high * 1.1), CURVE_POINTS)
        curve = pd.DataFrame({"time_s": times, "gpu_seconds": [float(bound(float(t))) for t in times]})
    elif bound is not None and not callable(bound):
        times, costs = (np.asarray(values, dtype=float) for values in bound)
        curve = pd.DataFrame({"time_s": times, "gpu_seconds": costs})
    curve = curve[np.isfinite(curve["gpu_seconds"])].reset_index(drop=True)
    return _Data(points, plans, curve, "" if len(points) else "There are no results: no policy has run a step.")


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
        A figure; for results without a row one that says so.
    """
    info = _data(results, front, bound)
    if info.missing:
        return message_figure(title, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    if len(info.bound):
        fig.add_scatter(
            x=info.bound["time_s"], y=info.bound["gpu_seconds"], mode="lines", name="lower bound: no schedule is below",
            line={"color": BOUND, "width": 2, "dash": "dash"}, fill="tozeroy", fillcolor="rgba(127,127,127,0.13)",
            hovertemplate="<b>lower bound</b><br>time: %{x:.3g} s<br>at least %{y:,.4g} GPU-seconds<extra></extra>",
        )  # fmt: skip
    elif info.points["bound_gpu_seconds"].notna().any():
        fig.add_scatter(
            x=info.points["time_s"], y=info.points["bound_gpu_seconds"], mode="markers",
            name="lower bound at that time",
            marker={"symbol": "line-ew", "size": 16, "line": {"width": 2, "color": BOUND}},
            hovertemplate="<b>lower bound</b><br>time: %{x:.3g} s<br>at least %{y:,.4g} GPU-seconds<extra></extra>",
        )  # fmt: skip
    if len(info.front):
        fig.add_scatter(
            x=info.front["time_s"], y=info.front["gpu_seconds"], mode="lines+markers", name=FRONT,
            line={"color": ORANGE, "width": 1.5, "shape": "hv"}, marker={"symbol": "circle-open", "size": 6},
            customdata=[counted(n, "actor") for n in info.front["actors"]],
            hovertemplate="<b>best plan with known lengths, %{customdata}</b><br>time: %{x:.3g} s<br>"
            "cost: %{y:,.4g} GPU-seconds<extra></extra>",
        )  # fmt: skip
    labelled = len(info.points) <= MAX_LABELS
    shown = [clean((names or {}).get(policy, policy), LONGEST_NAME) for policy in info.points["policy"]]
    styles = policy_styles(info.points["policy"].tolist())
    for point, name in zip(info.points.itertuples(), shown, strict=True):
        style = styles[point.policy]
        above = point.gpu_seconds / point.bound_gpu_seconds - 1 if point.bound_gpu_seconds > 0 else float("nan")
        lines = [("time", number(point.time_s, "s")), ("cost", number(point.gpu_seconds, "GPU-seconds"))]
        lines += [("price", usd(point.cost_usd))] if point.cost_usd > 0 else []
        lines += [("above the lower bound at that time", f"{above:.1%}")] if above == above else []
        outline = {"width": 1.2, "color": "#444444"}
        fig.add_scatter(
            x=[point.time_s], y=[point.gpu_seconds], mode="markers", name=name, hovertext=[hover(lines, name)],
            hoverinfo="text", showlegend=not labelled, meta=NAME,
            marker={"color": style.colour, "symbol": style.symbol, "size": 14, "opacity": 0.9, "line": outline},
        )  # fmt: skip
    across, up = _set_ranges(fig, info)
    if labelled:
        _add_names(fig, info, shown, across, up)
    fig.add_annotation(
        xref="paper", yref="paper", x=0.03, y=0.06, ax=BETTER_PX[0], ay=BETTER_PX[1], text="better", showarrow=True,
        arrowhead=2, arrowwidth=2, arrowcolor=BOUND, font={"size": 13},
    )  # fmt: skip
    alone = "one schedule only: there is nothing to compare it with" if len(info.points) == 1 else ""
    cut = cut_axes(time=across[0], cost=up[0])
    below = "; ".join(filter(None, [note, _added_up(results), alone, cut]))
    return styled(fig, title, with_clock(below, clock_of_results(results)), height=472)


def _added_up(results: pd.DataFrame) -> str:
    """Return over how many steps times and costs are sums; the empty text where a policy has one row."""
    rows = sorted(set(results.groupby("policy").size()))
    if rows == [1]:
        return ""
    return f"sums of {rows[0]:,} steps" if len(rows) == 1 else f"sums of {rows[0]:,} to {rows[-1]:,} steps"


def _set_ranges(fig: go.Figure, info: _Data) -> tuple[tuple[float, float], tuple[float, float]]:
    """Set and return ranges that include the policies, the nearby part of the front, and the bound below them.

    An axis begins at 0 where that takes at most half of it; else the subtitle says that it does not.
    """
    time_s, cost = info.points["time_s"], info.points["gpu_seconds"]
    wide = max(time_s.max() - time_s.min(), 0.08 * time_s.max())
    left, right = _begin(time_s.min() - 0.25 * wide, time_s.max()), time_s.max() + 0.18 * wide
    below = info.bound["gpu_seconds"][info.bound["time_s"].between(left, right)]
    near = info.front[info.front["time_s"].between(left, right)]["gpu_seconds"]
    costs = pd.concat([cost, near, info.points["bound_gpu_seconds"].dropna(), below.nsmallest(1)])
    high = max(cost.max(), near.max() if len(near) else 0.0)
    tall = max(high - costs.min(), 0.08 * high)
    low = _begin(costs.min() - 0.12 * tall, high)
    across, up = (left, right), (low, high + 0.12 * tall)
    fig.update_xaxes(title="time (s)", range=list(across))
    fig.update_yaxes(title="cost (GPU-seconds)", range=list(up))
    return across, up


def _begin(low: float, high: float) -> float:
    """Return 0 where an axis from there to ``high`` is not mostly empty, else ``low``."""
    return 0.0 if low < 0.5 * high else low


def _add_names(fig: go.Figure, info: _Data, names: list[str], across: tuple[float, float], up: tuple[float, float]) -> None:
    """Write names beside their points and off the lines, with a line to the point where a name is not next to it."""

    def pixels(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
        x = (table["time_s"] - across[0]) / (across[1] - across[0]) * PLOT_PX[0]
        return x, (up[1] - table["gpu_seconds"]) / (up[1] - up[0]) * PLOT_PX[1]

    better = [(0.03 * PLOT_PX[0] + BETTER_PX[0] + dx, 0.94 * PLOT_PX[1] + BETTER_PX[1]) for dx in (-16, 0, 16)]
    marks = [*better, *line_marks(*pixels(info.front), *PLOT_PX), *line_marks(*pixels(info.bound), *PLOT_PX, stepped=False)]
    for label in place_labels(*pixels(info.points), [unmarked(name) for name in names], *PLOT_PX, marks):
        first = info.points.iloc[label.points[0]]
        fig.add_annotation(
            x=first["time_s"], y=first["gpu_seconds"], ax=label.dx, ay=label.dy, showarrow=True, arrowhead=0, arrowwidth=1,
            arrowcolor=BOUND, standoff=8, text=" = ".join(names[i] for i in label.points), font={"size": 12}, name=NAME,
        )  # fmt: skip
