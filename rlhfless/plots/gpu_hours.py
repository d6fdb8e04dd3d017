"""Plots what a whole run costs by its number of GPUs: GPU-hours, hours of the run, and dollars where there is a price."""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.palette import BLUE, VERMILLION
from rlhfless.plots.style import clean, cost_line, hover, message_figure, number, styled, usd
from rlhfless.trace.schema.prices import dollars

TITLE = "What the run costs by its number of GPUs"


class GpuHoursInfo(NamedTuple):
    """Data of ``plot_gpu_hours``.

    Attributes:
        table: ``gpus, hours`` (of the run), ``gpu_hours, usd`` (0 without a price), in ascending order.
        own: row of the run's own number of GPUs; None where it is not known.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    own: int | None
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``table``."""
        return self.table


def gpu_hours_info(costs: pd.DataFrame, usd_per_gpu_hour: float = 0.0, own_gpus: int | None = None) -> GpuHoursInfo:
    """Return the data of ``plot_gpu_hours``; for the arguments see there."""
    table = costs[["gpus", "hours", "gpu_hours"]].sort_values("gpus", ignore_index=True)
    table = table.assign(usd=dollars(3600.0 * table["gpu_hours"], usd_per_gpu_hour / 3600.0))
    own = table.index[table["gpus"] == own_gpus]
    missing = "" if len(table) and (table["gpu_hours"] > 0).all() else "No time of the run is known."
    return GpuHoursInfo(table, int(own[0]) if len(own) else None, missing)


def plot_gpu_hours(
    costs: pd.DataFrame, kind: str = "", usd_per_gpu_hour: float = 0.0, own_gpus: int | None = None
) -> go.Figure:
    """Plot GPU-hours of a whole run by its number of GPUs; beside each point stands how long the run takes.

    Args:
        costs: rows ``gpus, hours, gpu_hours``. kind: of the GPUs, for the subtitle.
        usd_per_gpu_hour: price; without one there are no dollars. own_gpus: the run's own number, which is marked.

    Returns:
        A figure; without costs one that says so.
    """
    info = gpu_hours_info(costs, usd_per_gpu_hour, own_gpus)
    if info.missing:
        return message_figure(TITLE, info.missing)
    table = info.table
    fig = go.Figure()
    lines = [
        hover(
            [("run takes", time_in_words(row.hours)), ("GPU-hours", number(row.gpu_hours)), *cost_line(row.usd)],
            f"{row.gpus:,} GPUs",
        )
        for row in table.itertuples()
    ]
    colours = [VERMILLION if i == info.own else BLUE for i in table.index]
    fig.add_scatter(
        x=table["gpus"], y=table["gpu_hours"], mode="lines+markers+text", line={"color": BLUE},
        marker={"size": 10, "color": colours}, text=[time_in_words(hours) for hours in table["hours"]],
        textposition=_label_places(len(table)), hovertext=lines, hoverinfo="text", cliponaxis=False, showlegend=False,
    )  # fmt: skip
    highest = 1.2 * float(table["gpu_hours"].max())
    fig.update_xaxes(title="GPUs", type="log", tickvals=table["gpus"], tickformat=",d", range=_padded(table["gpus"]))
    fig.update_yaxes(title="GPU-hours of the run", range=[0, highest])
    told = "beside each point: how long the run takes"
    if usd_per_gpu_hour > 0:
        fig.add_scatter(
            x=table["gpus"], y=table["usd"], yaxis="y2", mode="markers", opacity=0, hoverinfo="skip", showlegend=False
        )
        fig.update_layout(
            yaxis2={
                "title": "USD",
                "overlaying": "y",
                "side": "right",
                "tickmode": "auto",
                "nticks": 6,
                "range": [0, highest * usd_per_gpu_hour],
                "showgrid": False,
            }
        )
        told = f"{usd(usd_per_gpu_hour)} per {clean(kind.upper(), 20)} GPU-hour; {told}"
    return styled(fig, TITLE, told[0].upper() + told[1:], height=380)


def _label_places(count: int) -> list[str]:
    """Return on which side of the rising curve each label stands: neighbours on different ones, as they may be close."""
    places = ["top left" if (count - 1 - i) % 2 == 0 else "bottom right" for i in range(count)]
    return [place.replace("left", "center") if i == 0 else place for i, place in enumerate(places)]


def time_in_words(hours: float) -> str:
    """Return hours, minutes or seconds with three digits."""
    for unit, per_hour in (("h", 1.0), ("min", 60.0)):
        if hours * per_hour >= 1:
            return number(hours * per_hour, unit)
    return number(hours * 3600.0, "s")


def _padded(gpus: pd.Series) -> list[float]:
    """Return the range of a logarithmic axis with room for the labels of the first and the last point."""
    low, high = math.log10(float(gpus.min())), math.log10(float(gpus.max()))
    room = max(0.1, 0.16 * (high - low))
    return [low - room, high + room]
