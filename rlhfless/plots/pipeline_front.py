"""Plots latency against peak memory of pipeline schedules, with both lower bounds and published schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.palette import BOUND, policy_styles
from rlhfless.plots.style import clean, hover, message_figure, styled

if TYPE_CHECKING:
    from solver.pipeline import PipelinePlan

TITLE = "Latency and memory of pipeline schedules"


class PipelineFrontInfo(NamedTuple):
    """Data of ``plot_pipeline_front``.

    Attributes:
        points: one row per schedule: ``schedule, latency, peak_memory, memory_bound`` (at its latency; NaN for published ones).
        latency_bound: no schedule ends earlier.
        missing: why there is nothing to show, or the empty text.
    """

    points: pd.DataFrame
    latency_bound: float
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the points."""
        return self.points


def pipeline_front_info(
    plans: Mapping[str, PipelinePlan], published: Mapping[str, tuple[float, float]] | None = None
) -> PipelineFrontInfo:
    """Return the data of ``plot_pipeline_front``; for the arguments see there."""
    rows = [(label, plan.latency, plan.peak_memory, plan.memory_bound) for label, plan in plans.items()]
    rows += [(label, latency, memory, math.nan) for label, (latency, memory) in (published or {}).items()]
    points = pd.DataFrame(rows, columns=["schedule", "latency", "peak_memory", "memory_bound"])
    bound = max((plan.latency_bound for plan in plans.values()), default=math.nan)
    return PipelineFrontInfo(points, bound, "" if plans else "There is no schedule to show.")


def plot_pipeline_front(
    plans: Mapping[str, PipelinePlan], published: Mapping[str, tuple[float, float]] | None = None
) -> go.Figure:
    """Plot schedules of one problem by latency and peak memory, the lower bound on each, and published schedules.

    Args:
        plans: schedules of the same problem by label. published: latency and peak memory by label.

    Returns:
        A figure; without schedules one that says so.
    """
    info = pipeline_front_info(plans, published)
    if info.missing:
        return message_figure(TITLE, info.missing)
    fig = go.Figure()
    styles = policy_styles(list(info.points["schedule"]))
    for row in info.points.itertuples(index=False):
        lines = [("latency", f"{row.latency:g}"), ("peak memory", f"{row.peak_memory:g}")]
        if not math.isnan(row.memory_bound):
            lines.append(("lower bound on memory", f"{row.memory_bound:g}"))
        fig.add_scatter(
            x=[row.latency], y=[row.peak_memory], mode="markers", name=clean(row.schedule),
            marker={"size": 12, "color": styles[row.schedule].colour, "symbol": styles[row.schedule].symbol},
            hovertext=[hover(lines, clean(row.schedule))], hoverinfo="text",
        )  # fmt: skip
    bounds = info.points.dropna().sort_values("latency")
    fig.add_scatter(
        x=bounds["latency"], y=bounds["memory_bound"], mode="lines+markers", name="lower bound on memory",
        line={"color": BOUND, "dash": "dash", "shape": "hv"}, marker={"color": BOUND, "symbol": "line-ew-open", "size": 12},
        hovertemplate="at latency %{x}: no schedule holds less than %{y:.4g}<extra></extra>",
    )  # fmt: skip
    fig.add_vline(x=info.latency_bound, line={"color": BOUND, "dash": "dash", "width": 2})
    fig.update_xaxes(title="latency")
    fig.update_yaxes(title="peak memory of a device", rangemode="tozero")
    note = f"dashed: lower bound on latency, {info.latency_bound:g}, and on memory at each latency"
    return styled(fig, TITLE, note, height=440)
