"""Plots one step before and after a change of schedule: timelines on one time axis, and the cost of each beside the bound.

Inputs are traces of the same step under several schedules. The first is before, the last is after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.bars import bars
from rlhfless.plots.clock import clocks_words
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import traces_of
from rlhfless.plots.palette import BOUND, GREEN, OUTLINE, VERMILLION
from rlhfless.plots.style import clean, legend_below, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of
from rlhfless.plots.timeline_grid import (
    GAP_PX,
    HEADING_PX,
    StepTimelines,
    add_panels,
    heading,
    panel_sizes,
    step_timelines,
)
from rlhfless.plots.tracks import place_panels
from rlhfless.trace import Trace
from rlhfless.trace.metrics.chosen_plan import chosen_of

TITLE = "One step before and after"
COST_HEADING = "<b>Cost of the step</b>"
SAME = 0.005  # difference of times that is not told
MOVING = ("transfer", "migrate")
LINE_PX = 18  # of what runs, under the last heading
COST_PX, BETWEEN_PX = 34, 128  # a bar of the cost; from the last time axis to the bars, with the legend between them


class _Data(NamedTuple):
    """Data of ``plot_before_after``.

    Attributes:
        schedules: timelines and moves of every schedule; actors that end last are on top.
        totals: one row per schedule: ``schedule, time_s, gpu_seconds, cost_usd, idle_gpu_seconds, empty_share`` (of the paid
            decode capacity), of actors that decode.
        bound_gpu_seconds: that no schedule which takes as long as the last one is below; NaN when unknown.
        missing: why there is nothing to show, or the empty text.
        chosen: which plan the last schedule runs, and why, in short; the empty text where it does not say so.
    """

    schedules: StepTimelines
    totals: pd.DataFrame
    bound_gpu_seconds: float
    missing: str = ""
    chosen: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``totals``, and a row ``lower bound`` where it is known."""
        bound = pd.DataFrame({"schedule": ["lower bound"], "gpu_seconds": [self.bound_gpu_seconds]})
        return self.totals if math.isnan(self.bound_gpu_seconds) else pd.concat([self.totals, bound], ignore_index=True)

    @property
    def saved_cost(self) -> float:
        """Share of the first schedule's cost that the last one saves: of dollars where they are known, else of GPU-seconds."""
        return self._saved("cost_usd" if self.priced else "gpu_seconds")

    @property
    def saved_time(self) -> float:
        """Share of the first schedule's time that the last one saves."""
        return self._saved("time_s")

    @property
    def most(self) -> float:
        """Share of the first schedule's GPU-seconds that any schedule could save in the last one's time; NaN when unknown."""
        return 1 - self.bound_gpu_seconds / float(self.totals["gpu_seconds"].iloc[0])

    @property
    def priced(self) -> bool:
        """Whether every schedule has a price."""
        return bool((self.totals["cost_usd"] > 0).all())

    def _saved(self, column: str) -> float:
        first, last = self.totals[column].iloc[0], self.totals[column].iloc[-1]
        return 1 - float(last / first)


def _data(traces: Mapping[str, Trace], step: int | None = None, *, bound: Callable[[float], float] | None = None) -> _Data:
    """Return the data of ``plot_before_after``; for the arguments see there."""
    schedules = _calm(step_timelines(traces, step, by_end=True))
    rows = [
        (name, one.time_s, one.gpu_seconds, one.cost_usd, one.idle_gpu_seconds, one.capacity.empty_share)
        for name, one in schedules.timelines.items()
    ]
    columns = ["schedule", "time_s", "gpu_seconds", "cost_usd", "idle_gpu_seconds", "empty_share"]
    totals = pd.DataFrame(rows, columns=columns)
    missing = schedules.missing
    if not missing and len(totals) < 2:
        missing = "There is one schedule only; a second one is needed to compare it with."
    if not missing and not (totals[["time_s", "gpu_seconds"]] > 0).all(axis=None):
        missing = "A schedule has no allocations or takes no time, so its cost is unknown."
    least = math.nan if bound is None or missing else float(bound(float(totals["time_s"].iloc[-1])))
    chosen = "" if missing else chosen_of(list(traces.values())[-1], list(schedules.timelines.values())[-1].step)
    return _Data(schedules, totals, least if math.isfinite(least) else math.nan, missing, chosen)


def _calm(schedules: StepTimelines) -> StepTimelines:
    """Leave out what is not compared: predicted times, and the transfers of responses that move."""
    timelines = {
        name: one._replace(planned=one.planned.iloc[:0], spans=one.spans[~one.spans["phase"].isin(MOVING)])
        for name, one in schedules.timelines.items()
        if not one.missing
    }
    return schedules._replace(timelines={**schedules.timelines, **timelines})


def plot_before_after(
    traces: Mapping[str, Trace | str | Path],
    step: int | None = None,
    *,
    bound: Callable[[float], float] | None = None,
    note: str = "",
) -> DataFigure:
    """Plot the timelines of one step under the user's schedule and under others, and what each costs beside the bound.

    Args:
        traces: schedule to trace, or to the folder of one, the one before first and the one after last.
        step: the last one of each when None.
        bound: least GPU-seconds of any schedule, by its time in seconds; drawn at the time of the last one.
        note: clean text that begins the subtitle.

    Returns:
        A figure; for fewer than two schedules, or without times, one that says so.

    Raises:
        InputError: one is no trace.
        TraceError: a folder holds none.

    Example:
        >>> import rlhfless as rl
        >>> from rlhfless.plots import plot_before_after
        >>> compared = rl.load(rl.example(), verbose=False).plan(step=-1).compare("static")
        >>> plot_before_after(compared.traces).layout.xaxis3.title.text
        'GPU-seconds'
    """
    drawn = traces_of(traces, "plot_before_after")
    info = _data(drawn, step, bound=bound)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    timelines = info.schedules.timelines
    sizes, costs = panel_sizes(info.schedules), cost_bars(info)
    cost_px = COST_PX * len(costs)
    gap_px = GAP_PX + (LINE_PX if info.chosen else 0)
    inner = sum(sizes) + gap_px * (len(sizes) - 1) + BETWEEN_PX + cost_px
    headings = [
        heading(f"<b>{words}</b>", timeline, len(info.schedules.moves[name]))
        for words, (name, timeline) in zip(costs["name"], timelines.items(), strict=False)
    ]
    if info.chosen:
        headings[-1] += f"<br><span style='font-size:12px'>{clean(info.chosen, 200)}</span>"
    fig = figure_of(info.to_frame(), rows=len(sizes) + 1, cols=1, subplot_titles=[*headings, COST_HEADING])
    ends = place_panels(fig, [*sizes, cost_px], [0, *[gap_px] * (len(sizes) - 1), BETWEEN_PX])
    for end, words in zip(ends, fig.layout.annotations, strict=True):
        words.update(y=end, yanchor="bottom", align="left")
    shown = add_panels(
        fig, info.schedules._replace(moves={name: moves.iloc[:0] for name, moves in info.schedules.moves.items()})
    )
    for axis in range(2, len(sizes) + 1):
        fig.update_xaxes(matches="x", row=axis, col=1)
    _add_costs(fig, costs, len(sizes) + 1)
    legend = legend_below(inner)
    legend["y"] = (BETWEEN_PX + cost_px - 54) / inner
    first = f"{note}<br>" if note else ""
    below = "; ".join(filter(None, [shown, clocks_words(drawn)]))
    return styled(
        fig, _title(info), f"{first}{_bound_words(info)}{below}", height=round(inner + HEADING_PX + 130), above=HEADING_PX,
        barmode="overlay", legend=legend, margin={"b": 48},
    )  # fmt: skip


def cost_bars(info: _Data) -> pd.DataFrame:
    """Return the bars of cost: ``name`` (clean), ``gpu_seconds, text, colour``; the bound is the last one where it is known."""
    last = len(info.totals) - 1
    price = info.totals["cost_usd"].iloc[-1] / info.totals["gpu_seconds"].iloc[-1] if info.priced else 0.0
    rows = []
    for i, row in enumerate(info.totals.itertuples()):
        when = {0: "Before", last: "After"}.get(i, "Also")
        parts = [usd(row.cost_usd), number(row.gpu_seconds, "GPU-seconds")]
        if i:
            saved = 1 - row.gpu_seconds / info.totals["gpu_seconds"].iloc[0]
            parts.append(f"{percent(saved)} {'saved' if saved >= 0 else 'more'}")
        colour = {0: VERMILLION, last: GREEN}.get(i, OUTLINE)
        rows.append((f"{when}: {clean(row.schedule, 30)}", row.gpu_seconds, ", ".join(filter(None, parts)), colour))
    if not math.isnan(info.bound_gpu_seconds):
        least = info.bound_gpu_seconds
        text = ", ".join(
            filter(None, [usd(price * least), number(least, "GPU-seconds"), f"at most {percent(info.most)} saved"])
        )
        rows.append(("Lower bound", least, text, BOUND))
    return pd.DataFrame(rows, columns=["name", "gpu_seconds", "text", "colour"])


def percent(share: float) -> str:
    """Return the size of a share: ``38%``, or ``3.0%`` below a tenth."""
    return f"{abs(share):.0%}" if abs(share) >= 0.1 else f"{abs(share):.1%}"


def _title(info: _Data) -> str:
    first, last = (clean(info.totals["schedule"].iloc[i], 30) for i in (0, -1))
    cost, time = info.saved_cost, info.saved_time
    if cost >= 0 and abs(time) < SAME:
        return f"After ({last}) saves {percent(cost)} of the cost in the same time as before ({first})"
    if cost >= 0 and time >= 0:
        return f"After ({last}) saves {percent(cost)} of the cost and {percent(time)} of the time of before ({first})"
    costs = f"saves {percent(cost)} of the cost" if cost >= 0 else f"costs {percent(cost)} more"
    takes = f"takes {percent(time)} {'less' if time >= 0 else 'more'} time than"
    return f"After ({last}) {costs} and {takes} before ({first})"


def _bound_words(info: _Data) -> str:
    if math.isnan(info.most):
        return ""
    last = clean(info.totals["schedule"].iloc[-1], 30)
    return f"no schedule that takes as long as {last} saves more than {percent(info.most)} of the GPU-seconds<br>"


def _add_costs(fig: go.Figure, costs: pd.DataFrame, row: int) -> None:
    look = {
        "marker": {"color": costs["colour"].tolist(), "line": {"width": 0}}, "width": 0.7, "text": costs["text"],
        "textposition": "outside", "cliponaxis": False, "constraintext": "none", "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    fig.add_traces(bars(costs, costs["name"], {"gpu_seconds": look}), rows=row, cols=1)
    fig.update_yaxes(autorange="reversed", showgrid=False, row=row, col=1)
    fig.update_xaxes(range=[0, 1.75 * costs["gpu_seconds"].max()], title="GPU-seconds", row=row, col=1)
