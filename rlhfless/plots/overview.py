"""Plots the overview of a run: where its GPU-seconds and dollars went, what the best schedule would save, and the bound.

Inputs are the uses of an ``analysis.Account`` and a row of ``analysis.savings``. Idle GPUs and empty slots are two
kinds of waste, and both are named.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BOUND, GREEN, GREY, OCCUPANCY_SCALE, OUTLINE, PHASE_STYLES, VERMILLION, ink_on
from rlhfless.plots.style import WIDE_ONLY, clean, cost_line, hover, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of

TITLE = "Where the GPU-seconds went"
RUN = "this run"
SLOT = "a slot is room for one response in a replica's batch; empty slots cost as much as used ones"
SAVED = ("GPU-seconds mean", "time mean", "GPU-seconds most")  # of a row of savings
WORK_COLOURS = {
    use: PHASE_STYLES[phase].colour
    for use, phase in {
        "decoding, slots in use": "decode", "prefill": "prefill", "starting actors": "start", "weight sync": "sync",
        "transferring KV caches": "transfer", "preparation": "prepare", "learning": "learn", "sending weights": "sync",
    }.items()
}  # fmt: skip
LITTLE, LETTER_SHARE = 0.005, 0.0085  # shares of the bar: of what is rounded to nothing, and of a letter


class _Data(NamedTuple):
    """Data of ``plot_overview``.

    Attributes:
        uses: ``use, kind, gpu_s, usd, share``, see ``analysis.Account.lines``.
        empty_share: of the GPU-seconds, that went to empty slots of decoding batches.
        idle_share: of the GPU-seconds, in which GPUs were held and idle.
        schedule: the change that would help most, or the empty text.
        saved_gpu_share, saved_time_share, most_gpu_share: shares of the run's GPU-seconds and time that it would save, and the
            most that any schedule saves in its time; NaN without a schedule.
        missing: why there is nothing to show, or the empty text.
    """

    uses: pd.DataFrame
    empty_share: float
    idle_share: float
    schedule: str
    saved_gpu_share: float
    saved_time_share: float
    most_gpu_share: float
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``uses``."""
        return self.uses

    @property
    def has_empty_slots(self) -> bool:
        """Whether empty slots are worth a word."""
        return self.empty_share >= LITTLE

    @property
    def verdict(self) -> str:
        """Both kinds of waste in one sentence, without a full stop."""
        idle = f"{self.idle_share:.0%}" if self.idle_share >= LITTLE else "none"
        idle = f"{idle} {'were' if self.has_empty_slots else 'of the GPU-seconds were'} idle"
        return f"{self.empty_share:.0%} of the GPU-seconds went to empty slots, and {idle}" if self.has_empty_slots else idle

    @property
    def change(self) -> str:
        """The change that would help most in one sentence, without a full stop; the empty text where nothing is known."""
        if not self.schedule:
            return ""
        most = f"no schedule that takes as long saves more than {self.most_gpu_share:.0%}"
        name = clean(self.schedule, 30)
        if self.saved_gpu_share <= 0 and self.saved_time_share <= 0:
            return f"No simulated schedule saves anything; {most} of the GPU-seconds"
        cost = f"{'saves' if self.saved_gpu_share >= 0 else 'costs'} {abs(self.saved_gpu_share):.0%} of the GPU-seconds"
        time = f"takes {abs(self.saved_time_share):.0%} {'less' if self.saved_time_share >= 0 else 'more'} time"
        time = time if abs(self.saved_time_share) >= LITTLE else "takes as long"
        return f"The schedule {name} {cost} and {time}; {most}"


def _data(uses: pd.DataFrame, best: pd.Series | None = None) -> _Data:
    """Return the data of ``plot_overview``; for the arguments see there."""
    total = float(uses["gpu_s"].sum()) if len(uses) else 0.0
    empty, idle = (
        float(uses.loc[uses["kind"] == kind, "gpu_s"].sum()) / total if total else 0.0 for kind in ("empty slots", "idle")
    )
    gpu_share, time_share, most = (math.nan,) * 3 if best is None else (float(best[name]) for name in SAVED)
    missing = "" if total else "No GPU was allocated."
    return _Data(uses, empty, idle, "" if best is None else str(best["policy"]), gpu_share, time_share, most, missing)


def plot_overview(uses: pd.DataFrame, best: pd.Series | None = None) -> DataFigure:
    """Plot a run's GPU-seconds by use as one bar, above what the best schedule would take and the lower bound.

    Args:
        uses: ``use, kind, gpu_s, usd, share`` of ``analysis.Account.lines``.
        best: the change that would help most: a row of ``analysis.savings``.

    Returns:
        A figure; without GPU-seconds one that says so.
    """
    info = _data(uses, best)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    total, paid = float(uses["gpu_s"].sum()), float(uses["usd"].sum(skipna=False))
    done = 0.0
    for row in uses.itertuples():
        lines = [("GPU-seconds", number(row.gpu_s)), ("share", f"{row.share:.1%}"), *cost_line(row.usd)]
        name = f"{clean(row.use)} ({row.share:.0%})"
        told = name if row.share >= LETTER_SHARE * len(name) else ""
        on_bar = told if row.kind == "work" else ""
        fig.add_bar(
            x=[row.gpu_s], y=[RUN], orientation="h", name=name, marker=_marker(row.kind, row.use),
            showlegend=row.share >= LITTLE, hovertext=[hover(lines, clean(row.use))], hoverinfo="text",
            text=[on_bar], textposition="inside", insidetextanchor="middle", textangle=0, constraintext="inside",
            insidetextfont={"color": ink_on(WORK_COLOURS.get(row.use, GREY))},
        )  # fmt: skip
        if told and not on_bar:  # what is no work is pale on light and dark on dark paper, as the figure's own ink expects
            fig.add_annotation(x=done + row.gpu_s / 2, y=RUN, text=told, showarrow=False, name=WIDE_ONLY)
        done += row.gpu_s
    names = [RUN]
    if info.schedule and info.saved_gpu_share == info.saved_gpu_share:
        after = clean(f"with {info.schedule}", 30)
        bars = [(after, info.saved_gpu_share, GREEN, "")]
        if info.most_gpu_share > 0:
            bars.append(("lower bound", info.most_gpu_share, BOUND, "at most "))
        for label, saved, colour, most in bars:
            names.append(label)
            left = total * (1 - saved)
            words = f"{most}{abs(saved):.0%} {'saved' if saved >= 0 else 'more'}"
            texts = [number(left, "GPU-seconds"), usd(paid * (1 - saved)), words]
            fig.add_bar(
                x=[left], y=[label], orientation="h", showlegend=False, marker={"color": colour}, hoverinfo="skip",
                text=[", ".join(filter(None, texts))], textposition="inside" if saved < 0.55 else "outside",
                insidetextanchor="start", constraintext="none", cliponaxis=False,
            )  # fmt: skip
    sums = ", ".join(filter(None, [number(total, "GPU-seconds"), usd(paid)]))
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False)
    longest = total * max(1.0, 1.0 - info.saved_gpu_share) if info.schedule else total
    fig.update_xaxes(title=f"GPU-seconds (this run: {sums})", range=[0, 1.02 * longest])
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.42, "yanchor": "top", "traceorder": "normal"}
    subtitle = "<br>".join(filter(None, [info.change, SLOT if info.has_empty_slots else ""]))
    styled(
        fig, info.verdict, subtitle, height=250 + 44 * len(names) + 16 * bool(subtitle), barmode="stack", bargap=0.25,
        legend=legend,
    )  # fmt: skip
    fig.update_layout(margin={"b": 108}, uniformtext={"minsize": 10, "mode": "hide"})
    return fig


def _marker(kind: str, use: str) -> dict[str, Any]:
    """Return fill and hatch of a use: the colour of its phase for work, pale blue for empty slots, hatched for idle GPUs."""
    outline = {"color": OUTLINE, "width": 1}
    if kind == "idle":
        hatch = {"shape": "/", "fgcolor": VERMILLION, "bgcolor": "rgba(213,94,0,0.12)", "size": 9, "solidity": 0.1,
                 "fillmode": "replace"}  # fmt: skip
        return {"color": "rgba(213,94,0,0.12)", "line": outline, "pattern": hatch}
    colour = OCCUPANCY_SCALE[0][1] if kind == "empty slots" else WORK_COLOURS.get(use, GREY)
    return {"color": colour, "line": outline}
