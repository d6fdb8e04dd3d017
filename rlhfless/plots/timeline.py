"""Plots the GPU timeline of a step: allocations, phases, idle time, and the plan's predicted times.

Input is the data of ``timeline_data``. One row per holder. The light bar is the allocation, which is what is billed; where no
phase covers it, GPUs were allocated and idle. One plotly trace per phase.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.palette import IDLE, PHASE_STYLES
from rlhfless.plots.style import INK, clean, counted, message_figure, number, styled
from rlhfless.plots.timeline_data import MAX_SPANS, TimelineInfo, of_roles, timeline_info
from rlhfless.plots.utilisation import add_busy_heatmap
from rlhfless.trace import PHASES, Trace

MAX_LABELS = 32
BAR, BEHIND, PLANNED = (-0.27, 0.54), (-0.42, 0.12), (0.30, 0.13)  # offset and width of the bars of a row
EVENT_SYMBOLS = ("triangle-down", "diamond", "x", "star")


def plot_timeline(
    trace: Trace,
    step: int | None = None,
    run: str | None = None,
    *,
    roles: Collection[str] | None = None,
    max_spans: int = MAX_SPANS,
    between_s: tuple[float, float] | None = None,
) -> go.Figure:
    """Plot the GPU timeline of a step, coloured by phase, with the plan below each row and idle time in a light colour.

    Args:
        trace: any trace.
        step: the last one when None.
        run: the first one of the trace when None.
        roles: only holders of these roles (``("decode",)`` leaves the learner out); all when None.
        max_spans: with more spans it is a heatmap of the share of time that each holder is busy.
        between_s: only this part of the step, in seconds since its start; all of it when None. A part may have few enough spans
            to be drawn one by one where the whole step has not.

    Returns:
        A figure; for a trace without allocations and spans one that says so.
    """
    chosen = trace if roles is None else of_roles(trace, roles)
    info = timeline_info(chosen, step, run, max_spans=max_spans, between_s=between_s)
    if info.missing:
        return message_figure(f"GPU timeline of step {info.step}", info.missing)
    fig = go.Figure()
    if len(info.spans) > max_spans:
        add_busy_heatmap(fig, info.allocations, info.spans, info.labels, between_s)
        note = f"{len(info.spans):,} spans, drawn as the share of time that each holder is busy"
    else:
        note = add_bars(fig, info)
    _add_events(fig, info)
    rows = len(info.holders)
    shown = range(0, rows, -(-rows // MAX_LABELS))
    fig.update_yaxes(
        tickvals=list(shown),
        ticktext=[info.labels[i] for i in shown],
        range=[rows - 0.45, -0.55],
        title="holder (its GPUs)",
        zeroline=False,
        showgrid=False,
    )
    fig.update_xaxes(title="time since the start of the step (s)", rangemode="tozero")
    if between_s is not None:
        fig.update_xaxes(range=list(between_s))
    return styled(fig, _title(info), note, height=int(min(760, max(280, 175 + 34 * rows))), barmode="overlay")


def _title(info: TimelineInfo) -> str:
    actors = counted(len(info.holders), "actor" if info.only_actors else "holder")
    if info.allocations.empty:
        return f"GPU timeline of step {info.step}: {actors}; without allocations, cost and idle time are unknown"
    idle = info.idle_gpu_seconds / info.gpu_seconds if info.gpu_seconds > 0 else 0.0
    return (
        f"GPU timeline of step {info.step}: {actors}, {number(info.time_s, 's')}, {number(info.gpu_seconds, 'GPU-seconds')}, "
        f"{idle:.1%} of them idle"
    )


def add_bars(fig: go.Figure, info: TimelineInfo, **cell: int) -> str:
    """Draw allocations, phases and the plan; returns the legend of the bars.

    Args:
        cell: ``row`` and ``col`` of a figure with several timelines.
    """
    if len(info.allocations):
        _bar(fig, info.allocations, BAR, "allocated, idle", {"color": IDLE, "line": {"color": "#A6A6A6", "width": 1}}, **cell)
    for phase in sorted(PHASES, key=lambda p: p not in ("decode", "learn", "prepare")):  # short phases on top of long ones
        style = PHASE_STYLES[phase]
        marker: dict[str, Any] = {"color": style.colour, "line": {"width": 0}}
        if style.hatch:
            marker["pattern"] = {"shape": style.hatch, "fgcolor": "rgba(255,255,255,0.65)", "size": 5, "solidity": 0.25}
        subset = info.spans[info.spans["phase"] == phase]
        if len(subset):
            behind = subset["background"].to_numpy(dtype=bool)
            place = ([(BEHIND if b else BAR)[0] for b in behind], [(BEHIND if b else BAR)[1] for b in behind])
            name = f"{phase} (overlaps decode)" if behind.all() else phase
            _bar(fig, subset, place, name, marker, legendrank=1 + PHASES.index(phase), **cell)
    notes = []
    if len(info.planned):
        hatch = {"shape": "/", "fgcolor": "#8A8A8A", "bgcolor": "rgba(127,127,127,0.12)", "size": 4, "solidity": 0.35}
        marker = {"color": "rgba(0,0,0,0)", "pattern": hatch, "line": {"color": "#8A8A8A", "width": 1}}
        _bar(fig, info.planned, PLANNED, "planned", marker, legendrank=100, **cell)
        notes.append("thick bar: executed; hatched bar below it: predicted by the plan")
    if len(info.spans) and info.spans["background"].any():
        notes.append("thin bar above: transfers that overlap decode")
    return "; ".join(notes)


def _bar(
    fig: go.Figure,
    bars: pd.DataFrame,
    place: tuple[Any, Any],
    name: str,
    marker: Mapping[str, Any],
    legendrank: int = 0,
    **cell: int,
) -> None:
    fig.add_bar(
        base=bars["start_s"].to_numpy(), x=(bars["end_s"] - bars["start_s"]).to_numpy(), y=bars["row"].to_numpy(),
        offset=place[0], width=place[1], orientation="h", name=name, marker=marker, legendrank=legendrank,
        hovertext=bars["hover"].tolist(), hoverinfo="text", **cell,
    )  # fmt: skip


def _add_events(fig: go.Figure, info: TimelineInfo) -> None:
    for i, (name, of_name) in enumerate(info.events.groupby("name", sort=True)):
        symbol = EVENT_SYMBOLS[i % len(EVENT_SYMBOLS)]
        fig.add_scatter(
            x=of_name["time_s"], y=of_name["row"] + (BAR[0] - 0.06), mode="markers", name=f"event: {clean(name, 24)}",
            marker={"symbol": symbol, "size": 9, "color": INK, "line": {"width": 1, "color": "#FFFFFF"}},
            legendrank=200 + i, showlegend=True,
            hovertext=of_name["hover"].tolist(), hoverinfo="text",
        )  # fmt: skip
