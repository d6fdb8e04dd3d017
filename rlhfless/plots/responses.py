"""Plots the responses of one actor as bars in time: start in the batch, duration, and which were cut off or moved on.

Input are rollouts with times, and the moves of a trace. One row per response, in the order in which they joined the batch. Of a
response that moved, the bar is the part that this actor generated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.clock import clock_words
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import trace_of
from rlhfless.plots.palette import BLUE, IDLE, SELECTED, SKY, VERMILLION
from rlhfless.plots.style import clean, counted, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of
from rlhfless.plots.tracks import bars_by_style
from rlhfless.trace import Trace
from rlhfless.trace.tracks import tracks

NEEDED = ("actor", "start_s", "end_s")
MAX_BARS = 5_000
FEW = 12  # responses that have a tick each


def _marker(colour: str, hatch: str) -> dict[str, Any]:
    return {"color": colour, "line": {"width": 0}, "pattern": {"shape": hatch, "size": 5, "fgopacity": 0.5}}


STYLES = {
    "waiting": {"name": "waiting", "width": 0.5, "marker": {"color": IDLE, "line": {"width": 0}}},
    "complete": {"name": "decoding", "width": 0.9, "marker": _marker(BLUE, "")},
    "moved": {"name": "decoding, then moved on", "width": 0.9, "marker": _marker(SKY, "/")},
    "cut": {"name": "decoding, cut off by the limit", "width": 0.9, "marker": _marker(VERMILLION, "x")},
}


class _Data(NamedTuple):
    """Data of ``plot_responses``: the responses of one holder in one step; times are seconds since the step's start.

    Attributes:
        holder: the actor's name.
        bars: ``row, index`` (row of ``trace.rollouts``), ``prompt_id, sample, start_s, end_s, kind`` (``complete``, ``cut``, or
            ``moved`` where another actor went on), ``hover``.
        waits: the same columns: the time before that from the start of the step, of responses that joined here first.
        missing: why there is nothing to show, or the empty text.
    """

    holder: str
    bars: pd.DataFrame
    waits: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``bars``; ``rollouts_row`` is the row of ``trace.rollouts``."""
        return self.bars.drop(columns="hover").rename(columns={"index": "rollouts_row"}).assign(holder=self.holder)


def _data(trace: Trace, holder: str | None = None, step: int | None = None) -> _Data:
    """Return the data of ``plot_responses``; for the arguments see there."""
    step = (trace.steps or [0])[-1] if step is None else step
    none = pd.DataFrame(columns=["row", "index", "prompt_id", "sample", "start_s", "end_s", "kind", "hover"])
    if any(name not in trace.rollouts for name in NEEDED):
        return _Data(holder or "", none, none, "The trace has no actors or times of responses.")
    parts = tracks(trace, step=step, tables=("rollouts",))
    parts = parts[parts["track"] != ""]
    if holder is None:
        holder = min(parts["track"], default="")
    parts = parts[parts["track"] == holder].sort_values(["start_s", "end_s"], kind="stable")
    if parts.empty:
        return _Data(holder, none, none, f"{clean(holder or 'The trace')} has no completed responses in step {step}.")
    if len(parts) > MAX_BARS:
        missing = f"{len(parts):,} responses are too many for one figure, which draws at most {MAX_BARS:,}."
        return _Data(holder, none, none, missing)
    held = trace.allocations[trace.allocations["step"] == step]
    began = float(held["start_s"].min()) if len(held) else float(parts["start_s"].min())
    responses = trace.rollouts.loc[parts["label"]]
    whole = np.where(responses["finish_reason"] == "length", "cut", "complete")
    bars = pd.DataFrame(
        {
            "row": np.arange(len(parts)),
            "index": responses.index,
            "prompt_id": responses["prompt_id"].astype(str).to_numpy(),
            "sample": responses["sample"].to_numpy(),
            "start_s": parts["start_s"].to_numpy(dtype=float) - began,
            "end_s": parts["end_s"].to_numpy(dtype=float) - began,
            "kind": np.where(parts["part"] < parts["parts"], "moved", whole),
        }
    )
    predicted = responses.get("predicted_tokens", pd.Series(np.nan, responses.index))
    bars["hover"] = [
        hover(
            [
                ("predicted", number(guess, "tokens")),
                ("generated", f"{tokens:,} tokens"),
                ("time", f"{number(row.start_s, 's')} to {number(row.end_s, 's')}"),
                *([("part", f"{part} of {of}")] if of > 1 else []),
            ],
            f"prompt {clean(row.prompt_id, 30)}, sample {row.sample}",
        )
        for row, guess, tokens, part, of in zip(
            bars.itertuples(), predicted, responses["response_tokens"], parts["part"], parts["parts"], strict=True
        )
    ]
    joined = bars[(bars["start_s"] > 0) & (parts["part"] == 1).to_numpy()]
    return _Data(holder, bars, joined.assign(kind="waiting", start_s=0.0, end_s=joined["start_s"]))


def plot_responses(
    trace: Trace | str | Path, holder: str | None = None, step: int | None = None, *, selected: int | None = None
) -> DataFigure:
    """Plot the responses of one actor, a bar each, in the order in which they joined; of one that moved, its part there.

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
    for drawn in bars_by_style(pd.concat([info.waits, bars]), STYLES, "kind", customdata="index"):
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
