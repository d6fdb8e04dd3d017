"""Plots predicted against actual response lengths, or the lengths of several logs.

Input are rollouts, with predictions where they are compared. The length of a response that was truncated by the limit is a
lower bound: it is marked, and no error counts it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import trace_of, traces_of
from rlhfless.plots.length_quantiles import plot_length_quantiles
from rlhfless.plots.lines import line, reference_line
from rlhfless.plots.palette import BLUE, GREY, SKY, VERMILLION
from rlhfless.plots.style import MINUS, clean, counted, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of
from rlhfless.trace import Trace

MAX_SVG_POINTS = 5_000
MAX_POINTS = 20_000
TITLE = "Predicted and actual response lengths"


def plot_lengths(
    trace: Trace | str | Path | Mapping[str, Trace | str | Path], step: int | None = None, *, max_points: int = MAX_POINTS
) -> DataFigure:  # fmt: skip
    """Plot predicted against actual lengths, one point per response; or the lengths of several logs, one line per log.

    Args:
        trace: any trace, or the folder of one; or several by name, as in ``plot_lengths({"mine": trace, "theirs": "out/b"})``.
        step: one step alone; all steps when None.
        max_points: of more responses evenly spaced ones are drawn. Up to ``MAX_SVG_POINTS`` the small bundle of plotly.js draws
            them.

    Returns:
        A figure, whose table has ``step, prompt_id, sample, predicted_tokens, response_tokens`` and ``kind``: ``stop``,
        ``censored`` (the length is a lower bound) or ``unknown`` (the log does not say why it ended). For a trace without
        predictions one that says so. Of several logs, its table has ``log, share, tokens``: the length that a share of the
        log's responses does not exceed.

    Raises:
        InputError: it is no trace.
        TraceError: the folder holds none.
    """
    if isinstance(trace, Mapping):
        return plot_length_quantiles(traces_of(trace, "plot_lengths"), step)
    trace = trace_of(trace, "plot_lengths")
    title = TITLE if step is None else f"{TITLE}, step {step}"
    every = _points(trace, step)
    if every.empty:
        rows = trace.rollouts if step is None else trace.rollouts[trace.rollouts["step"] == step]
        what = "no responses" if rows.empty else "no predicted lengths"
        return message_figure(title, f"{'The trace' if step is None else f'Step {step}'} has {what}.", every)
    points = every
    if len(points) > max_points:
        points = points.iloc[np.linspace(0, len(points) - 1, max_points).astype(int)]
    fig = figure_of(every)
    top = 1.04 * float(max(1.0, points["predicted_tokens"].max(), points["response_tokens"].max()))
    equal = {"color": GREY, "dash": "dash", "width": 1.5}
    fig.add_trace(reference_line([0, top], [0, top], equal, name="predicted = actual", hoverinfo="skip"))
    drawn_by = "scattergl" if len(points) > MAX_SVG_POINTS else "scatter"
    see_through = 0.45 if len(points) > 300 else 0.95
    kinds = (
        ("stop", "complete response", {"color": BLUE, "size": 5, "opacity": see_through}),
        ("unknown", "response, finish reason unknown", {"color": SKY, "size": 6, "symbol": "diamond", "opacity": see_through}),
        ("censored", "cut off: at least this long", {"color": VERMILLION, "size": 8, "symbol": "triangle-up-open"}),
    )
    for kind, name, marker in kinds:
        subset = points[points["kind"] == kind]
        if subset.empty:
            continue
        fig.add_trace(
            line(
                subset, "predicted_tokens", "response_tokens", _hover, type=drawn_by, mode="markers", marker=marker,
                name=f"{name} ({len(subset):,})",
            )
        )  # fmt: skip
    complete, cut_off = every[every["kind"] != "censored"], int((every["kind"] == "censored").sum())
    predicted, actual = complete["predicted_tokens"], complete["response_tokens"]
    varied = predicted.nunique() > 1 and actual.nunique() > 1
    correlation = float(np.corrcoef(predicted.rank(), actual.rank())[0, 1]) if varied else math.nan
    note = (
        f"{counted(len(every), 'response')}: rank correlation {_or_undefined(correlation)}, mean absolute "
        f"error {number((actual - predicted).abs().mean(), 'tokens')}, "
        f"mean error (actual minus predicted) {number((actual - predicted).mean(), 'tokens')}"
    )
    if cut_off:
        note += f"<br>left out of these numbers: {counted(cut_off, 'cut-off response')}, whose length is only a lower bound"
    unknown = every[every["kind"] == "unknown"]["response_tokens"]
    if len(unknown) and (at_top := int((unknown == unknown.max()).sum())) > 1:
        longest = number(unknown.max(), "tokens")
        note += f"<br>the log has no finish reasons: the {at_top:,} responses of {longest} may have been cut off"
    if len(points) < len(every):
        note += f"<br>{len(points):,} of them are drawn, evenly spaced"
    fig.update_xaxes(title="predicted length (tokens)", range=[0, top])
    fig.update_yaxes(title="actual length (tokens)", range=[0, top])
    return styled(fig, title, note, height=480)


def _hover(row: Any) -> str:
    actual = ("at least " if row.kind == "censored" else "") + number(row.response_tokens, "tokens")
    where = f"prompt {clean(row.prompt_id, 30)}, sample {row.sample}, step {row.step}"
    return hover([("predicted", number(row.predicted_tokens, "tokens")), ("actual", actual)], where)


def _points(trace: Trace, step: int | None) -> pd.DataFrame:
    """Return a row per response with a prediction; of all steps when ``step`` is None."""
    rows = trace.rollouts if step is None else trace.rollouts[trace.rollouts["step"] == step]
    columns = ["step", "prompt_id", "sample", "predicted_tokens", "response_tokens"]
    if "predicted_tokens" not in rows or not rows["predicted_tokens"].notna().any():
        return pd.DataFrame(columns=[*columns, "kind"])
    rows = rows[rows["predicted_tokens"].notna()]
    points = rows[columns].reset_index(drop=True)
    points["predicted_tokens"] = points["predicted_tokens"].astype(float)
    points["response_tokens"] = points["response_tokens"].astype(float)
    reason = rows["finish_reason"].astype(object).reset_index(drop=True)
    points["kind"] = reason.map({"stop": "stop", "length": "censored", "aborted": "censored"}).fillna("unknown")
    return points


def _or_undefined(value: float) -> str:
    return f"{value:.2f}".replace("-", MINUS) if np.isfinite(value) else "undefined (all predictions or all lengths are equal)"
