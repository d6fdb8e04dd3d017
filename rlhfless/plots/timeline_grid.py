"""Plots the GPU timelines of one step under several schedules, on one time axis, with the responses that moved.

Inputs are the data of ``timeline_data`` per trace, and the moves of responses (``trace.moves``). A line is solid where a KV
cache was sent, and dashed where the receiver recomputed it, which is known of engines that record it in their prefill spans.
Responses that move between the same two actors at about the same time are one line, and lines are fainter the more there are.
The dots show the arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.clock import clocks_words
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import traces_of
from rlhfless.plots.palette import VERMILLION
from rlhfless.plots.style import clean, counted, hover, legend_below, message_figure, number, styled
from rlhfless.plots.tables import figure_of, stacked
from rlhfless.plots.timeline import add_bars, empty_words, hide_unseen, sums_in_words
from rlhfless.plots.timeline_data import MAX_SPANS, StepTimeline, of_roles, sorted_by_end, step_timeline
from rlhfless.plots.tracks import shade_samples, track_axis
from rlhfless.trace import Trace
from rlhfless.trace.moves import moves as moves_of
from rlhfless.trace.tracks import of_step

ROW_PX, ALL_ROWS_PX, MIN_PANEL_PX, TICK_PX = 24, 600, 60, 13
"""Height of a row, of all rows at most, of a panel at least, and of a label at the axis."""
GAP_PX, FRAME_PX, HEADING_PX = 62, 236, 34
MAX_ROWS = 120
TOGETHER = 0.02
"""Share of the time axis: moves that are one line start within it."""
CLEAR_LINES = 8


class StepTimelines(NamedTuple):
    """Data of ``plot_timelines``: schedules by name.

    Attributes:
        timelines: of every schedule, times since the start of the step.
        moves: of every schedule: ``from_row, to_row, start_s, end_s, tokens, seconds, recomputed`` of responses that were
            handed over. Their KV caches were sent, or ``recomputed`` by their receivers, with these tokens and seconds.
        missing: why there is nothing to show, or the empty text.
    """

    timelines: dict[str, StepTimeline]
    moves: dict[str, pd.DataFrame]
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the timelines of all schedules and their moves below each other."""
        parts = []
        for name, timeline in self.timelines.items():
            moves = self.moves.get(name, pd.DataFrame())
            if len(moves):
                ends = {f"{end}_holder": [timeline.holders[row] for row in moves[f"{end}_row"]] for end in ("from", "to")}
                moves = moves.assign(**ends).drop(columns=["from_row", "to_row"])
            parts.append(pd.concat([timeline.to_frame(), stacked(moves=moves)]).assign(schedule=name))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def step_timelines(traces: Mapping[str, Trace], step: int | None = None, *, by_end: bool = False) -> StepTimelines:
    """Return the data of ``plot_timelines``; ``by_end`` puts the actors that end last on top."""
    chosen = {str(name): of_roles(trace, ("decode",)) for name, trace in traces.items()}
    infos = {name: step_timeline(trace, step) for name, trace in chosen.items()}
    if by_end:
        infos = {name: sorted_by_end(info) for name, info in infos.items()}
    missing = next((f"{clean(name)}: {obstacle}" for name, info in infos.items() if (obstacle := _obstacle(info))), "")
    if not infos:
        missing = "There are no schedules to show."
    elif not missing and (rows := sum(len(info.holders) for info in infos.values())) > MAX_ROWS:
        missing = f"{rows} actors are too many for one figure; show fewer schedules, or each by itself."
    if missing:
        return StepTimelines(infos, {}, missing)
    return StepTimelines(infos, {name: _moves(trace, infos[name]) for name, trace in chosen.items()})


def _obstacle(info: StepTimeline) -> str:
    """Why a timeline cannot be compared with others, or the empty text."""
    if len(info.spans) > MAX_SPANS:
        return f"{len(info.spans):,} spans are too many to draw next to others; show this schedule by itself"
    return info.missing


def _moves(trace: Trace, info: StepTimeline) -> pd.DataFrame:
    """Return the moves between rows of the timeline, those with their KV caches first, each in the order of the trace. A move
    lasts as long as its span at the receiver."""
    row_of = {name: row for row, name in enumerate(info.holders)}
    spans = of_step(trace.spans, info.run, info.step)
    own = [one for one in moves_of(spans) if not one.copied_first and {one.sender, one.receiver} <= row_of.keys()]
    own.sort(key=lambda one: (one.source is None, one.target))
    arriving = spans.loc[[one.target for one in own], ["start_s", "end_s"]].to_numpy(dtype=float) - info.start_s
    rows = [
        (row_of[one.sender], row_of[one.receiver], *times, one.tokens, one.seconds, one.source is None)
        for one, times in zip(own, arriving.tolist(), strict=True)
    ]
    columns = ["from_row", "to_row", "start_s", "end_s", "tokens", "seconds", "recomputed"]
    return pd.DataFrame(rows, columns=columns).astype({"from_row": int, "to_row": int, "recomputed": bool})


def bundles(moves: pd.DataFrame, within_s: float) -> pd.DataFrame:
    """Merge moves between the same two rows if each starts within ``within_s`` of the one before.

    Returns:
        ``from_row, to_row, start_s, end_s, tokens, seconds, responses``: first start, last end, sums, and number of responses.
    """
    rows = ["from_row", "to_row"]
    ordered = moves.sort_values([*rows, "start_s"])
    same = (ordered[rows].diff() == 0).all(axis=1) & (ordered["start_s"].diff() <= within_s)
    return (
        ordered.groupby([(~same).cumsum(), *rows], sort=False)
        .agg(
            start_s=("start_s", "min"),
            end_s=("end_s", "max"),
            tokens=("tokens", "sum"),
            seconds=("seconds", "sum"),
            responses=("start_s", "size"),
        )
        .reset_index(rows)
        .reset_index(drop=True)
    )


def plot_timelines(traces: Mapping[str, Trace | str | Path], step: int | None = None) -> DataFigure:
    """Plot the timelines of one step under several schedules, stacked on one time axis; only actors that decode.

    Args:
        traces: schedule to trace, or to the folder of one. step: the last one of each when None.

    Returns:
        A figure; where a trace has no timeline, one that says so.

    Raises:
        InputError: one is no trace.
        TraceError: a folder holds none.
    """
    drawn = traces_of(traces, "plot_timelines")
    info = step_timelines(drawn, step)
    title = f"GPU timelines of one step under {counted(len(info.timelines), 'schedule')}"
    if info.missing:
        return message_figure(title, info.missing, info.to_frame())
    sizes = panel_sizes(info)
    inner = sum(sizes) + GAP_PX * (len(sizes) - 1)
    headings = [heading(f"<b>{clean(name)}</b>", timeline, len(info.moves[name])) for name, timeline in info.timelines.items()]
    fig = figure_of(
        info.to_frame, rows=len(sizes), cols=1, shared_xaxes=True, row_heights=sizes, subplot_titles=headings,
        vertical_spacing=GAP_PX / inner if len(sizes) > 1 else 0.0,
    )  # fmt: skip
    note = "; ".join(filter(None, [add_panels(fig, info), clocks_words(drawn)]))
    return styled(
        fig, title, note, height=round(inner + FRAME_PX), above=HEADING_PX, barmode="overlay", legend=legend_below(inner),
        margin={"b": 116},
    )  # fmt: skip


def panel_sizes(info: StepTimelines) -> list[float]:
    """Return the height of every panel in pixels; many actors have lower rows, so that all fit on a screen."""
    rows = [len(timeline.holders) for timeline in info.timelines.values()]
    return [max(MIN_PANEL_PX, row * min(ROW_PX, ALL_ROWS_PX / sum(rows))) for row in rows]


def add_panels(fig: go.Figure, info: StepTimelines) -> str:
    """Draw every schedule in its panel, from the first row on, with one time axis and one legend; returns a note.

    Args:
        fig: of ``make_subplots``, with a heading per panel as its first annotations.
    """
    fig.update_annotations(x=0.0, xanchor="left", align="left", font={"size": 13})
    notes, sizes = [], panel_sizes(info)
    ends = [table["end_s"].max() for one in info.timelines.values() for table in (one.allocations, one.planned) if len(table)]
    end_s = float(max(ends))
    samples = shade_samples(pd.concat([one.decoding["in_use"] for one in info.timelines.values()]))
    for panel, (name, timeline) in enumerate(info.timelines.items(), start=1):
        notes.append(add_bars(fig, timeline, samples, row=panel, col=1))
        moves = info.moves[name]
        for again in (False, True):
            _add_moves(fig, bundles(moves[moves["recomputed"] == again], TOGETHER * end_s), timeline.labels, panel, again)
        every = max(1, math.ceil(TICK_PX * len(timeline.labels) / sizes[panel - 1]))
        fig.update_yaxes(**track_axis(timeline.labels, every, room=0.4), tickfont={"size": 10}, row=panel, col=1)
        fig.update_xaxes(range=[0, 1.02 * end_s], row=panel, col=1)
    unseen = hide_unseen(fig, end_s)
    named: set[str] = set()
    for drawn in fig.data:
        drawn.update(legendgroup=drawn.name, showlegend=drawn.showlegend is not False and drawn.name not in named)
        named.add(drawn.name)
    fig.update_xaxes(title="time since the start of the step (s)", row=len(sizes), col=1)
    return "; ".join(filter(None, [max(notes, key=len), unseen]))


def heading(name: str, timeline: StepTimeline, moves: int) -> str:
    """Return the heading of a panel: its name, actors and totals, both wastes, and the last response to end."""
    last = timeline.last
    waited = f"the last response to end is {last.name}" if last is not None and len(timeline.holders) > 1 else ""
    below = "; ".join(filter(None, [empty_words(timeline).removeprefix(": "), waited]))
    first = f"{name}: {sums_in_words(timeline, sized=True)}" + (f", {counted(moves, 'migration')}" if moves else "")
    return first + (f"<br><span style='font-size:12px'>{below}</span>" if below else "")


def _add_moves(fig: go.Figure, moves: pd.DataFrame, labels: tuple[str, ...], panel: int, recomputed: bool) -> None:
    """Add a line from the sender to the receiver of every bundle, dashed where KV caches are recomputed. A dot marks the
    arrival, or the end of recomputing. There is one plotly trace for all lines and one for all dots."""
    if moves.empty:
        return
    at = [x for move in moves.itertuples() for x in (move.start_s, move.end_s, None)]
    rows = [y for move in moves.itertuples() for y in (move.from_row, move.to_row, None)]
    lines = {"color": VERMILLION, "width": 1, "dash": "dash" if recomputed else "solid"}
    name = "migration, KV recomputed (dot: receiver)" if recomputed else "migration (dot: receiver, larger for more responses)"
    fig.add_scatter(
        x=at, y=rows, mode="lines", name=name, line=lines,
        opacity=min(0.9, max(0.15, CLEAR_LINES / len(moves))), hoverinfo="skip", legendrank=150 + 2 * recomputed,
        row=panel, col=1,
    )  # fmt: skip
    texts = [
        hover(
            [
                ("from", labels[move.from_row]),
                ("time", f"{number(move.start_s, 's')} to {number(move.end_s, 's')}"),
                *([("recomputed", f"{move.tokens:,} tokens in {number(move.seconds, 's')}")] if recomputed else []),
            ],
            f"{labels[move.to_row]}: {counted(move.responses, 'response')} migrated here",
        )
        for move in moves.itertuples()
    ]
    dots = "recomputed" if recomputed else "responses arrive"
    fig.add_scatter(
        x=moves["end_s"], y=moves["to_row"], mode="markers", name=dots, hovertext=texts, hoverinfo="text",
        marker={
            "size": [min(12.0, 3.0 + 2.0 * math.sqrt(n)) for n in moves["responses"]], "color": VERMILLION, "opacity": 0.8,
            "line": {"width": 1, "color": "#FFFFFF"},
        },
        legendrank=151 + 2 * recomputed, row=panel, col=1,
    )  # fmt: skip
