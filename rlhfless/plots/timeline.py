"""Plots the GPU timeline of a step: allocations, phases, idle time, and the plan's predicted times.

Input is the data of ``timeline_data``. One row per holder. The light bar is the allocation, which is what is billed; where no
phase covers it, GPUs were allocated and idle. Decoding is blue, and the paler the fewer slots of the batch are in use. One
plotly trace per phase.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.clock import with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import trace_of
from rlhfless.plots.last_response import LastResponse
from rlhfless.plots.palette import SELECTED, VERMILLION
from rlhfless.plots.style import clean, counted, hover, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of
from rlhfless.plots.timeline_data import MAX_SPANS, StepTimeline, of_roles, step_timeline
from rlhfless.plots.tracks import (
    ALLOCATED,
    BACKGROUND_NOTE,
    BAR,
    DRAWN_PHASES,
    PLANNED,
    PLANNED_NOTE,
    SHADES_NOTE,
    decode_style,
    event_marks,
    phase_style,
    shade_samples,
    track_axis,
    track_bars,
)
from rlhfless.plots.utilisation import add_use_heatmap
from rlhfless.trace import Trace

CUT_ROOM, SQUEEZED = 1.12, 4.0  # where a cut axis ends, in times of generation; it is cut if the step takes so much longer
MOST_KINDS = 4  # of rows that a subtitle names
LITTLE = 0.0005  # share of the GPU-seconds that is rounded to none
VISIBLE = 0.002  # share of the time axis; shorter bars cannot be seen
ENTRY_PX = 19  # of the legend beside the plot


def plot_timeline(
    trace: Trace | str | Path,
    step: int | None = None,
    run: str | None = None,
    *,
    roles: Collection[str] | None = None,
    max_spans: int = MAX_SPANS,
    between_s: tuple[float, float] | None = None,
    selected: int | None = None,
) -> DataFigure:
    """Plot the GPU timeline of a step, coloured by phase, with the plan below each row and idle time in a light colour.

    Decoding is the darker the more of the actor's slots are in use. An arrow shows the end of the response that the step waited
    for, which is named above the plot. Where other roles (a learner) take several times as long as generation, the axis
    ends with generation, their rows say when they end, and zooming out shows the rest.

    Args:
        trace: any trace, or the folder of one.
        step: the last one when None.
        run: the first one of the trace when None.
        roles: only holders of these roles (``("decode",)`` leaves the learner out); all when None.
        max_spans: with more spans it is a heatmap of the share of slots that each holder uses, the emptiest rows at the bottom.
        between_s: only this part of the step, in seconds since its start; all of it when None. A part may have few enough spans
            to be drawn one by one where the whole step has not.
        selected: the row of ``trace.rollouts`` of a response whose end is marked, in the row of the actor that completed it.

    Returns:
        A figure; for a trace without allocations and spans one that says so.

    Raises:
        InputError: it is no trace.
        TraceError: the folder holds none.

    Example:
        >>> import rlhfless as rl
        >>> from rlhfless.plots import plot_timeline
        >>> plot_timeline(rl.load(rl.example(), verbose=False).trace, step=0).layout.xaxis.title.text
        'time since the start of the step (s)'
    """
    trace = trace_of(trace, "plot_timeline")
    chosen = trace if roles is None else of_roles(trace, roles)
    info = step_timeline(chosen, step, run, max_spans=max_spans, between_s=between_s)
    if info.missing:
        return message_figure(f"GPU timeline of step {info.step}", info.missing, info.to_frame())
    fig = figure_of(info.to_frame)
    legend: dict[str, Any] = {}
    if len(info.spans) > max_spans:
        legend = {"above": 30, "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"}}  # beside is the scale
        place, labels = add_use_heatmap(fig, info, between_s)
        notes = [f"{len(info.spans):,} spans, drawn as the share of slots (of time, outside decoding) that each row uses"]
    else:
        place, labels = {row: float(row) for row in range(len(info.holders))}, list(info.labels)
        notes = [add_bars(fig, info, shade_samples(info.decoding["in_use"])), hide_unseen(fig, info.time_s)]
    _add_events(fig, info, place)
    if selected is not None:
        _add_selected(fig, info, place, trace.rollouts.loc[selected])
    cut_s = _cut_s(info) if between_s is None else info.time_s
    if cut_s < info.time_s:
        fig.update_xaxes(range=[0, cut_s])
        _hide_later(fig, cut_s)
        notes.append(_tell_ends(info, place, labels, cut_s))
    if info.last is not None and len(info.holders) > 1 and _within(info.last.end_s, between_s):
        notes.append(_add_last_response(fig, info.last, place[info.last.row]))
    rows = len(labels)
    fig.update_yaxes(**track_axis(labels), title=f"{'actor' if info.only_actors else 'actor or learner'} (its GPUs)")
    fig.update_xaxes(title="time since the start of the step (s)", rangemode="tozero")
    if between_s is not None:
        fig.update_xaxes(range=list(between_s))
    entries = 0 if legend else sum(drawn.showlegend is not False for drawn in fig.data)
    height = int(max(300, min(780, 190 + 34 * rows), 146 + ENTRY_PX * entries))
    title = f"GPU timeline of step {info.step}{empty_words(info)}"
    below = "<br>".join(filter(None, [with_clock(_summary(info), trace.meta), *notes]))
    return styled(fig, title, below, height=height, barmode="overlay", **legend)


def empty_words(info: StepTimeline) -> str:
    """Return the waste as the end of a title; the empty text where it is unknown."""
    share = info.capacity.empty_share
    return "" if share != share else f": {share:.0%} of the paid decode capacity stood empty"


def sums_in_words(info: StepTimeline, sized: bool = False) -> str:
    """Return number of actors, time, GPU-seconds, cost and idle share of a step in words.

    Args:
        sized: state the GPUs of an actor, too, where every row has an allocation.
    """
    actors = _rows_in_words(info)
    if sized and info.only_actors and sum(holders for holders, *_ in info.sizes) == len(info.holders):
        actors += _sizes_in_words(info.sizes)
    idle = info.idle_gpu_seconds / info.gpu_seconds if info.gpu_seconds > 0 else 0.0
    parts = [actors, number(info.time_s, "s"), number(info.gpu_seconds, "GPU-seconds"), usd(info.cost_usd)]
    gpu_s = "no GPU-seconds idle" if idle < LITTLE else f"{number(info.idle_gpu_seconds)} GPU-seconds idle ({idle:.1%})"
    return f"{', '.join(filter(None, parts))}; {gpu_s}"


def _rows_in_words(info: StepTimeline) -> str:
    """Return the number of actors; where other rows are there, that of rows and what they are."""
    if info.only_actors:
        return counted(len(info.holders), "actor")
    kinds = [re.sub(r"-\d+$", "", holder) for holder in info.holders]
    names = [clean(kind, 20) + "s" * (kinds.count(kind) > 1) for kind in dict.fromkeys(kinds)]
    several = [*names[:MOST_KINDS], *["others"] * (len(names) > MOST_KINDS)]
    return f"{counted(len(info.holders), 'row')} ({', '.join(several)})"


def _sizes_in_words(sizes: Sequence[tuple[int, int, str]]) -> str:
    """Return `` of 2 h100 each``, or how many actors have which size."""
    words = [(number, f"{gpus} {clean(kind, 20)}") for number, gpus, kind in sizes]
    if len(words) == 1:
        ((actors, size),) = words
        return f" of {size}" + " each" * (actors > 1)
    return f" ({', '.join(f'{number} of {size}' for number, size in words)})"


def _summary(info: StepTimeline) -> str:
    if info.allocations.empty:
        return f"{_rows_in_words(info)}; without allocations, cost and idle time are unknown"
    empty = info.capacity.empty_slots_gpu_s
    return sums_in_words(info) + (f", {number(empty)} in empty slots of batches" if empty == empty and empty > 0 else "")


def _within(time_s: float, between_s: tuple[float, float] | None) -> bool:
    return between_s is None or between_s[0] <= time_s <= between_s[1]


def _cut_s(info: StepTimeline) -> float:
    """Return where the axis ends: shortly after generation if what follows would squeeze it, else the end of the step."""
    cut_s = CUT_ROOM * info.generation_s
    return cut_s if cut_s * SQUEEZED < info.time_s else info.time_s


def _hide_later(fig: go.Figure, cut_s: float) -> None:
    """Take the names of bars that all begin beyond the axis from the legend."""
    bars = [drawn for drawn in fig.data if drawn.type == "bar"]
    starts = [(drawn.name, [0.0] if drawn.base is None else drawn.base) for drawn in bars]
    begun = {name for name, at in starts if any(one is not None and one < cut_s for one in at)}
    for drawn in bars:
        if drawn.name not in begun:
            drawn.showlegend = False


def _tell_ends(info: StepTimeline, place: Mapping[int, float], labels: list[str], cut_s: float) -> str:
    """Add their ends to the labels of the rows that continue beyond the axis; returns a note."""
    ends = pd.concat([info.allocations, info.spans]).groupby("row")["end_s"].max()
    later = ends[ends > cut_s]
    for at, end_s in later.groupby(later.index.map(place)).max().items():
        labels[round(at)] += f", until {number(end_s, 's')} \u2192"
    return f"the axis ends shortly after generation; later ends: {counted(len(later), 'row')}"


def _add_last_response(fig: go.Figure, last: LastResponse, at: float) -> str:
    """Add an arrow to the end of the response that the step waited for; returns its name, which stands above the plot.

    Args:
        at: its row on the axis.
    """
    fig.add_scatter(
        x=[last.end_s], y=[at + BAR[0]], mode="markers", name="last response", legendrank=199, showlegend=True,
        marker={"symbol": "arrow-down", "size": 13, "color": VERMILLION, "line": {"width": 1, "color": "#FFFFFF"}},
        hovertext=[hover([("ends", number(last.end_s, "s")), ("which", last.name)], "last response")], hoverinfo="text",
        cliponaxis=False,
    )  # fmt: skip
    return last.text


def hide_unseen(fig: go.Figure, end_s: float) -> str:
    """Take the names of bars that are too short to be seen from the legend; returns a note that says which.

    Many short bars of a row are seen where they are long together.

    Args:
        end_s: where the time axis ends.
    """
    longest: dict[str, float] = {}
    for drawn in fig.data:
        if drawn.type == "bar" and drawn.x[0] is not None:
            seconds = float(
                np.bincount(np.asarray(drawn.y, dtype=int), weights=np.asarray(drawn.x, dtype=float)).max(initial=0.0)
            )
            longest[drawn.name] = max(longest.get(drawn.name, 0.0), seconds)
    unseen = [name for name, x in longest.items() if x < VISIBLE * end_s]
    for drawn in fig.data:
        if drawn.name in unseen:
            drawn.showlegend = False
    return f"too short to be seen: {', '.join(unseen)}" if unseen else ""


def add_bars(fig: go.Figure, info: StepTimeline, samples: Sequence[dict[str, Any]], **cell: int) -> str:
    """Draw allocations, phases and the plan; returns the legend of the bars.

    Args:
        samples: entries of the legend for the shades of decoding (``shade_samples``).
        cell: ``row`` and ``col`` of a figure with several timelines.
    """
    if len(info.allocations):
        fig.add_trace(track_bars(info.allocations) | ALLOCATED, **cell)
    notes = []
    for phase in DRAWN_PHASES:
        subset = info.spans[info.spans["phase"] == phase]
        if phase == "decode" and len(subset):
            notes.append(_add_decoding(fig, info.decoding, samples, **cell))
        elif len(subset):
            fig.add_trace(track_bars(subset) | phase_style(phase, subset["background"].tolist()), **cell)
    if len(info.planned):
        fig.add_trace(track_bars(info.planned) | PLANNED, **cell)
        notes.append(PLANNED_NOTE)
    if len(info.spans) and info.spans["background"].any():
        notes.append(BACKGROUND_NOTE)
    return "; ".join(filter(None, notes))


def _add_decoding(fig: go.Figure, pieces: pd.DataFrame, samples: Sequence[dict[str, Any]], **cell: int) -> str:
    """Draw decoding as blue that is the paler the emptier the batch; returns its legend as a note."""
    in_use = pieces["in_use"].to_numpy(dtype=float)
    if np.isnan(in_use).all():
        fig.add_trace(track_bars(pieces) | decode_style(), **cell)
        return ""
    fig.add_trace(track_bars(pieces) | decode_style(np.nan_to_num(in_use, nan=1.0)), **cell)
    for sample in samples:
        fig.add_trace(sample, **cell)
    return SHADES_NOTE


def _add_events(fig: go.Figure, info: StepTimeline, place: Mapping[int, float]) -> None:
    for i, (name, of_name) in enumerate(info.events.groupby("name", sort=True)):
        hovers = {"hovertext": of_name["hover"].tolist(), "hoverinfo": "text"}
        fig.add_trace(event_marks(i, name, of_name["time_s"].tolist(), of_name["row"].map(place), **hovers))


def _add_selected(fig: go.Figure, info: StepTimeline, place: Mapping[int, float], response: pd.Series) -> None:
    """Mark the end of a response; nothing where its actor or its times are unknown."""
    if response.get("actor") not in info.holders or pd.isna(response.get("end_s")):
        return
    start_s, end_s = (float(response[name]) - info.start_s for name in ("start_s", "end_s"))
    text = [
        ("time", f"{number(start_s, 's')} to {number(end_s, 's')}"),
        ("generated", f"{response['response_tokens']:,} tokens"),
    ]
    fig.add_scatter(
        x=[end_s], y=[place[info.holders.index(response["actor"])]], mode="markers", name="selected response", marker=SELECTED,
        customdata=[response.name], legendrank=300, cliponaxis=False, hoverinfo="text",
        hovertext=[hover(text, f"prompt {clean(response['prompt_id'], 30)}, sample {response['sample']}")],
    )  # fmt: skip
