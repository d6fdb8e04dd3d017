"""Plots how the value of a plan and its lower bound converge during the search, with a slider over plans (slots, limits).

Inputs are plans with their history, and fronts with their bound curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.plots.palette import BLUE, BOUND, ORANGE, VERMILLION
from rlhfless.plots.slider import SLIDER_PX, caption, slider, start_at
from rlhfless.plots.style import clean, counted, hover, legend_below, message_figure, number, styled
from rlhfless.plots.tables import stacked

if TYPE_CHECKING:
    from solver.model.plan import Plan
    from solver.planning.pareto_front import Front

TITLE = "Value and lower bound of a plan during the search"


class GapInfo(NamedTuple):
    """Data of ``plot_gap_history``: plans by label.

    Attributes:
        plans: ``label, value, lower_bound, gap`` (NaN without a bound), ``actors, makespan_s, gpu_seconds, status, solve_s``.
        history: ``label, solver, at_s, value, lower_bound``, the lines of the plans' histories with a finite value.
        front: ``label, time_s, cost, actors`` of the plans of the fronts; bound: ``label, time_s, cost`` where it is finite.
        missing: why there is nothing to show, or the empty text.
    """

    plans: pd.DataFrame
    history: pd.DataFrame
    front: pd.DataFrame
    bound: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return all tables below each other; fronts and bounds cost ``gpu_seconds``."""
        cost = {"cost": "gpu_seconds"}
        return stacked(
            plans=self.plans, history=self.history, front=self.front.rename(columns=cost), bound=self.bound.rename(columns=cost)
        )


def gap_info(plans: Mapping[Any, Plan], fronts: Mapping[Any, Front] | None = None) -> GapInfo:
    """Return the data of ``plot_gap_history``."""
    nan = math.nan
    totals = [
        (str(label), nan if p.value is None else p.value, nan if p.lower_bound is None else p.lower_bound,
         nan if p.gap is None else p.gap, len(p.actors), p.makespan_s, p.gpu_seconds, p.status, p.solve_s)
        for label, p in plans.items()
    ]  # fmt: skip
    lines = [
        (str(label), line.solver, line.at_s, line.value, line.lower_bound)
        for label, p in plans.items()
        for line in p.history
        if math.isfinite(line.value)
    ]
    of_fronts = [
        (str(label), p.makespan_s, front.cost_of(p), len(p.actors))
        for label, front in (fronts or {}).items()
        for p in front.plans
    ]
    curves = [
        (str(label), t, c)
        for label, front in (fronts or {}).items()
        for t, c in zip(front.bound_makespan_s.tolist(), front.bound_cost.tolist(), strict=True)
        if math.isfinite(c)
    ]
    columns = ["label", "value", "lower_bound", "gap", "actors", "makespan_s", "gpu_seconds", "status", "solve_s"]
    return GapInfo(
        pd.DataFrame(totals, columns=columns),
        pd.DataFrame(lines, columns=["label", "solver", "at_s", "value", "lower_bound"]),
        pd.DataFrame(of_fronts, columns=["label", "time_s", "cost", "actors"]),
        pd.DataFrame(curves, columns=["label", "time_s", "cost"]),
        "" if plans else "There are no plans to show.",
    )


def plot_gap_history(
    plans: Mapping[Any, Plan], fronts: Mapping[Any, Front] | None = None, *, of: str = "plan", start: Any = None
) -> go.Figure:
    """Plot value and bound during the search, the bound curve under the front's plans, and the gap of every plan.

    Args:
        plans: label (of the slider) to plan. fronts: the same labels to the front in GPU-seconds.
        of: what the labels are. start: the label that is shown first; the middle one when None.

    Returns:
        A figure with one frame per label; without plans it is a figure that says so.
    """
    info = gap_info(plans, fronts)
    if info.missing:
        return message_figure(TITLE, info.missing)
    labels = [str(label) for label in plans]
    first = start_at(labels, None if start is None else str(start))
    shown_labels = [clean(label) for label in labels]
    fig = make_subplots(rows=1, cols=3, column_widths=[0.33, 0.4, 0.27], horizontal_spacing=0.085)
    heads = [
        (fig.layout[axis].domain[0], text)
        for axis, text in (
            ("xaxis", "value and lower bound over the search"),
            ("xaxis2", "plans of the front above the bound curve C(M)"),
            ("xaxis3", f"gap by {clean(of)}"),
        )
    ]
    for trace, col in zip(_frame(info, labels[first]), (1, 1, 2, 2, 2, 3), strict=True):
        fig.add_trace(trace, row=1, col=col)
    gaps = info.plans["gap"] * 100
    fig.add_scatter(
        x=shown_labels, y=gaps, name="gap", mode="lines+markers", line={"color": BLUE}, marker={"size": 6}, showlegend=False,
        row=1, col=3, hovertemplate=f"{clean(of)} %{{x}}<br>gap: %{{y:.2f}} %<extra></extra>",
    )  # fmt: skip
    fig.frames = [
        go.Frame(data=_frame(info, label), traces=list(range(6)), name=label, layout=caption(_line(info, label), heads))
        for label in labels
    ]
    values = pd.concat([info.history["value"], info.history["lower_bound"], info.plans["value"]]).dropna()
    values = values[values > 0]
    if len(values):
        room = max(values.max() - values.min(), 0.02 * values.max())
        fig.update_yaxes(range=[values.min() - 0.12 * room, values.max() + 0.2 * room], row=1, col=1)
    longest = _longest(info)
    fig.update_xaxes(title="planning time (s)", range=[-0.02 * longest, 1.3 * longest], row=1, col=1)
    fig.update_yaxes(title="objective value", row=1, col=1)
    times = pd.concat([info.bound["time_s"], info.front["time_s"], info.plans["makespan_s"]])
    costs = pd.concat([info.bound["cost"], info.front["cost"], info.plans["gpu_seconds"]])
    fig.update_xaxes(title="makespan M (s)", type="log", range=_decades(times), row=1, col=2)
    fig.update_yaxes(title="cost (GPU-seconds)", type="log", range=_decades(costs), row=1, col=2)
    fig.update_xaxes(title=clean(of), type="category", categoryorder="array", categoryarray=shown_labels, row=1, col=3)
    fig.update_yaxes(title="gap to the lower bound (% of the value)", rangemode="tozero", row=1, col=3)
    inner, above, below = 240, 120, 86 + SLIDER_PX
    styled(
        fig, TITLE, height=inner + above + below, sliders=[slider(labels, first, f"{clean(of)}: ")],
        **caption(_line(info, labels[first]), heads), legend=legend_below(inner),
    )  # fmt: skip
    fig.update_layout(margin={"t": above, "b": below}, sliders=[{"pad": {"t": below - SLIDER_PX}}])
    return fig


def _longest(info: GapInfo) -> float:
    """The longest planning time in seconds."""
    return max(float(info.plans["solve_s"].max()), float(info.history["at_s"].max() if len(info.history) else 0.0), 1e-6)


def _frame(info: GapInfo, label: str) -> list[go.Scatter]:
    """Return one frame: bound and value over the search, bound curve, front, plan, and the plan's gap."""
    plan = info.plans[info.plans["label"] == label].iloc[0]
    lines, longest = info.history[info.history["label"] == label], _longest(info)
    end = {"solver": "end", "at_s": plan["solve_s"], "value": plan["value"], "lower_bound": plan["lower_bound"]}
    if len(lines):
        lines = pd.concat([lines, pd.DataFrame([{**end, "label": label}])], ignore_index=True)
    bounds = lines["lower_bound"].where(lines["lower_bound"] > 0, np.nan)  # 0: nothing is proved yet
    texts = [
        hover([("value", number(row.value, digits=4)), ("lower bound", number(row.lower_bound or None, digits=4))],
              f"{clean(row.solver)}, after {number(row.at_s, 's')}")
        for row in lines.itertuples()
    ]  # fmt: skip
    front, bound = (table[table["label"] == label] for table in (info.front, info.bound))
    return [
        go.Scatter(
            x=lines["at_s"], y=bounds, mode="lines+markers", name="lower bound of the value", hovertext=texts,
            hoverinfo="text", line={"color": BOUND, "dash": "dash", "shape": "hv", "width": 2}, marker={"size": 6},
        ),
        go.Scatter(
            x=lines["at_s"], y=lines["value"], mode="lines+markers+text", name="best plan so far", hovertext=texts,
            hoverinfo="text", line={"color": BLUE, "shape": "hv", "width": 2}, marker={"size": 7},
            text=[clean(name) if i < len(lines) - 1 else "" for i, name in enumerate(lines["solver"])],
            textposition=["top left" if at > longest / 2 else "top right" for at in lines["at_s"]],
            textfont={"size": 10}, cliponaxis=False,
        ),
        go.Scatter(
            x=bound["time_s"], y=bound["cost"], mode="lines", name="C(M): lower bound of the cost at makespan M",
            line={"color": BOUND, "dash": "dot", "width": 2},
            hovertemplate="<b>lower bound</b><br>makespan up to %{x:.3g} s<br>at least %{y:,.4g} GPU-seconds<extra></extra>",
        ),
        go.Scatter(
            x=front["time_s"], y=front["cost"], mode="markers", name="plans of the front", customdata=front["actors"],
            marker={"color": ORANGE, "symbol": "circle-open", "size": 7},
            hovertemplate="plan with %{customdata} actors<br>%{x:.3g} s<br>%{y:,.4g} GPU-seconds<extra></extra>",
        ),
        go.Scatter(
            x=[plan["makespan_s"]], y=[plan["gpu_seconds"]], mode="markers", name="this plan", hoverinfo="skip",
            marker={"color": VERMILLION, "symbol": "star", "size": 15, "line": {"width": 1, "color": "#444444"}},
        ),
        go.Scatter(
            x=[clean(label)], y=[plan["gap"] * 100], mode="markers", showlegend=False, hoverinfo="skip",
            marker={"color": VERMILLION, "symbol": "star", "size": 15, "line": {"width": 1, "color": "#444444"}},
        ),
    ]  # fmt: skip


def _decades(values: pd.Series) -> list[float]:
    """Return the range of a logarithmic axis for all frames: plotly does not fit axes again when a frame is shown."""
    positive = values[values > 0]
    if positive.empty:
        return [0.0, 1.0]
    low, high = math.log10(positive.min()), math.log10(positive.max())
    room = 0.06 * max(high - low, 0.1)
    return [low - room, high + room]


def _line(info: GapInfo, label: str) -> str:
    """Describe the frame in words."""
    row = info.plans[info.plans["label"] == label].iloc[0]
    proof = (
        f"lower bound {number(row['lower_bound'], digits=4)}, gap {row['gap']:.2%}"
        if row["gap"] == row["gap"]
        else "no lower bound"
    )
    return f"{counted(int(row['actors']), 'actor')}: value {number(row['value'], digits=4)}, {proof}"
