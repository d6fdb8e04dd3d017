"""The GPU timelines of one step under several schedules, on one time axis, with the responses that moved.

Knows what ``timeline_rows`` finds in each trace, and which transfers were hand-overs; nothing of how schedules came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.plots.palette import VERMILLION
from rlhfless.plots.style import INK, clean, counted, message_figure, number, styled
from rlhfless.plots.timeline import add_bars
from rlhfless.plots.timeline_rows import MAX_SPANS, TimelineInfo, of_roles, timeline_info
from rlhfless.trace import Trace

ROW_PX, GAP_PX, FRAME_PX = 24, 42, 200
MOST_ROWS = 120


class TimelinesInfo(NamedTuple):
    """Schedules by name.

    Attributes:
        timelines: of every schedule, times since the start of the step.
        moves: of every schedule: ``from_row, to_row, start_s, end_s`` of KV caches that were handed over. A response whose
            context is recomputed by its receiver moves without a transfer and is not among them.
        missing: why there is nothing to show, or the empty text.
    """

    timelines: dict[str, TimelineInfo]
    moves: dict[str, pd.DataFrame]
    missing: str = ""


def timelines_info(traces: Mapping[str, Trace], step: int | None = None) -> TimelinesInfo:
    """What ``plot_timelines`` shows."""
    chosen = {str(name): of_roles(trace, ("decode",)) for name, trace in traces.items()}
    infos = {name: timeline_info(trace, step) for name, trace in chosen.items()}
    missing = next((f"{clean(name)}: {why}" for name, info in infos.items() if (why := _why_not(info))), "")
    if not infos:
        missing = "There are no schedules to show."
    elif not missing and (rows := sum(len(info.holders) for info in infos.values())) > MOST_ROWS:
        missing = f"There are {rows} actors in all, more than fit in a figure; show fewer schedules, or each by itself."
    if missing:
        return TimelinesInfo(infos, {}, missing)
    return TimelinesInfo(infos, {name: _moves(trace, infos[name]) for name, trace in chosen.items()})


def _why_not(info: TimelineInfo) -> str:
    """Why a timeline cannot be shown beside others, or the empty text."""
    if len(info.spans) > MAX_SPANS:
        return f"{len(info.spans):,} spans are more than can be drawn; show it by itself"
    return info.missing


def _moves(trace: Trace, info: TimelineInfo) -> pd.DataFrame:
    row_of = {name: row for row, name in enumerate(info.holders)}
    spans = trace.spans
    own = (spans["run"] == info.run) & (spans["step"] == info.step) & (spans["phase"] == "transfer")
    sent = spans[own & spans["from_actor"].isin(list(row_of))]
    return pd.DataFrame(
        {
            "from_row": sent["from_actor"].map(row_of).astype(int).to_numpy(),
            "to_row": sent["holder"].map(row_of).astype(int).to_numpy(),
            "start_s": sent["start_s"].to_numpy() - info.start_s,
            "end_s": sent["end_s"].to_numpy() - info.start_s,
        }
    )


def plot_timelines(traces: Mapping[str, Trace], step: int | None = None) -> go.Figure:
    """The timelines of one step under several schedules, one below the other on one time axis; only actors that decode.

    Args:
        traces: schedule to trace. step: the last one of each when None.

    Returns:
        A figure; where a trace has no timeline, one that says so.
    """
    info = timelines_info(traces, step)
    title = f"GPU timelines of one step under {counted(len(info.timelines), 'schedule')}"
    if info.missing:
        return message_figure(title, info.missing)
    timelines = list(info.timelines.items())
    sizes = [len(one.holders) for _, one in timelines]
    inner = ROW_PX * sum(sizes) + GAP_PX * (len(sizes) - 1)
    fig = make_subplots(
        rows=len(sizes), cols=1, shared_xaxes=True, row_heights=sizes,
        vertical_spacing=GAP_PX / inner if len(sizes) > 1 else 0.0,
        subplot_titles=[_heading(name, one, len(info.moves[name])) for name, one in timelines],
    )  # fmt: skip
    fig.update_annotations(x=0.0, xanchor="left", font={"size": 13, "color": INK})
    notes = []
    for panel, (name, one) in enumerate(timelines, start=1):
        notes.append(add_bars(fig, one, row=panel, col=1))
        _add_moves(fig, info.moves[name], panel)
        fig.update_yaxes(
            tickvals=list(range(len(one.holders))), ticktext=list(one.labels), range=[len(one.holders) - 0.4, -0.6],
            tickfont={"size": 10}, zeroline=False, showgrid=False, row=panel, col=1,
        )  # fmt: skip
    named: set[str] = set()
    for drawn in fig.data:
        drawn.update(legendgroup=drawn.name, showlegend=drawn.name not in named)
        named.add(drawn.name)
    below = {"orientation": "h", "x": 0, "xanchor": "left", "y": -54 / inner, "yanchor": "top", "traceorder": "normal"}
    styled(fig, title, max(notes, key=len), height=inner + FRAME_PX, barmode="overlay", legend=below)
    end_s = max(float(max(one.allocations["end_s"].max(), one.planned["end_s"].max())) for _, one in timelines)
    fig.update_xaxes(range=[0, 1.02 * end_s])
    fig.update_xaxes(title="time since the start of the step (s)", row=len(sizes), col=1)
    fig.update_layout(margin={"t": 94, "b": 106})
    return fig


def _heading(name: str, one: TimelineInfo, moves: int) -> str:
    idle = one.idle_gpu_seconds / one.gpu_seconds if one.gpu_seconds > 0 else 0.0
    text = f"{counted(len(one.holders), 'actor')}, {number(one.time_s, 's')}, {number(one.gpu_seconds, 'GPU-seconds')}"
    return f"<b>{clean(name)}</b>: {text}, {idle:.1%} of them idle" + (f", {counted(moves, 'move')}" if moves else "")


def _add_moves(fig: go.Figure, moves: pd.DataFrame, panel: int) -> None:
    """One line from the sender to the receiver of every move: one plotly trace for all, as lines with gaps."""
    if moves.empty:
        return
    at = [x for one in moves.itertuples() for x in (one.start_s, one.end_s, None)]
    rows = [y for one in moves.itertuples() for y in (one.from_row, one.to_row, None)]
    fig.add_scatter(
        x=at, y=rows, mode="lines+markers", name="a response moves (dot: where to)", line={"color": VERMILLION, "width": 1},
        marker={"size": [0, 6, 0] * len(moves), "color": VERMILLION, "line": {"width": 1, "color": "#FFFFFF"}},
        hoverinfo="skip", legendrank=150, row=panel, col=1,
    )  # fmt: skip
