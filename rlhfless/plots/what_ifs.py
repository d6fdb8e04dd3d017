"""Plots ways to generate and to learn in one time-dollar plane, beside the run itself and other variants.

Input is one row per variant, as ``Comparison.means`` has it where ways are among the variants. Points are numbered by row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.errors import InputError
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, VERMILLION
from rlhfless.plots.point_labels import place_labels
from rlhfless.plots.style import clean, cut_axes, hover, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of

TITLE = "What-ifs: time and cost of the same steps"
NEEDED = ("variant", "way", "time_s", "gpu_seconds", "cost_usd", "least_time_s", "on_policy")
ITSELF = ("as logged", "as executed", "multi-turn, KV kept")
"""Names of the way that is the run itself: of a log without turns, of an executed run, and of a log with turns."""
NOTE = "filled: on-policy; open: some tokens come from older weights; tick: lower bound of the time"
LEGEND_LINE_PX = 14.0  # for each name: some stand beside each other
PLOT_PX = (270.0, 240.0)  # of the plot on a telephone
STRETCHES = (1.0, 2.2, 4.0)  # of its width on wider pages, for all of which numbers are placed
OUTLINE = "#444444"


class _Data(NamedTuple):
    """Data of ``plot_what_ifs``.

    Attributes:
        points: ``number, variant, time_s, cost, least_time_s`` (NaN where none is known), ``on_policy, is_base`` (whether it
            is the run itself), in the order of the rows. unit: of costs: USD where all have a price, else GPU-hours.
        missing: why there is nothing to show, or the empty text.
    """

    points: pd.DataFrame
    unit: str
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the points; costs are named by their unit."""
        return self.points.rename(columns={"cost": "cost_usd" if self.unit == "USD" else "gpu_hours"})


def _data(means: pd.DataFrame) -> _Data:
    """Return the data of ``plot_what_ifs``."""
    absent = [name for name in NEEDED if name not in means.columns]
    if absent:
        raise InputError(f"the ways have no column {absent[0]!r}; {', '.join(NEEDED)} are needed")
    priced = bool(means["cost_usd"].notna().all())
    points = pd.DataFrame({
        "number": range(len(means)), "variant": means["variant"], "time_s": means["time_s"],
        "cost": means["cost_usd"] if priced else means["gpu_seconds"] / 3600, "least_time_s": means["least_time_s"],
        "on_policy": means["on_policy"], "is_base": means["way"].isin(ITSELF),
    })  # fmt: skip
    missing = "" if points["time_s"].gt(0).all() else "The run itself takes no time, so there is nothing to compare."
    return _Data(points, "USD" if priced else "GPU-hours", missing)


def plot_what_ifs(means: pd.DataFrame, *, note: str = "") -> DataFigure:
    """Plot time and cost of every way; further to the lower left is better.

    Args:
        means: ``variant, way, time_s, gpu_seconds, cost_usd, least_time_s, on_policy``, as of ``Comparison.means`` where ways
            are among the variants; names stand below the plot.
        note: clean text above the plot, such as whose times these are.

    Returns:
        A figure; for a run that takes no time one that says so.

    Raises:
        InputError: a column is missing.
    """
    info = _data(means)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    points = info.points
    fig = figure_of(info.to_frame())
    known = points[points["least_time_s"].notna()]
    least = [f"{clean(point.variant)}: at least {number(point.least_time_s, 's')}" for point in known.itertuples()]
    fig.add_scatter(
        x=known["least_time_s"], y=known["cost"], mode="markers", showlegend=False, hovertext=least, hoverinfo="text",
        marker={"symbol": "line-ns", "size": 9, "line": {"width": 1.5, "color": BOUND}},
    )  # fmt: skip
    for point in points.sort_values("on_policy", ascending=False, kind="stable").itertuples():  # open ones on top
        name = f"{point.number} {clean(point.variant)}"
        cost = usd(point.cost) if info.unit == "USD" else number(point.cost, info.unit)
        at_least = "unknown" if pd.isna(point.least_time_s) else number(point.least_time_s, "s")
        lines = [("time", number(point.time_s, "s")), ("cost", cost), ("lower bound of the time", at_least)]
        fig.add_scatter(
            x=[point.time_s], y=[point.cost], mode="markers", name=name, hoverinfo="text", hovertext=[hover(lines, name)],
            marker=_marker(bool(point.is_base), bool(point.on_policy)), legendrank=point.number + 1, showlegend=True,
        )  # fmt: skip
    across, up = _range(points[["time_s", "least_time_s"]]), _range(points[["cost"]])
    fig.update_xaxes(title="time of a step (s)", range=across)
    fig.update_yaxes(title=f"cost of a step ({info.unit})", range=up)
    _number_points(fig, points, across, up)
    below = {"orientation": "h", "x": 0.0, "xanchor": "left", "y": -0.2, "yanchor": "top"}
    note = "; ".join(filter(None, [NOTE, cut_axes(time=across[0], cost=up[0]), note]))
    return styled(fig, TITLE, note, height=400 + int(LEGEND_LINE_PX * len(points)), legend=below)


def _marker(is_base: bool, on_policy: bool) -> dict[str, object]:
    if is_base:
        return {"symbol": "star", "size": 15, "color": VERMILLION, "line": {"width": 1, "color": OUTLINE}}
    if on_policy:
        return {"symbol": "circle", "size": 11, "color": BLUE, "line": {"width": 1, "color": OUTLINE}}
    return {"symbol": "circle-open", "size": 11, "color": BLUE, "line": {"width": 2.5}}


def _range(values: pd.DataFrame) -> list[float]:
    """Return a range around these values; it begins at 0 where little of it is empty then."""
    low, high = float(values.min().min()), float(values.max().max())
    wide = max(high - low, 0.08 * high)
    return [0.0 if low < 0.25 * high else low - 0.12 * wide, high + 0.12 * wide]


def _number_points(fig: go.Figure, points: pd.DataFrame, across: list[float], up: list[float]) -> None:
    """Write each point's number beside it."""

    def pixels(times: pd.Series) -> tuple[pd.Series, pd.Series]:
        x = (times - across[0]) / (across[1] - across[0]) * PLOT_PX[0]
        return x, (up[1] - points["cost"]) / (up[1] - up[0]) * PLOT_PX[1]

    marks = [mark for mark in zip(*pixels(points["least_time_s"]), strict=True) if not math.isnan(mark[0])]
    numbers = [str(value) for value in points["number"]]
    for label in place_labels(*pixels(points["time_s"]), numbers, *PLOT_PX, marks, STRETCHES):
        first = points.iloc[label.points[0]]
        fig.add_annotation(
            x=first["time_s"], y=first["cost"], ax=label.dx, ay=label.dy, showarrow=True, arrowhead=0, arrowwidth=1,
            arrowcolor=BOUND, standoff=7, text=", ".join(numbers[i] for i in sorted(label.points)), font={"size": 12},
        )  # fmt: skip
