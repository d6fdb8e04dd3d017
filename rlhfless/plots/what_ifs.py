"""Plots ways to generate and to learn in one time-dollar plane, beside the run itself and other variants.

Input is one row per variant, as ``Comparison.means`` has it where ways are among the variants. Points are numbered by row.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import line, lines
from rlhfless.plots.palette import BLUE, BOUND, VERMILLION
from rlhfless.plots.plane import OUTLINE, axis_range, name_points
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
EMPTY = 0.16  # of an axis that begins at 0


def plot_what_ifs(means: pd.DataFrame, *, note: str = "") -> DataFigure:
    """Plot time and cost of every way; further to the lower left is better.

    Args:
        means: ``variant, way, time_s, gpu_seconds, cost_usd, least_time_s, on_policy``, as of ``Comparison.means`` where ways
            are among the variants; names stand below the plot.
        note: clean text above the plot, such as whose times these are.

    Returns:
        A figure, whose table has ``number, variant, time_s``, the cost (in USD where all have a price, else in GPU-hours),
        ``least_time_s, on_policy`` and ``is_base`` (the run itself); for a run that takes no time one that says so.

    Raises:
        InputError: a column is missing.
    """
    absent = [name for name in NEEDED if name not in means.columns]
    if absent:
        raise InputError(f"the ways have no column {absent[0]!r}; {', '.join(NEEDED)} are needed")
    priced = bool(means["cost_usd"].notna().all())
    cost, unit = ("cost_usd", "USD") if priced else ("gpu_hours", "GPU-hours")
    points = pd.DataFrame({
        "number": range(len(means)), "variant": means["variant"], "time_s": means["time_s"],
        cost: means["cost_usd"] if priced else means["gpu_seconds"] / 3600, "least_time_s": means["least_time_s"],
        "on_policy": means["on_policy"], "is_base": means["way"].isin(ITSELF),
    })  # fmt: skip
    if not points["time_s"].gt(0).all():
        return message_figure(TITLE, "The run itself takes no time, so there is nothing to compare.", points)
    fig = figure_of(points)
    known = points[points["least_time_s"].notna()]

    def at_least(row: Any) -> str:
        return f"{clean(row.variant)}: at least {number(row.least_time_s, 's')}"

    def style(place: int, rows: pd.DataFrame) -> dict[str, Any]:
        (point,) = rows.itertuples()
        marker = _marker(bool(point.is_base), bool(point.on_policy))
        return {"name": f"{place} {clean(point.variant)}", "marker": marker, "legendrank": place + 1}

    def text(row: Any) -> str:
        paid = getattr(row, cost)
        said = [("time", number(row.time_s, "s")), ("cost", usd(paid) if priced else number(paid, unit))]
        least = "unknown" if pd.isna(row.least_time_s) else number(row.least_time_s, "s")
        return hover([*said, ("lower bound of the time", least)], f"{row.number} {clean(row.variant)}")

    ticks = {"symbol": "line-ns", "size": 9, "line": {"width": 1.5, "color": BOUND}}
    fig.add_trace(line(known, "least_time_s", cost, at_least, mode="markers", showlegend=False, marker=ticks))
    filled_first = points.sort_values("on_policy", ascending=False, kind="stable")  # open ones on top
    fig.add_traces(lines(filled_first, "time_s", cost, "number", style, text, mode="markers", showlegend=True))
    times = points[["time_s", "least_time_s"]]
    across = axis_range(times.min().min(), times.max().max(), 0.12, 0.12, empty=EMPTY)
    up = axis_range(points[cost].min(), points[cost].max(), 0.12, 0.12, empty=EMPTY)
    fig.update_xaxes(title="time of a step (s)", range=list(across))
    fig.update_yaxes(title=f"cost of a step ({unit})", range=list(up))
    bounds = known.assign(time_s=known["least_time_s"])
    name_points(
        fig, points, [str(value) for value in points["number"]], (across, up), y=cost, marks=bounds, plot_px=PLOT_PX,
        stretches=STRETCHES, between=", ", standoff=7,
    )  # fmt: skip
    below = {"orientation": "h", "x": 0.0, "xanchor": "left", "y": -0.2, "yanchor": "top"}
    note = "; ".join(filter(None, [NOTE, cut_axes(time=across[0], cost=up[0]), note]))
    return styled(fig, TITLE, note, height=400 + int(LEGEND_LINE_PX * len(points)), legend=below)


def _marker(is_base: bool, on_policy: bool) -> dict[str, object]:
    if is_base:
        return {"symbol": "star", "size": 15, "color": VERMILLION, "line": {"width": 1, "color": OUTLINE}}
    if on_policy:
        return {"symbol": "circle", "size": 11, "color": BLUE, "line": {"width": 1, "color": OUTLINE}}
    return {"symbol": "circle-open", "size": 11, "color": BLUE, "line": {"width": 2.5}}
