"""Plots the seconds of a step by the GPUs that generate, where the others train.

Input is the table of divisions of ``analysis.split``; each size of actors has a line, with its lower bound beside it.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines
from rlhfless.plots.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from rlhfless.plots.style import clean, counted, cut_axes, legend_below, message_figure, styled
from rlhfless.plots.tables import figure_of

TITLE = "How many GPUs generate and how many train"
MISSING = "There is no division of the GPUs to show."
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
SHARED = "shared"
INNER_PX = 320.0
NEAR, FAR = 2.0, 8.0  # times the shortest step: an axis from 0 shows differences of longer ones, and of those up to FAR alone


def plot_split(table: pd.DataFrame) -> DataFigure:
    """Plot the seconds of a step of every division; lower is better.

    Args:
        table: of ``Run.split(...).to_frame()``.

    Returns:
        A figure, whose table has ``line`` (way, size of actors and GPUs, in words), ``way, gpus_generate, gpus_train, step_s,
        least_step_s``; without divisions one that says so.
    """
    points = _points(table)
    if points.empty:
        return message_figure(TITLE, MISSING, points)
    names = points["line"].unique().tolist()

    def same(line: str, rows: pd.DataFrame) -> tuple[bool, dict[str, Any]]:
        colour = COLOURS[names.index(line) % len(COLOURS)]
        return bool((rows["way"] == SHARED).all()), {"legendgroup": clean(line), "line": {"color": colour}}

    def simulated(line: str, rows: pd.DataFrame) -> dict[str, Any]:
        shared, fields = same(line, rows)
        return {
            **fields, "name": clean(line), "mode": "markers" if shared else "lines+markers",
            "marker": {"symbol": "star" if shared else "circle", "size": 10 if shared else 7},
            "customdata": rows[["gpus_train", "least_step_s"]],
            "hovertemplate": f"{clean(line)}<br>%{{x}} GPUs generate, %{{customdata[0]}} train<br>%{{y:.4g}} s per step, at "
            "least %{customdata[1]:.4g} s<extra></extra>",
        }  # fmt: skip

    def least(line: str, rows: pd.DataFrame) -> dict[str, Any]:
        shared, fields = same(line, rows)
        return {
            **fields, "mode": "markers" if shared else "lines", "hoverinfo": "skip", "showlegend": False,
            "line": {**fields["line"], "dash": "dot"},
            "marker": {"symbol": "line-ew", "size": 9, "line": {"width": 1.5, "color": GREY}},
        }  # fmt: skip

    fig = figure_of(points)
    x, by = "gpus_generate", "line"
    for pair in zip(lines(points, x, "step_s", by, simulated), lines(points, x, "least_step_s", by, least), strict=True):
        fig.add_traces(pair)
    fig.update_xaxes(title="GPUs that generate")
    fig.update_yaxes(**_axis_of_seconds(points))
    begins = float((fig.layout.yaxis.range or (0.0,))[0]) if fig.layout.yaxis.type != "log" else 0.0
    note = "solid: simulated, in steady state; dotted: lower bound of the same division; star: all GPUs generate, then train"
    note = "; ".join(filter(None, [note, cut_axes(time=begins)]))
    return styled(fig, TITLE, note, height=int(INNER_PX) + 190, legend=legend_below(INNER_PX), margin={"b": 120})


def _points(table: pd.DataFrame) -> pd.DataFrame:
    """Return the divisions by line and GPUs that generate; ``line`` is the way, the size of actors and the GPUs, in words."""
    several = table["gpus"].nunique() > 1 if len(table) else False
    names = [
        f"{row.way}, actors of {counted(row.gpus_per_actor, 'GPU')}" + (f", {row.gpus} GPUs" if several else "")
        for row in table.itertuples()
    ]
    points = table.assign(line=pd.Series(names, index=table.index, dtype=object))
    points = points.sort_values(["gpus", "gpus_per_actor", "way", "gpus_generate"], kind="stable", ignore_index=True)
    return points[["line", "way", "gpus_generate", "gpus_train", "step_s", "least_step_s"]]


def _axis_of_seconds(points: pd.DataFrame) -> dict[str, object]:
    """Return an axis on which the divisions differ: from 0 where that shows them, else near the values or logarithmic."""
    seconds = points[["step_s", "least_step_s"]]
    low, high = float(seconds.min().min()), float(seconds.max().max())
    if high < NEAR * low:
        beyond = 0.12 * max(high - low, 0.08 * high)
        return {"title": "seconds per step", "range": [low - beyond, high + beyond]}
    if low > 0 and high > FAR * low:
        return {"title": "seconds per step (logarithmic)", "type": "log"}
    return {"title": "seconds per step", "rangemode": "tozero"}
