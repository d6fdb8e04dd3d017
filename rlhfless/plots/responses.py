"""Plots the responses of one actor as bars in time: start in the batch, duration, and which were cut off.

Input are rollouts with times. One row per response, in the order in which they joined the batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.clock import clock_words
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import trace_of
from rlhfless.plots.palette import BLUE, IDLE, SELECTED, VERMILLION
from rlhfless.plots.style import clean, counted, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of
from rlhfless.plots.tracks import bars_by_style
from rlhfless.trace import Trace

NEEDED = ("actor", "start_s", "end_s")
MAX_BARS = 5_000
FEW = 12  # responses that have a tick each


def _marker(colour: str, hatch: str) -> dict[str, Any]:
    return {"color": colour, "line": {"width": 0}, "pattern": {"shape": hatch, "size": 5, "fgopacity": 0.5}}


STYLES = {
    "waiting": {"name": "waiting", "width": 0.5, "marker": {"color": IDLE, "line": {"width": 0}}},
    "complete": {"name": "decoding", "width": 0.9, "marker": _marker(BLUE, "")},
    "cut": {"name": "decoding, cut off by the limit", "width": 0.9, "marker": _marker(VERMILLION, "x")},
}


class _Data(NamedTuple):
    """Data of ``plot_responses``: the responses of one holder in one step; times are seconds since the step's start.

    Attributes:
        holder: the actor's name.
        bars: ``row, index`` (row of ``trace.rollouts``), ``prompt_id, sample, start_s, end_s, kind`` (``complete`` or ``cut``),
            ``hover``.
        missing: why there is nothing to show, or the empty text.
    """

    holder: str
    bars: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``bars``; ``rollouts_row`` is the row of ``trace.rollouts``."""
        return self.bars.drop(columns="hover").rename(columns={"index": "rollouts_row"}).assign(holder=self.holder)


def _data(trace: Trace, holder: str | None = None, step: int | None = None) -> _Data:
    """Return the data of ``plot_responses``; for the arguments see there."""
    step = (trace.steps or [0])[-1] if step is None else step
    rows = trace.rollouts
    none = pd.DataFrame(columns=["row", "index", "prompt_id", "sample", "start_s", "end_s", "kind", "hover"])
    if any(name not in rows for name in NEEDED):
        return _Data(holder or "", none, "The trace has no actors or times of responses.")
    rows = rows[(rows["step"] == step) & rows["start_s"].notna() & rows["end_s"].notna()]
    if holder is None and len(rows):
        holder = str(rows["actor"].dropna().sort_values().iloc[0]) if rows["actor"].notna().any() else ""
    of_holder = rows[rows["actor"] == holder].sort_values(["start_s", "end_s"], kind="stable")
    if of_holder.empty:
        return _Data(holder or "", none, f"{clean(holder or 'The trace')} has no completed responses in step {step}.")
    if len(of_holder) > MAX_BARS:
        return _Data(
            holder or "", none, f"{len(of_holder):,} responses are too many for one figure, which draws at most {MAX_BARS:,}."
        )
    held = trace.allocations[trace.allocations["step"] == step]
    began = float(held["start_s"].min()) if len(held) else float(of_holder["start_s"].min())
    bars = pd.DataFrame(
        {
            "row": np.arange(len(of_holder)),
            "index": of_holder.index,
            "prompt_id": of_holder["prompt_id"].astype(str),
            "sample": of_holder["sample"],
            "start_s": of_holder["start_s"] - began,
            "end_s": of_holder["end_s"] - began,
            "kind": np.where(of_holder["finish_reason"] == "length", "cut", "complete"),
        }
    ).reset_index(drop=True)
    predicted = of_holder["predicted_tokens"] if "predicted_tokens" in of_holder else pd.Series(np.nan, of_holder.index)
    bars["hover"] = [
        hover(
            [
                ("predicted", number(guess, "tokens")),
                ("generated", f"{tokens:,} tokens"),
                ("time", f"{number(row.start_s, 's')} to {number(row.end_s, 's')}"),
            ],
            f"prompt {clean(row.prompt_id, 30)}, sample {row.sample}",
        )
        for row, guess, tokens in zip(bars.itertuples(), predicted, of_holder["response_tokens"], strict=True)
    ]
    return _Data(str(holder), bars)


def plot_responses(
    trace: Trace | str | Path, holder: str | None = None, step: int | None = None, *, selected: int | None = None
) -> DataFigure:
    """Plot the responses of one actor, a bar each, in the order in which they joined.

    Args:
        trace: of an executed run, or its folder.
        holder: the actor's name (``actor-0``); the first one when None.
        step: the last one when None.
        selected: the row of ``trace.rollouts`` of a response to mark, where the actor has it.

    Returns:
        A figure whose bars have the row of ``trace.rollouts`` as ``customdata``; for a trace without times one that says so.

    Raises:
        InputError: it is no trace.
        TraceError: the folder holds none.
    """
    trace = trace_of(trace, "plot_responses")
    info = _data(trace, holder, step)
    title = f"Responses of {clean(info.holder)}" if info.holder else "Responses of an actor"
    if info.missing:
        return message_figure(title, info.missing, info.to_frame())
    bars = info.bars
    fig = figure_of(info.to_frame)
    waits = bars[bars["start_s"] > 0].assign(kind="waiting", start_s=0.0, end_s=lambda wait: bars.loc[wait.index, "start_s"])
    for drawn in bars_by_style(pd.concat([waits, bars]), STYLES, "kind", customdata="index"):
        fig.add_trace(drawn)
    marked = bars[bars["index"] == selected]
    if len(marked):
        fig.add_scatter(
            x=marked["end_s"], y=marked["row"], mode="markers", name="selected response", marker=SELECTED, cliponaxis=False,
            customdata=marked["index"].tolist(), hovertext=marked["hover"].tolist(), hoverinfo="text",
        )  # fmt: skip
    fig.update_yaxes(range=[len(bars) - 0.4, -0.6], title="response, by start", showgrid=False, zeroline=False)
    fig.update_yaxes(tickformat="d", **({"dtick": 1} if len(bars) <= FEW else {"nticks": 10}))
    fig.update_xaxes(title="time since the start of the step (s)", rangemode="tozero")
    # below the plot there is room for the lines that it takes on a telephone
    legend = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "traceorder": "normal"}
    heading = f"{title}: {counted(len(bars), 'response')}"
    return styled(fig, heading, clock_words(trace.meta), height=392, barmode="overlay", bargap=0.1, legend=legend)
