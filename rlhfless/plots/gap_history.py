"""Plots what each part of planning did to value and lower bound, with a slider over plans (slots, limits).

Inputs are plans with their history, and fronts with their bound curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.frames import start_at, with_frames
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, BOUND, ORANGE, VERMILLION
from rlhfless.plots.plane import bound_line, this_plan
from rlhfless.plots.style import clean, counted, hover, message_figure, number
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from solver.generation.pareto_front import Front
    from solver.model.plan import Plan

TITLE = "How planning improved the plan and its lower bound"


class _Data(NamedTuple):
    """Data of ``plot_gap_history``: plans by label.

    Attributes:
        plans: ``label, value, lower_bound, gap`` (NaN without a bound), ``actors, makespan_s, gpu_seconds, status, solve_s``.
            Values are of ``Plan.value``: ``T^w C^(1-w)`` relative to the random split, or what is minimised under a limit.
        parts: ``label, part, value, value_by, lower_bound, bound_by``: the value after each part of planning and the bound (NaN
            where nothing is proved yet), and by how much the part changed them (``Plan.moved``). Under a limit they begin with
            the part that found the first plan that meets it.
        front: ``label, time_s, cost, actors`` of the plans of the fronts; bound: ``label, time_s, cost`` where it is finite.
        missing: why there is nothing to show, or the empty text.
    """

    plans: pd.DataFrame
    parts: pd.DataFrame
    front: pd.DataFrame
    bound: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return all tables below each other; fronts and bounds cost ``gpu_seconds``."""
        cost = {"cost": "gpu_seconds"}
        return stacked(
            plans=self.plans, parts=self.parts, front=self.front.rename(columns=cost), bound=self.bound.rename(columns=cost)
        )


def _data(plans: Mapping[Any, Plan], fronts: Mapping[Any, Front] | None = None) -> _Data:
    """Return the data of ``plot_gap_history``."""
    nan = math.nan
    totals = [
        (str(label), nan if p.value is None else p.value, nan if p.lower_bound is None else p.lower_bound,
         nan if p.gap is None else p.gap, len(p.actors), p.makespan_s, p.gpu_seconds, p.status, p.solve_s)
        for label, p in plans.items()
    ]  # fmt: skip
    parts = [(str(label), *row) for label, p in plans.items() for row in _parts(p)]
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
    return _Data(
        pd.DataFrame(totals, columns=columns),
        pd.DataFrame(parts, columns=["label", "part", "value", "value_by", "lower_bound", "bound_by"]),
        pd.DataFrame(of_fronts, columns=["label", "time_s", "cost", "actors"]),
        pd.DataFrame(curves, columns=["label", "time_s", "cost"]),
        "" if plans else "There are no plans to show.",
    )


def _parts(plan: Plan) -> list[tuple[str, float, float, float, float]]:
    """Return part, value after it, by how much it fell, bound after it and by how much it rose, in the order of the parts."""
    moved = plan.moved()
    if plan.value is None or not moved:
        return []
    values = [plan.value]
    for row in reversed(moved[1:]):
        values.append(values[-1] + row.value_by)
    bounds = np.cumsum([plan.history[0].lower_bound, *(row.bound_by for row in moved[1:])])
    return [
        (row.solver, value, row.value_by, bound if bound > 0 else math.nan, row.bound_by)
        for row, value, bound in zip(moved, values[::-1], bounds.tolist(), strict=True)
        if math.isfinite(value)
    ]


def plot_gap_history(
    plans: Mapping[Any, Plan], fronts: Mapping[Any, Front] | None = None, *, of: str = "plan", start: Any = None
) -> DataFigure:
    """Plot value and bound after each part, the bound curve under the front's plans, and the gap of every plan.

    Args:
        plans: label (of the slider) to plan. fronts: the same labels to the front in GPU-seconds.
        of: what the labels are. start: the label that is shown first; the middle one when None.

    Returns:
        A figure with one frame per label; without plans it is a figure that says so.
    """
    info = _data(plans, fronts)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    labels = [str(label) for label in plans]
    first = start_at(labels, start)
    shown_labels = [clean(label) for label in labels]
    fig = figure_of(info.to_frame(), rows=1, cols=3, column_widths=[0.33, 0.4, 0.27], horizontal_spacing=0.085)
    for trace, col in zip(_frame(info, labels[first]), (1, 1, 2, 2, 2, 3), strict=True):
        fig.add_trace(trace, row=1, col=col)
    gaps = info.plans.assign(shown=shown_labels, percent=info.plans["gap"] * 100)
    of_gap: dict[str, Any] = {"name": "gap", "hovertemplate": f"{clean(of)} %{{x}}<br>gap: %{{y:.2f}} %<extra></extra>"}
    drawn = line(gaps, "shown", "percent", line={"color": BLUE}, marker={"size": 6}, showlegend=False, **of_gap)
    fig.add_trace(drawn, row=1, col=3)
    values = pd.concat([info.parts["value"], info.parts["lower_bound"], info.plans["value"]]).dropna()
    values = values[values > 0]
    if len(values):
        room = max(values.max() - values.min(), 0.02 * values.max())
        fig.update_xaxes(range=[values.min() - 0.1 * room, values.max() + 0.1 * room], row=1, col=1)
    fig.update_xaxes(title="weighted time and cost", row=1, col=1)
    fig.update_yaxes(
        type="category", categoryorder="array", categoryarray=_order(info), autorange="reversed", automargin=True, row=1, col=1
    )
    times = pd.concat([info.bound["time_s"], info.front["time_s"], info.plans["makespan_s"]])
    costs = pd.concat([info.bound["cost"], info.front["cost"], info.plans["gpu_seconds"]])
    fig.update_xaxes(title="time (s)", type="log", range=_decades(times), row=1, col=2)
    fig.update_yaxes(title="cost (GPU-seconds)", type="log", range=_decades(costs), row=1, col=2)
    fig.update_xaxes(title=clean(of), type="category", categoryorder="array", categoryarray=shown_labels, row=1, col=3)
    fig.update_yaxes(title="gap to the lower bound (%)", rangemode="tozero", row=1, col=3)
    return with_frames(
        fig, TITLE, labels, first, lambda i: _frame(info, labels[i]), lambda i: _line(info, labels[i]), of=clean(of),
        px=(240, 120, 86), panels=("after each part of planning", "best plans above the lower bound", f"gap by {clean(of)}"),
    )  # fmt: skip


def _order(info: _Data) -> list[str]:
    """Return all parts in the order in which they run; plans that lack some of them have the others in the same order."""
    each = [parts.tolist() for _, parts in info.parts.groupby("label", sort=False)["part"]]
    return [clean(part) for part in dict.fromkeys(part for parts in sorted(each, key=len, reverse=True) for part in parts)]


def _frame(info: _Data, label: str) -> list[dict[str, Any]]:
    """Return one frame: bound and value after each part, bound curve, front, plan, and the plan's gap."""
    plan = info.plans[info.plans["label"] == label].iloc[0]
    parts = info.parts[info.parts["label"] == label].assign(shown=lambda rows: rows["part"].map(clean))
    front, bound = (table[table["label"] == label] for table in (info.front, info.bound))
    proven, reached = {"color": BOUND, "dash": "dash"}, {"color": BLUE}
    return [
        *(
            line(
                parts, column, "shown", _of_part, name=name, line={**look, "shape": "vh", "width": 2}, marker={"size": 8}
            )
            for column, name, look in (
                ("lower_bound", "lower bound of any plan", proven), ("value", "best plan so far", reached)
            )
        ),
        bound_line(bound, "lower bound of the cost at that time", {"dash": "dot", "shape": "vh"}, y="cost"),
        line(
            front, "time_s", "cost", mode="markers", name="best plans",
            customdata=[counted(n, "actor") for n in front["actors"]],
            marker={"color": ORANGE, "symbol": "circle-open", "size": 7},
            hovertemplate="plan with %{customdata}<br>%{x:.3g} s<br>%{y:,.4g} GPU-seconds<extra></extra>",
        ),
        this_plan([plan["makespan_s"]], [plan["gpu_seconds"]], VERMILLION),
        this_plan([clean(label)], [plan["gap"] * 100], VERMILLION, name=None, showlegend=False),
    ]  # fmt: skip


def _of_part(row: Any) -> str:
    improved = number(row.value_by) if math.isfinite(row.value_by) else "first plan within the limit"
    said = [("weighted time and cost", number(row.value, digits=4)), ("improved by", improved)]
    said += [("lower bound", number(row.lower_bound, digits=4)), ("bound raised by", number(row.bound_by))]
    return hover(said, row.shown)


def _decades(values: pd.Series) -> list[float]:
    """Return the range of a logarithmic axis for all frames: plotly does not fit axes again when a frame is shown."""
    positive = values[values > 0]
    if positive.empty:
        return [0.0, 1.0]
    low, high = math.log10(positive.min()), math.log10(positive.max())
    room = 0.06 * max(high - low, 0.1)
    return [low - room, high + room]


def _line(info: _Data, label: str) -> str:
    """Describe the frame in words."""
    row = info.plans[info.plans["label"] == label].iloc[0]
    proof = (
        f"lower bound {number(row['lower_bound'], digits=4)}, gap {row['gap']:.2%}"
        if row["gap"] == row["gap"]
        else "no lower bound"
    )
    return f"{counted(int(row['actors']), 'actor')}: weighted time and cost {number(row['value'], digits=4)}, {proof}"
