"""Plots which share of drafted tokens a log would have accepted, by position in the draft and by source of the drafts.

Input is one ``DraftStudy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines
from rlhfless.plots.palette import BLUE, GREEN, GREY, ORANGE
from rlhfless.plots.style import clean, hover, message_figure, styled, whole_steps
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from rlhfless.analysis.draft_study import DraftStudy

TITLE = "Share of drafted tokens that are accepted"
STYLES = ((GREY, "circle", "dot"), (ORANGE, "square", "dash"), (GREEN, "diamond", "dashdot"), (BLUE, "star", "solid"))
"""Colour, marker and dash of the sources, in order."""


def plot_acceptance(study: DraftStudy) -> DataFigure:
    """Plot the share of passes in which each position of a draft is accepted: a line per source of drafts.

    Returns:
        A figure, whose table has ``source, position, survival`` and ``tokens_per_pass`` (of drafts that end there); without
        drafts one that says so.
    """
    shares = study.by_position
    table = shares.assign(tokens_per_pass=1 + shares.groupby("source", sort=False)["survival"].cumsum())
    if table.empty:
        return message_figure(TITLE, "There are no drafts to show.", table)
    styles = dict(zip(table["source"].unique(), STYLES, strict=False))

    def style(source: Any, rows: pd.DataFrame) -> dict[str, Any]:
        colour, symbol, dash = styles[source]
        name = f"{clean(source)}: {rows['tokens_per_pass'].iloc[-1]:.2f} {study.unit} per pass"
        marker = {"color": colour, "symbol": symbol, "size": 8}
        return {"name": name, "line": {"color": colour, "dash": dash}, "marker": marker}

    def text(row: Any) -> str:
        per_pass = (f"{study.unit} per pass so far", f"{row.tokens_per_pass:.2f}")
        return hover([("accepted", f"{row.survival:.1%} of passes"), per_pass], f"{clean(row.source)}, position {row.position}")

    drawn = table[table["source"].isin(styles)]
    fig = figure_of(table)
    fig.add_traces(lines(drawn, "position", "survival", "source", style, text))
    fig.update_xaxes(title=f"position in the draft ({study.unit})", **whole_steps(sorted(set(table["position"]))))
    fig.update_yaxes(title="share of passes that accept this position", range=[0, 1], tickformat=".0%")
    note = f"measured on {clean(study.measured)}; a position is accepted only if all positions before it are"
    return styled(
        fig, TITLE, note, height=440, above=64,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "entrywidth": 330, "traceorder": "normal"},
    )  # fmt: skip
