"""Plots how many tokens were drafted per response, and how many responses were in the batch, over a step per actor.

Input is a trace whose decode spans say what was drafted: ``fed_tokens, drafted, accepted`` in their detail.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.plots.palette import COLOURS
from rlhfless.plots.style import clean, counted, hover, message_figure, number, styled
from rlhfless.trace import Trace

TITLE = "Drafted tokens per response and pass"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MAX_ACTORS = 12
"""Actors that are drawn: those that decode longest."""


class DraftLengthInfo(NamedTuple):
    """Data of ``plot_draft_length``; times are seconds since the step's start.

    Attributes:
        table: one row per decode span of the drawn actors: ``holder, start_s, end_s, batch, draft_tokens`` (mean per response
            and pass), ``accepted_share`` (of the drafted tokens; NaN where none were drafted).
        step: which step. actors: how many actors decoded in it.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    step: int
    actors: int
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``table``."""
        return self.table


def draft_length_info(trace: Trace, step: int | None = None) -> DraftLengthInfo:
    """Return the data of ``plot_draft_length``.

    Args:
        trace: any trace. step: the last one when None.
    """
    step = (trace.steps or [0])[-1] if step is None else step
    spans = trace.spans[trace.spans["step"] == step]
    start_s = float(spans["start_s"].min()) if len(spans) else 0.0
    rows = [
        _row(span, said, start_s)
        for span in spans[spans["phase"] == "decode"].itertuples()
        if (said := _said(span.detail)) is not None
    ]
    columns = ["holder", "start_s", "end_s", "batch", "draft_tokens", "accepted_share"]
    table = pd.DataFrame(rows, columns=columns).sort_values(["holder", "start_s"], kind="stable", ignore_index=True)
    decoded_s = (table["end_s"] - table["start_s"]).groupby(table["holder"]).sum().sort_values(ascending=False, kind="stable")
    shown = table[table["holder"].isin(decoded_s.index[:MAX_ACTORS])].reset_index(drop=True)
    missing = "" if rows else f"Step {step} has no decode spans that say what was drafted: it decoded without drafts."
    return DraftLengthInfo(shown, step, len(decoded_s), missing)


def _said(detail: Any) -> dict[str, Any] | None:
    """Return the detail of a span that says what was drafted; None for another one."""
    said = json.loads(detail) if isinstance(detail, str) else None
    return said if isinstance(said, dict) and {"fed_tokens", "drafted", "accepted"} <= set(said) else None


def _row(span: Any, said: dict[str, Any], start_s: float) -> tuple[Any, ...]:
    """Return a row of the table; the responses of all passes together feed their drafts and one token each."""
    fed = said["fed_tokens"] - said["drafted"]
    drafted, accepted = said["drafted"], said["accepted"]
    return (
        span.holder, span.start_s - start_s, span.end_s - start_s, span.batch_mean, drafted / fed if fed else 0.0,
        accepted / drafted if drafted else float("nan"),
    )  # fmt: skip


def plot_draft_length(trace: Trace, step: int | None = None) -> go.Figure:
    """Plot the mean draft length, and the batch below it, over the time of one step: a line per actor.

    Args:
        trace: any trace. step: the last one when None.

    Returns:
        A figure; where nothing was drafted one that says so.
    """
    info = draft_length_info(trace, step)
    if info.missing:
        return message_figure(TITLE, info.missing)
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for k, (holder, rows) in enumerate(info.table.groupby("holder", sort=False)):
        name, line = clean(holder), {"color": COLOURS[k % len(COLOURS)], "dash": DASHES[k % len(DASHES)]}
        texts = [
            hover(
                [("drafted", f"{row.draft_tokens:.2f} tokens per response and pass"), ("accepted", _share(row.accepted_share)),
                 ("batch", number(row.batch, "responses")), ("time", f"{row.start_s:.3g} to {row.end_s:.3g} s")],
                name,
            )
            for row in rows.itertuples()
        ]  # fmt: skip
        for panel, column in enumerate(("draft_tokens", "batch"), start=1):
            x, y, shown = _stairs(rows, column, texts)
            fig.add_scatter(
                x=x, y=y, mode="lines", line=line, name=name, legendgroup=name, showlegend=panel == 1, hovertext=shown,
                hoverinfo="text", row=panel, col=1,
            )  # fmt: skip
    fig.update_yaxes(title="drafted tokens", rangemode="tozero", row=1, col=1)
    fig.update_yaxes(title="responses in the batch", rangemode="tozero", row=2, col=1)
    fig.update_xaxes(title="time since the step's start (s)", row=2, col=1)
    drawn = info.table["holder"].nunique()
    note = f"step {info.step}; means over each decode span" + (
        f"; the {drawn} of {counted(info.actors, 'actor')} that decode longest" if drawn < info.actors else ""
    )
    return styled(fig, TITLE, note, height=520)


def _share(share: float) -> str:
    return f"{share:.0%} of them" if share == share else "nothing was drafted"


def _stairs(rows: pd.DataFrame, column: str, texts: list[str]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return a line that is level over every span, with gaps between spans that do not follow each other."""
    x: list[Any] = []
    y: list[Any] = []
    shown: list[Any] = []
    for row, text in zip(rows.itertuples(), texts, strict=True):
        if x and x[-1] != row.start_s:
            x, y, shown = [*x, None], [*y, None], [*shown, None]
        x, y, shown = [*x, row.start_s, row.end_s], [*y, *[getattr(row, column)] * 2], [*shown, text, text]
    return x, y, shown
