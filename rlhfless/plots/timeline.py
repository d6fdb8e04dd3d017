"""Plots the GPU timeline of a step: allocations, phases, idle time, and the plan's predicted times.

Input is the data of ``timeline_data``. One row per holder. The light bar is the allocation, which is what is billed; where no
phase covers it, GPUs were allocated and idle. Decoding is blue, and the paler the fewer slots of the batch are in use. One
plotly trace per phase.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.clock import with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.last_response import LastResponse
from rlhfless.plots.palette import BLUE, IDLE, OCCUPANCY, OCCUPANCY_SCALE, OUTLINE, PHASE_STYLES, SELECTED, VERMILLION
from rlhfless.plots.style import clean, counted, hover, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of
from rlhfless.plots.timeline_data import MAX_SPANS, StepTimeline, of_roles, step_timeline
from rlhfless.plots.utilisation import add_use_heatmap
from rlhfless.trace import PHASES, Trace

MAX_LABELS = 32
BAR, BEHIND, PLANNED = (-0.27, 0.54), (-0.42, 0.12), (0.30, 0.13)  # offset and width of the bars of a row
CUT_ROOM, SQUEEZED = 1.12, 4.0  # where a cut axis ends, in times of generation; it is cut if the step takes so much longer
MOST_KINDS = 4  # of rows that a subtitle names
LITTLE = 0.0005  # share of the GPU-seconds that is rounded to none
VISIBLE = 0.002  # share of the time axis; shorter bars cannot be seen
FEW = 0.01  # share of slots in use below which the legend says no number
ENTRY_PX = 19  # of the legend beside the plot
DRAWN_PHASES = sorted(PHASES, key=lambda p: p not in ("decode", "learn", "prepare"))  # short phases on top of long ones
DECODE_RANK = 1 + PHASES.index("decode")
IDLE_MARKER = {"color": IDLE, "line": {"color": OUTLINE, "width": 1}}
PLANNED_MARKER = {
    "color": "rgba(0,0,0,0)", "line": {"color": "#8A8A8A", "width": 1},
    "pattern": {"shape": "/", "fgcolor": "#8A8A8A", "bgcolor": "rgba(127,127,127,0.12)", "size": 4, "solidity": 0.35},
}  # fmt: skip
PLANNED_NOTE, BACKGROUND_NOTE = "hatched bar below: predicted by the plan", "thin bar above: in the background"
SHADES_NOTE = "blue: decoding; paler where more slots of the batch are empty"
EVENT_SYMBOLS = ("triangle-down", "diamond", "x", "star")


def plot_timeline(
    trace: Trace,
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
        trace: any trace.
        step: the last one when None.
        run: the first one of the trace when None.
        roles: only holders of these roles (``("decode",)`` leaves the learner out); all when None.
        max_spans: with more spans it is a heatmap of the share of slots that each holder uses, the emptiest rows at the bottom.
        between_s: only this part of the step, in seconds since its start; all of it when None. A part may have few enough spans
            to be drawn one by one where the whole step has not.
        selected: the row of ``trace.rollouts`` of a response whose end is marked, in the row of the actor that completed it.

    Returns:
        A figure; for a trace without allocations and spans one that says so.

    Example:
        >>> import rlhfless as rl
        >>> from rlhfless.plots import plot_timeline
        >>> plot_timeline(rl.load(rl.example(), verbose=False).trace, step=0).layout.xaxis.title.text
        'time since the start of the step (s)'
    """
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
    shown = range(0, rows, -(-rows // MAX_LABELS))
    fig.update_yaxes(
        tickvals=list(shown),
        ticktext=[labels[i] for i in shown],
        range=[rows - 0.45, -0.55],
        title=f"{'actor' if info.only_actors else 'actor or learner'} (its GPUs)",
        zeroline=False,
        showgrid=False,
    )
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
            in_row = float(
                np.bincount(np.asarray(drawn.y, dtype=int), weights=np.asarray(drawn.x, dtype=float)).max(initial=0.0)
            )
            longest[drawn.name] = max(longest.get(drawn.name, 0.0), in_row)
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
        _bar(fig, info.allocations, BAR, "allocated, idle", IDLE_MARKER, **cell)
    notes = []
    for phase in DRAWN_PHASES:
        subset = info.spans[info.spans["phase"] == phase]
        if phase == "decode" and len(subset):
            notes.append(_add_decoding(fig, info.decoding, samples, **cell))
        elif len(subset):
            behind = subset["background"].to_numpy(dtype=bool)
            place = ([(BEHIND if b else BAR)[0] for b in behind], [(BEHIND if b else BAR)[1] for b in behind])
            name = f"{phase} (background)" if behind.all() else phase
            _bar(fig, subset, place, name, phase_marker(phase), legendrank=1 + PHASES.index(phase), **cell)
    if len(info.planned):
        _bar(fig, info.planned, PLANNED, "planned", PLANNED_MARKER, legendrank=100, **cell)
        notes.append(PLANNED_NOTE)
    if len(info.spans) and info.spans["background"].any():
        notes.append(BACKGROUND_NOTE)
    return "; ".join(filter(None, notes))


def _add_decoding(fig: go.Figure, pieces: pd.DataFrame, samples: Sequence[dict[str, Any]], **cell: int) -> str:
    """Draw decoding as blue that is the paler the emptier the batch; returns its legend as a note."""
    in_use = pieces["in_use"].to_numpy(dtype=float)
    if np.isnan(in_use).all():
        _bar(fig, pieces, BAR, "decode", {"color": BLUE, "line": {"width": 0}}, DECODE_RANK, **cell)
        return ""
    marker = shades(np.nan_to_num(in_use, nan=1.0))
    _bar(fig, pieces, BAR, "decode", marker, DECODE_RANK, showlegend=False, legendgroup="decode", **cell)
    for sample in samples:
        fig.add_trace(sample, **cell)
    return SHADES_NOTE


def _bar(
    fig: go.Figure,
    bars: pd.DataFrame,
    place: tuple[Any, Any],
    name: str,
    marker: Mapping[str, Any],
    legendrank: int = 0,
    **further: Any,
) -> None:
    cell = {key: further.pop(key) for key in ("row", "col") if key in further}
    start_s = bars["start_s"].to_numpy()
    times = {"base": start_s, "x": bars["end_s"].to_numpy() - start_s, "y": bars["row"].to_numpy()}
    bar = bar_trace(times, place, name, marker, legendrank, hovertext=bars["hover"].tolist(), hoverinfo="text", **further)
    fig.add_trace(bar, **cell)  # a dict: plotly checks and copies an object of its own twice


def bar_trace(
    times: Mapping[str, Any], place: tuple[Any, Any], name: str, marker: Mapping[str, Any], legendrank: int, **further: Any
) -> dict[str, Any]:
    """Return the bars of one phase as plotly's JSON.

    Args:
        times: ``base, x, y``: start, seconds and row of every bar. place: offset and width of a bar in its row.
    """
    return {
        "type": "bar", **times, "offset": place[0], "width": place[1], "orientation": "h", "name": name, "marker": marker,
        "legendrank": legendrank, **further,
    }  # fmt: skip


def phase_marker(phase: str) -> dict[str, Any]:
    """Return colour and hatch of the bars of a phase."""
    style = PHASE_STYLES[phase]
    marker: dict[str, Any] = {"color": style.colour, "line": {"width": 0}}
    if style.hatch:
        marker["pattern"] = {"shape": style.hatch, "fgcolor": "rgba(255,255,255,0.65)", "size": 5, "solidity": 0.25}
    return marker


def shades(in_use: Any) -> dict[str, Any]:
    """Return the marker of decode bars with these shares of slots in use: blue that is the paler the emptier the batch."""
    return {"color": in_use, "colorscale": OCCUPANCY_SCALE, "cmin": 0, "cmax": 1, "line": {"width": 0}}


def shade_samples(in_use: Any) -> list[dict[str, Any]]:
    """Return the entries of the legend for decode bars with these shares of slots in use: the fullest and the emptiest."""
    known = np.asarray(in_use, dtype=float)
    known = known[~np.isnan(known)]
    ends = (known.max(), known.min()) if len(known) else ()
    names = {f"decode, {f'{share:.0%}' if share >= FEW else f'under {FEW:.0%}'} of slots in use": share for share in ends}
    return [
        {
            "type": "bar", "x": [None], "y": [None], "name": name, "orientation": "h", "legendgroup": "decode",
            "legendrank": DECODE_RANK + i / 10, "hoverinfo": "skip",
            "marker": {"color": _shade_on_idle(float(share)), "line": {"color": OUTLINE, "width": 1}},
        }
        for i, (name, share) in enumerate(names.items())
    ]  # fmt: skip


def _shade_on_idle(share: float) -> str:
    """Return the colour of decode bars with this share of slots in use, as it is seen over the grey of the allocation."""
    shares, opacities = zip(*OCCUPANCY, strict=True)
    over = float(np.interp(share, shares, opacities))
    under = 0.25 * (1.0 - over)  # the opacity of IDLE
    red, green, blue = ((over * of_blue + under * 127) / (over + under) for of_blue in (0, 114, 178))
    return f"rgba({red:.0f},{green:.0f},{blue:.0f},{over + under:.2f})"


def _add_events(fig: go.Figure, info: StepTimeline, place: Mapping[int, float]) -> None:
    for i, (name, of_name) in enumerate(info.events.groupby("name", sort=True)):
        symbol = EVENT_SYMBOLS[i % len(EVENT_SYMBOLS)]
        fig.add_scatter(
            x=of_name["time_s"], y=of_name["row"].map(place) + (BAR[0] - 0.06), mode="markers",
            name=f"event: {clean(name, 24)}",
            marker={"symbol": symbol, "size": 9, "color": VERMILLION, "line": {"width": 1, "color": "#FFFFFF"}},
            legendrank=200 + i, showlegend=True,
            hovertext=of_name["hover"].tolist(), hoverinfo="text",
        )  # fmt: skip


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
