"""Plots other ways to generate and to learn in one time-dollar plane, beside the run as logged.

Inputs are the ways as ``compare_ways`` found them. Points are numbered as in tables: 0 is the run as logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.palette import BLUE, BOUND, VERMILLION
from rlhfless.plots.point_labels import place_labels
from rlhfless.plots.style import clean, hover, message_figure, number, styled, usd

if TYPE_CHECKING:
    from rlhfless.analysis.what_ifs.compare import WaysCompared
    from rlhfless.analysis.what_ifs.outcome import WayOutcome

TITLE = "What-ifs: time and cost of the same steps"
NOTE = "filled: on-policy; open: some learned tokens are stale; tick: no schedule of this way takes less time"
LEGEND_LINE_PX = 14.0  # for each name: some stand beside each other
PLOT_PX = (270.0, 240.0)  # of the plot on a telephone
STRETCHES = (1.0, 2.2, 4.0)  # of its width on wider pages, for all of which numbers are placed
OUTLINE = "#444444"


class WhatIfsInfo(NamedTuple):
    """Data of ``plot_what_ifs``.

    Attributes:
        points: ``number, way, time_s, cost, least_time_s, on_policy``, the run as logged first. unit: of costs.
        missing: why there is nothing to show, or the empty text.
    """

    points: pd.DataFrame
    unit: str
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the points; costs are named by their unit."""
        return self.points.rename(columns={"cost": "cost_usd" if self.unit == "USD" else "gpu_hours"})


def what_ifs_info(compared: WaysCompared) -> WhatIfsInfo:
    """Return the data of ``plot_what_ifs``."""
    priced = compared.has_price

    def row(place: int, way: WayOutcome) -> tuple[object, ...]:
        cost = way.usd(compared.setting) if priced else way.gpu_s / 3600
        return place, way.name, way.time_s, cost, way.least_time_s, way.data.on_policy

    columns = ["number", "way", "time_s", "cost", "least_time_s", "on_policy"]
    points = pd.DataFrame([row(*one) for one in enumerate((compared.base, *compared.ways))], columns=columns)
    missing = "" if points["time_s"].gt(0).all() else "The run as logged takes no time, so there is nothing to compare."
    return WhatIfsInfo(points, "USD" if priced else "GPU-hours", missing)


def plot_what_ifs(compared: WaysCompared) -> go.Figure:
    """Plot time and cost of every way; further to the lower left is better.

    Args:
        compared: what ``Run.what_ifs`` returns; names stand below the plot.

    Returns:
        A figure; for a run that takes no time one that says so.
    """
    info = what_ifs_info(compared)
    if info.missing:
        return message_figure(TITLE, info.missing)
    points = info.points
    fig = go.Figure()
    least = [f"{clean(point.way)}: at least {number(point.least_time_s, 's')}" for point in points.itertuples()]
    fig.add_scatter(
        x=points["least_time_s"], y=points["cost"], mode="markers", showlegend=False, hovertext=least, hoverinfo="text",
        marker={"symbol": "line-ns", "size": 9, "line": {"width": 1.5, "color": BOUND}},
    )  # fmt: skip
    for point in points.sort_values("on_policy", ascending=False, kind="stable").itertuples():  # open ones on top
        name = f"{point.number} {clean(point.way)}"
        cost = usd(point.cost) if info.unit == "USD" else number(point.cost, info.unit)
        lines = [("time", number(point.time_s, "s")), ("cost", cost), ("at least", number(point.least_time_s, "s"))]
        fig.add_scatter(
            x=[point.time_s], y=[point.cost], mode="markers", name=name, hoverinfo="text", hovertext=[hover(lines, name)],
            marker=_marker(point.number == 0, bool(point.on_policy)), legendrank=point.number + 1, showlegend=True,
        )  # fmt: skip
    across, up = _range(points[["time_s", "least_time_s"]]), _range(points[["cost"]])
    fig.update_xaxes(title=_title("time (s)", across[0]), range=across)
    fig.update_yaxes(title=_title(f"cost ({info.unit})", up[0]), range=up)
    _number_points(fig, points, across, up)
    below = {"orientation": "h", "x": 0.0, "xanchor": "left", "y": -0.2, "yanchor": "top"}
    return styled(fig, TITLE, NOTE, height=400 + int(LEGEND_LINE_PX * len(points)), legend=below)


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


def _title(title: str, begins: float) -> str:
    return title if begins == 0 else f"{title}, does not start at 0"


def _number_points(fig: go.Figure, points: pd.DataFrame, across: list[float], up: list[float]) -> None:
    """Write each point's number beside it."""

    def pixels(times: pd.Series) -> tuple[pd.Series, pd.Series]:
        x = (times - across[0]) / (across[1] - across[0]) * PLOT_PX[0]
        return x, (up[1] - points["cost"]) / (up[1] - up[0]) * PLOT_PX[1]

    marks = list(zip(*pixels(points["least_time_s"]), strict=True))
    numbers = [str(value) for value in points["number"]]
    for label in place_labels(*pixels(points["time_s"]), numbers, *PLOT_PX, marks, STRETCHES):
        first = points.iloc[label.points[0]]
        fig.add_annotation(
            x=first["time_s"], y=first["cost"], ax=label.dx, ay=label.dy, showarrow=True, arrowhead=0, arrowwidth=1,
            arrowcolor=BOUND, standoff=7, text=", ".join(numbers[i] for i in sorted(label.points)), font={"size": 12},
        )  # fmt: skip
