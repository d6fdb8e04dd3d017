"""Plots the plan for every time weight and its position on the planning front, with a slider. Needs no kernel.

Inputs are plans and a front. All frames are in the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.frames import with_frames
from rlhfless.plots.palette import BLUE, VERMILLION
from rlhfless.plots.plane import bound_line, plans_line, this_plan
from rlhfless.plots.style import counted, hover, message_figure, number
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from solver.generation.pareto_front import Front
    from solver.model.plan import Plan

TITLE = "The best plan for each weight of time against cost"


class _Data(NamedTuple):
    """Data of ``plot_time_weight``: the plans by weight.

    Attributes:
        table: one row per weight, rising: ``time_weight, actors, makespan_s, gpu_seconds, cost_usd, gap``.
        bars: per weight a frame ``actor, start_s, end_s, responses``.
        front: ``time_s, gpu_seconds, actors``. bound: ``time_s, gpu_seconds`` of the planning model, where finite.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    bars: tuple[pd.DataFrame, ...]
    front: pd.DataFrame
    bound: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return all tables below each other; actors have the weight of their plan."""
        weights = self.table["time_weight"]
        bars = [bar.assign(time_weight=weight) for bar, weight in zip(self.bars, weights, strict=True)]
        return stacked(plans=self.table, actors=pd.concat(bars) if bars else pd.DataFrame(), front=self.front, bound=self.bound)


def _data(plans_by_weight: Mapping[float, Plan], front: Front | None = None) -> _Data:
    """Return the data of ``plot_time_weight``."""
    weights = sorted(plans_by_weight)
    plans = [plans_by_weight[weight] for weight in weights]
    table = pd.DataFrame(
        [(w, len(p.actors), p.makespan_s, p.gpu_seconds, p.cost_usd, p.gap) for w, p in zip(weights, plans, strict=True)],
        columns=["time_weight", "actors", "makespan_s", "gpu_seconds", "cost_usd", "gap"],
    )
    bars = tuple(
        pd.DataFrame(
            [(i, a.start_s, a.predicted_s, len(a.responses)) for i, a in enumerate(p.actors)],
            columns=["actor", "start_s", "end_s", "responses"],
        )
        for p in plans
    )
    of_front = [(p.makespan_s, p.gpu_seconds, len(p.actors)) for p in (front.plans if front else ())]
    curve = pd.DataFrame(
        {"time_s": front.bound_makespan_s if front else [], "gpu_seconds": front.bound_cost if front else []},
        dtype=float,
    )
    return _Data(
        table,
        bars,
        pd.DataFrame(of_front, columns=["time_s", "gpu_seconds", "actors"]),
        curve[np.isfinite(curve["gpu_seconds"])].reset_index(drop=True),
        "" if plans else "There are no plans to show.",
    )


def plot_time_weight(
    plans_by_weight: Mapping[float, Plan], front: Front | None = None, start: float | None = None
) -> DataFigure:
    """Plot a slider over the time weight w with the plan of least ``T^w C^(1-w)`` (left) and its position on the front (right).

    Args:
        plans_by_weight: time weight to plan.
        front: plans that no other plan beats, with the bound curve of the planning model.
        start: the weight that is shown first; the middle one when None.

    Returns:
        A figure with one frame per weight; without plans one that says so.
    """
    info = _data(plans_by_weight, front)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    weights = info.table["time_weight"].tolist()
    first = weights.index(start) if start in weights else len(weights) // 2
    fig = figure_of(info.to_frame(), rows=1, cols=2, column_widths=[0.54, 0.46], horizontal_spacing=0.1)
    fig.add_trace(_bars(info, first), row=1, col=1)
    fig.add_trace(_point(info, first), row=1, col=2)
    if len(info.bound):
        fig.add_trace(bound_line(info.bound, "lower bound of any plan", {"shape": "vh"}), row=1, col=2)
    if len(info.front):
        fig.add_trace(plans_line(info.front, "best plans"), row=1, col=2)
    rows, slowest = int(info.table["actors"].max()), float(info.table["makespan_s"].max())
    shown = list(range(0, rows, -(-rows // 24)))
    fig.update_yaxes(
        title="actor", range=[rows - 0.4, -0.6], tickvals=shown, ticktext=[f"actor-{i}" for i in shown], row=1, col=1
    )
    fig.update_xaxes(title="predicted time since the start of the step (s)", range=[0, slowest * 1.04], row=1, col=1)
    _front_ranges(fig, info)
    return with_frames(
        fig, TITLE, [f"{weight:g}" for weight in weights], first, lambda i: [_bars(info, i), _point(info, i)],
        lambda i: _line(info, i), of="time weight (1: time only, 0: cost only)",
        px=(int(min(406, max(196, 6 + 26 * rows))), 104, 92),
    )  # fmt: skip


def _bars(info: _Data, i: int) -> go.Bar:
    """The plan as bars. Every frame has as many bars; those of actors that the plan does not start are empty."""
    bars = info.bars[i].reindex(range(int(info.table["actors"].max()))).assign(actor=lambda t: t.index).fillna(0)
    texts = [
        hover(
            [("responses", f"{int(b.responses):,}"), ("predicted", f"{number(b.start_s, 's')} to {number(b.end_s, 's')}")],
            f"actor-{b.actor}",
        )
        for b in bars.itertuples()
    ]
    return go.Bar(
        base=bars["start_s"], x=bars["end_s"] - bars["start_s"], y=bars["actor"], orientation="h", width=0.62,
        marker={"color": BLUE}, name="an actor at work, predicted", hovertext=texts, hoverinfo="text", showlegend=False,
    )  # fmt: skip


def _point(info: _Data, i: int) -> go.Scatter:
    row = info.table.iloc[i]
    lines = [("time", number(row["makespan_s"], "s")), ("cost", number(row["gpu_seconds"], "GPU-seconds"))]
    text = hover(lines, f"time weight {row['time_weight']:g}")
    return this_plan([row["makespan_s"]], [row["gpu_seconds"]], VERMILLION, size=17, hoverinfo="text", hovertext=[text])


def _line(info: _Data, i: int) -> str:
    """Describe the frame in words."""
    row = info.table.iloc[i]
    known = row["gap"] is not None and row["gap"] == row["gap"]
    gap = f", at most {row['gap']:.2%} above the best plan for these lengths" if known else ""
    return (
        f"time weight {row['time_weight']:g}: {counted(int(row['actors']), 'actor')}, {number(row['makespan_s'], 's')}, "
        f"{number(row['gpu_seconds'], 'GPU-seconds')}{gap}"
    )


def _front_ranges(fig: go.Figure, info: _Data) -> None:
    """Ranges that include every plan of the slider; the front extends beyond them."""
    time_s, cost = info.table["makespan_s"], info.table["gpu_seconds"]
    wide, tall = (max(v.max() - v.min(), 0.1 * v.max()) for v in (time_s, cost))
    near = info.bound[info.bound["time_s"].between(time_s.min(), time_s.max() + 0.1 * wide)]["gpu_seconds"]
    low = min([cost.min(), *near.nsmallest(1)])
    fig.update_xaxes(title="time (s)", range=[max(0, time_s.min() - 0.12 * wide), time_s.max() + 0.12 * wide], row=1, col=2)
    fig.update_yaxes(title="cost (GPU-seconds)", range=[max(0, low - 0.1 * tall), cost.max() + 0.12 * tall], row=1, col=2)
