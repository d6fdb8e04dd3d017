"""Plots the seconds of a step by the GPUs that generate, where the others train.

Input is the table of divisions of ``analysis.split``; each size of actors has a line, with its lower bound beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from rlhfless.plots.style import clean, counted, cut_axes, legend_below, message_figure, styled
from rlhfless.plots.tables import figure_of

TITLE = "How many GPUs generate and how many train"
MISSING = "There is no division of the GPUs to show."
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
SHARED = "shared"
INNER_PX = 320.0
NEAR, FAR = 2.0, 8.0  # times the shortest step: an axis from 0 shows differences of longer ones, and of those up to FAR alone


class _Data(NamedTuple):
    """Data of ``plot_split``.

    Attributes:
        points: ``line`` (way, size of actors and GPUs, in words), ``way, gpus_generate, gpus_train, step_s, least_step_s``, by
            line and GPUs that generate.
        missing: why there is nothing to show, or the empty text.
    """

    points: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the points."""
        return self.points


def _data(table: pd.DataFrame) -> _Data:
    """Return the data of ``plot_split``."""
    several = table["gpus"].nunique() > 1 if len(table) else False
    lines = [
        f"{row.way}, actors of {counted(row.gpus_per_actor, 'GPU')}" + (f", {row.gpus} GPUs" if several else "")
        for row in table.itertuples()
    ]
    points = table.assign(line=pd.Series(lines, index=table.index, dtype=object))
    points = points.sort_values(["gpus", "gpus_per_actor", "way", "gpus_generate"], kind="stable", ignore_index=True)
    columns = ["line", "way", "gpus_generate", "gpus_train", "step_s", "least_step_s"]
    return _Data(points[columns], "" if len(points) else MISSING)


def plot_split(table: pd.DataFrame) -> DataFigure:
    """Plot the seconds of a step of every division; lower is better.

    Args:
        table: of ``Run.split(...).to_frame()``.

    Returns:
        A figure; without divisions one that says so.
    """
    info = _data(table)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    for place, (line, points) in enumerate(info.points.groupby("line", sort=False)):
        colour, name = COLOURS[place % len(COLOURS)], clean(line)
        shared = bool((points["way"] == SHARED).all())
        fig.add_scatter(
            x=points["gpus_generate"], y=points["step_s"], mode="markers" if shared else "lines+markers", name=name,
            legendgroup=name, line={"color": colour},
            marker={"symbol": "star" if shared else "circle", "size": 10 if shared else 7},
            customdata=points[["gpus_train", "least_step_s"]],
            hovertemplate=f"{name}<br>%{{x}} GPUs generate, %{{customdata[0]}} train<br>%{{y:.4g}} s per step, at least "
            "%{customdata[1]:.4g} s<extra></extra>",
        )  # fmt: skip
        fig.add_scatter(
            x=points["gpus_generate"], y=points["least_step_s"], mode="markers" if shared else "lines", hoverinfo="skip",
            legendgroup=name, showlegend=False, line={"color": colour, "dash": "dot"},
            marker={"symbol": "line-ew", "size": 9, "line": {"width": 1.5, "color": GREY}},
        )  # fmt: skip
    fig.update_xaxes(title="GPUs that generate")
    fig.update_yaxes(**_axis_of_seconds(info.points))
    begins = float((fig.layout.yaxis.range or (0.0,))[0]) if fig.layout.yaxis.type != "log" else 0.0
    note = "solid: simulated, in steady state; dotted: lower bound of the same division; star: all GPUs generate, then train"
    note = "; ".join(filter(None, [note, cut_axes(time=begins)]))
    return styled(fig, TITLE, note, height=int(INNER_PX) + 190, legend=legend_below(INNER_PX), margin={"b": 120})


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
