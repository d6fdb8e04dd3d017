"""Plots predicted against actual response lengths.

Input are rollouts with predictions. The length of a response that was truncated by the limit is a lower bound: it is marked,
and no error counts it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, SKY, VERMILLION
from rlhfless.plots.style import MINUS, clean, counted, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of
from rlhfless.trace import Trace

MAX_SVG_POINTS = 5_000
MAX_POINTS = 20_000
TITLE = "Predicted and actual response lengths"


class _Data(NamedTuple):
    """Predicted and actual lengths, with their errors.

    Attributes:
        points: ``step, prompt_id, sample, predicted_tokens, response_tokens, kind`` of responses with a prediction. ``kind`` is
            ``stop``, ``censored`` (the length is a lower bound) or ``unknown`` (the log does not say why it ended).
        rank_correlation: Spearman's, over responses that are not censored; NaN when either side is constant.
        mean_abs_error_tokens, mean_error_tokens: over the same; the latter is actual minus predicted.
        censored: number of responses that only give a lower bound.
        missing: why there is nothing to show, or the empty text.
    """

    points: pd.DataFrame
    rank_correlation: float
    mean_abs_error_tokens: float
    mean_error_tokens: float
    censored: int
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``points``."""
        return self.points


def _data(trace: Trace, step: int | None = None) -> _Data:
    """Return the data of ``plot_lengths``; all steps when ``step`` is None."""
    rows = trace.rollouts if step is None else trace.rollouts[trace.rollouts["step"] == step]
    columns = ["step", "prompt_id", "sample", "predicted_tokens", "response_tokens"]
    nan = float("nan")
    if "predicted_tokens" not in rows or not rows["predicted_tokens"].notna().any():
        what = "no responses" if rows.empty else "no predicted lengths"
        what_has = "The trace" if step is None else f"Step {step}"
        return _Data(pd.DataFrame(columns=[*columns, "kind"]), nan, nan, nan, 0, f"{what_has} has {what}.")
    rows = rows[rows["predicted_tokens"].notna()]
    points = rows[columns].reset_index(drop=True)
    points["predicted_tokens"] = points["predicted_tokens"].astype(float)
    points["response_tokens"] = points["response_tokens"].astype(float)
    reason = rows["finish_reason"].astype(object).reset_index(drop=True)
    points["kind"] = reason.map({"stop": "stop", "length": "censored", "aborted": "censored"}).fillna("unknown")
    complete = points[points["kind"] != "censored"]
    predicted, actual = complete["predicted_tokens"], complete["response_tokens"]
    varied = predicted.nunique() > 1 and actual.nunique() > 1
    return _Data(
        points,
        float(np.corrcoef(predicted.rank(), actual.rank())[0, 1]) if varied else nan,
        float((actual - predicted).abs().mean()) if len(complete) else nan,
        float((actual - predicted).mean()) if len(complete) else nan,
        int((points["kind"] == "censored").sum()),
    )


def plot_lengths(trace: Trace, step: int | None = None, *, max_points: int = MAX_POINTS) -> DataFigure:
    """Plot predicted against actual lengths, one point per response; all steps when ``step`` is None.

    Args:
        trace: any trace. step: one step alone. max_points: of more responses evenly spaced ones are drawn. Up to
            ``MAX_SVG_POINTS`` the small bundle of plotly.js draws them.

    Returns:
        A figure; for a trace without predictions one that says so.
    """
    info = _data(trace, step)
    title = TITLE if step is None else f"{TITLE}, step {step}"
    if info.missing:
        return message_figure(title, info.missing, info.to_frame())
    points = info.points
    if len(points) > max_points:
        points = points.iloc[np.linspace(0, len(points) - 1, max_points).astype(int)]
    fig = figure_of(info.to_frame())
    top = 1.04 * float(max(1.0, points["predicted_tokens"].max(), points["response_tokens"].max()))
    fig.add_scatter(
        x=[0, top], y=[0, top], mode="lines", name="predicted = actual", hoverinfo="skip",
        line={"color": "#7F7F7F", "dash": "dash", "width": 1.5},
    )  # fmt: skip
    add = fig.add_scattergl if len(points) > MAX_SVG_POINTS else fig.add_scatter
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
        texts = [
            hover(
                [
                    ("predicted", number(row.predicted_tokens, "tokens")),
                    ("actual", ("at least " if kind == "censored" else "") + number(row.response_tokens, "tokens")),
                ],
                f"prompt {clean(row.prompt_id, 30)}, sample {row.sample}, step {row.step}",
            )
            for row in subset.itertuples()
        ]
        add(
            x=subset["predicted_tokens"], y=subset["response_tokens"], mode="markers", name=f"{name} ({len(subset):,})",
            marker=marker, hovertext=texts, hoverinfo="text",
        )  # fmt: skip
    note = (
        f"{counted(len(info.points), 'response')}: rank correlation {_or_undefined(info.rank_correlation)}, mean absolute "
        f"error {number(info.mean_abs_error_tokens, 'tokens')}, "
        f"mean error (actual minus predicted) {number(info.mean_error_tokens, 'tokens')}"
    )
    if info.censored:
        note += (
            f"<br>left out of these numbers: {counted(info.censored, 'cut-off response')}, whose length is only a lower bound"
        )
    unknown = info.points[info.points["kind"] == "unknown"]["response_tokens"]
    if len(unknown) and (at_top := int((unknown == unknown.max()).sum())) > 1:
        longest = number(unknown.max(), "tokens")
        note += f"<br>the log has no finish reasons: the {at_top:,} responses of {longest} may have been cut off"
    if len(points) < len(info.points):
        note += f"<br>{len(points):,} of them are drawn, evenly spaced"
    fig.update_xaxes(title="predicted length (tokens)", range=[0, top])
    fig.update_yaxes(title="actual length (tokens)", range=[0, top])
    return styled(fig, title, note, height=480)


def _or_undefined(value: float) -> str:
    return f"{value:.2f}".replace("-", MINUS) if np.isfinite(value) else "undefined (all predictions or all lengths are equal)"
