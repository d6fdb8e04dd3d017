"""Plots plans of whole training steps: which model call runs on which GPUs when, and the memory that each GPU needs.

Input is one ``StepPlan``, or several by label, one above the other on one time axis.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.bars import bars
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, COLOURS, GREEN, OUTLINE, PURPLE, SKY, VERMILLION, ink_on
from rlhfless.plots.step_plan_data import MOVES, PERIODS, StepPlanData, data_of_plans
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of
from rlhfless.plots.tracks import bars_by_style, place_panels

if TYPE_CHECKING:
    from rlhfless.plots.step_plan_data import Plans

TITLE = "Step plan"
ROLE_COLOURS = {"actor": BLUE, "critic": GREEN, "reference": SKY, "reward": PURPLE}
KINDS = {
    "generate": ("generation", ""),
    "inference": ("inference", "."),
    "train": ("training", "\\"),
    MOVES: ("weights are sent", "x"),
}
SENT_COLOUR, PALE = "#FFFFFF", "rgba(255,255,255,0.45)"
LEAST_TEXT = 0.06  # share of the time axis: shorter bars have no text
GPU_PX, LEAST_PX, MOST_PX, HEADING_PX = 16, 110, 240, 30
GB = 1e9


def plot_step_plan(plans: Plans, *, memory_bytes: float = math.inf) -> DataFigure:
    """Plot which call runs on which GPUs over two steps of the steady state, and what each GPU needs of its memory.

    A rectangle is a call: its colour is the role, its hatch the kind, its text dp x tp x pp. Crossed white bars are weights on
    their way from the layout of their training. GPUs without a rectangle are idle.

    Args:
        plans: a plan, or several of the same graph and costs by label.
        memory_bytes: of a GPU; a line marks it.

    Returns:
        A figure; without plans one that says so.

    Example:
        >>> from rlhfless.plots import plot_step_plan
        >>> figure = plot_step_plan({"by rule": rule, "planned": plan}, memory_bytes=80e9)
    """
    info = data_of_plans(plans)
    if info.missing:
        return message_figure(TITLE, info.missing, info.bars)
    heights = [min(MOST_PX, max(LEAST_PX, GPU_PX * gpus)) for gpus in info.plans["gpus"]]
    inner = sum(heights) + HEADING_PX * len(heights)
    fig = figure_of(
        info.bars, rows=len(heights), cols=2, column_widths=[0.86, 0.14], horizontal_spacing=0.03, shared_xaxes=True,
        shared_yaxes=True,
    )  # fmt: skip
    colours = _role_colours(info)
    drawn_s = 1.01 * PERIODS * float(info.plans[["period_s", "bound_s"]].max(axis=None))
    ends = place_panels(fig, heights, [HEADING_PX] * len(heights), cols=2)
    calls, styles = _told(info.bars, LEAST_TEXT * drawn_s), _styles(colours)
    for row, (plan, end) in enumerate(zip(info.plans.itertuples(index=False), ends, strict=True), start=1):
        own = calls[calls["plan"] == plan.plan]
        for drawn in bars_by_style(own, styles, "style", at="middle", width="gpus", text="text"):
            fig.add_trace(drawn, row=row, col=1)
        _add_lines(fig, plan, row)
        _add_memory(fig, info.memory[info.memory["plan"] == plan.plan], memory_bytes, row)
        _set_gpu_axis(fig, plan.gpus, plan.gpus_per_node, row)
        fig.add_annotation(
            text=_heading(plan), x=0, xref="paper", y=end, yref="paper", xanchor="left", yanchor="bottom", showarrow=False
        )
    _add_legend(fig, info, colours)
    last = len(heights)
    fig.update_xaxes(range=[0, drawn_s], col=1)
    fig.update_xaxes(title="time (s)", showticklabels=True, row=last, col=1)
    most_bytes = max(info.memory["peak_bytes"].max(), memory_bytes if math.isfinite(memory_bytes) else 0.0)
    fig.update_xaxes(range=[0, 1.1 * most_bytes / GB or 1.0], nticks=3, col=2)
    fig.update_xaxes(title="peak memory (GB)", showticklabels=True, row=last, col=2)
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": -48 / inner, "yanchor": "top", "traceorder": "normal"}
    fig.update_layout(barmode="overlay", bargap=0)
    return styled(
        fig, _title(info), _note(info, memory_bytes), height=round(inner) + 200, legend=legend, margin={"b": 118, "t": 82}
    )


def _role_colours(info: StepPlanData) -> dict[str, str]:
    """Return a colour for every role; roles without a fixed one get the next free one."""
    free = [colour for colour in COLOURS if colour not in ROLE_COLOURS.values()]
    unknown = [role for role in dict.fromkeys(info.bars["role"]) if role not in ROLE_COLOURS]
    return {role: ROLE_COLOURS.get(role) or free[unknown.index(role) % len(free)] for role in dict.fromkeys(info.bars["role"])}


def _told(calls: pd.DataFrame, least_s: float) -> pd.DataFrame:
    """Return rectangles with their middle, texts, and ``style``: the role and the kind; reallocations have no role.

    Args:
        least_s: shorter rectangles have no text.
    """
    rows = list(calls.itertuples(index=False))
    return calls.assign(
        style=[MOVES if bar.kind == MOVES else f"{bar.kind} {bar.role}" for bar in rows],
        middle=calls["first_gpu"] + calls["gpus"] / 2 - 0.5,
        text=[_text(bar, least_s) for bar in rows],
        hover=[_hover(bar) for bar in rows],
    )


def _styles(colours: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the style of the calls of every role and kind, and that of reallocations."""
    hidden = {"showlegend": False, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    white = {"line": {"color": "white", "width": 1}}
    styles = {
        f"{kind} {role}": {
            **hidden, "name": clean(role), "legendgroup": clean(role), "textfont": {"color": ink_on(colour)},
            "marker": {**white, "color": colour, "pattern": {"shape": hatch, "fgcolor": PALE, "size": 7}},
        }
        for role, colour in colours.items()
        for kind, (_, hatch) in KINDS.items()
        if kind != MOVES
    }  # fmt: skip
    crosses = {"shape": KINDS[MOVES][1], "fgcolor": "#333333", "fgopacity": 0.9, "size": 6}
    sent = {"name": MOVES, "legendgroup": MOVES, "marker": {**white, "color": SENT_COLOUR, "pattern": crosses}}
    return {**styles, MOVES: {**hidden, **sent}}


def _add_lines(fig: go.Figure, plan: Any, row: int) -> None:
    """Draw lines at the periods of a plan and at its bounds."""
    for step in range(1, PERIODS + 1):
        fig.add_vline(x=step * plan.period_s, line={"color": OUTLINE, "width": 1}, row=row, col=1)
        if plan.bound_s == plan.bound_s:
            fig.add_vline(x=step * plan.bound_s, line={"color": VERMILLION, "dash": "dash", "width": 1.5}, row=row, col=1)


def _text(bar: Any, least_s: float) -> str:
    """Return name and strategy of a call, or nothing where the rectangle is short or one of several."""
    if bar.kind == MOVES or bar.end_s - bar.start_s < least_s or not bar.largest:
        return ""
    return f"{clean(bar.call, 24)}<br>{bar.dp}x{bar.tp}x{bar.pp}"


def _hover(bar: Any) -> str:
    gpus = f"{bar.first_gpu}" if bar.gpus == 1 else f"{bar.first_gpu} to {bar.first_gpu + bar.gpus - 1}"
    time = ("time", f"{number(bar.start_s)} to {number(bar.end_s, 's')} ({number(bar.seconds, 's')} in all)")
    layout = f"dp {bar.dp}, tp {bar.tp}, pp {bar.pp}"
    if bar.kind == MOVES:
        sent = [("sent in all", number(bar.bytes / GB, "GB")), ("for layout", layout), ("GPUs", gpus), time]
        return hover(sent, f"weights of {clean(bar.role)} are sent for {clean(bar.call)}")
    lines = [("role", clean(bar.role)), ("kind", KINDS[bar.kind][0]), ("GPUs", gpus), ("layout", layout), time]
    return hover([*lines, ("memory per GPU", number(bar.bytes / GB, "GB"))], clean(bar.call))


def _add_memory(fig: go.Figure, memory: pd.DataFrame, limit_bytes: float, row: int) -> None:
    over = memory["peak_bytes"] > limit_bytes
    look = {
        "name": "peak memory", "marker": {"color": [VERMILLION if more else BOUND for more in over], "line": {"width": 0}},
        "width": 0.8, "showlegend": False, "hovertemplate": "GPU %{y}: %{x:.3g} GB<extra></extra>",
    }  # fmt: skip
    fig.add_traces(bars(memory.assign(gb=memory["peak_bytes"] / GB), memory["gpu"], {"gb": look}), rows=row, cols=2)
    if math.isfinite(limit_bytes):
        fig.add_vline(x=limit_bytes / GB, line={"color": VERMILLION, "width": 1.5}, row=row, col=2)


def _set_gpu_axis(fig: go.Figure, gpus: int, gpus_per_node: int, row: int) -> None:
    """Label GPUs one by one on one node, else node by node, with a line between nodes."""
    nodes = max(1, gpus // gpus_per_node)
    ticks: dict[str, Any] = {"tickvals": list(range(gpus)), "title": "GPU"}
    if nodes > 1:
        step = max(1, math.ceil(nodes / 8))
        shown = range(0, nodes, step)
        middle = [node * gpus_per_node + gpus_per_node / 2 - 0.5 for node in shown]
        ticks = {"tickvals": middle, "ticktext": [f"node {node}" for node in shown]}
    for col in (1, 2):
        fig.update_yaxes(
            range=[gpus - 0.5, -0.5], showgrid=False, zeroline=False, **(ticks if col == 1 else {}), row=row, col=col
        )
        for node in range(1, nodes):
            fig.add_hline(
                y=node * gpus_per_node - 0.5,
                line={"color": OUTLINE, "width": 1, "dash": "dot"},
                layer="below",
                row=row,
                col=col,
            )


def _add_legend(fig: go.Figure, info: StepPlanData, colours: dict[str, str]) -> None:
    """Name colours of roles and hatches of kinds, as the bars of one role have several hatches."""
    for role, colour in colours.items():
        fig.add_bar(x=[None], y=[None], name=clean(role), legendgroup=clean(role), marker={"color": colour}, row=1, col=1)
    for kind in [kind for kind in KINDS if kind in set(info.bars["kind"])]:
        words, hatch = KINDS[kind]
        fig.add_bar(
            x=[None], y=[None], name=words, legendgroup=clean(kind), row=1, col=1,
            marker={"color": "#D5D5D5", "pattern": {"shape": hatch, "fgcolor": "#333333", "size": 6, "solidity": 0.35}},
        )  # fmt: skip


def _heading(plan: Any) -> str:
    bound = f", {plan.period_s / plan.bound_s:.2f}x the lower bound" if plan.bound_s == plan.bound_s else ""
    misfit = ", <b>does not fit</b>" if plan.status == "infeasible" else ""
    return f"<b>{clean(plan.plan, 30)}</b>: {number(plan.period_s, 's')}{bound}{misfit}"


def _title(info: StepPlanData) -> str:
    first, last = info.plans.iloc[0], info.plans.iloc[-1]
    if len(info.plans) == 1:
        return f"{TITLE} of {clean(first['algorithm'], 30)}: {number(first['period_s'], 's')} per step"
    others = info.plans.iloc[:-1]
    fitting = others[others["status"] != "infeasible"]
    strongest = (fitting if len(fitting) else others).sort_values("period_s").iloc[0]
    faster = strongest["period_s"] / last["period_s"]
    of = f", the shortest of {len(others)} others" if len(others) > 1 else ""
    return f"{number(last['period_s'], 's')} per step, {faster:.2f}x as fast as {clean(strongest['plan'], 30)}{of}"


def _note(info: StepPlanData, memory_bytes: float) -> str:
    bound = "<br>dashed: lower bound on one step and on two" if info.plans["bound_s"].notna().any() else ""
    limit = " against its memory" if math.isfinite(memory_bytes) else ""
    over = "<br>does not fit: a GPU needs more memory than it has" if (info.plans["status"] == "infeasible").any() else ""
    return f"left: two steps, one after the other; white: idle{bound}<br>right: peak memory of each GPU{limit}{over}"
