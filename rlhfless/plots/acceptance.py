"""Plots which share of drafted tokens a log would have accepted, by position in the draft and by source of the drafts.

Input is one ``DraftStudy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, GREEN, GREY, ORANGE
from rlhfless.plots.style import clean, hover, message_figure, styled, whole_steps
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from rlhfless.analysis.draft_study import DraftStudy

TITLE = "Share of drafted tokens that are accepted"
STYLES = ((GREY, "circle", "dot"), (ORANGE, "square", "dash"), (GREEN, "diamond", "dashdot"), (BLUE, "star", "solid"))
"""Colour, marker and dash of the sources, in order."""


class _Data(NamedTuple):
    """Data of ``plot_acceptance``.

    Attributes:
        table: one row per source and position: ``source, position, survival, tokens_per_pass`` (of drafts that end there).
        unit: what texts were counted in: ``tokens`` or ``bytes``. measured: what was measured, in words.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    unit: str
    measured: str
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``table``."""
        return self.table


def _data(study: DraftStudy) -> _Data:
    """Return the data of ``plot_acceptance``."""
    table = study.by_position
    missing = "" if len(table) else "There are no drafts to show."
    per_pass = 1 + table.groupby("source", sort=False)["survival"].cumsum()
    return _Data(table.assign(tokens_per_pass=per_pass), study.unit, study.measured, missing)


def plot_acceptance(study: DraftStudy) -> DataFigure:
    """Plot the share of passes in which each position of a draft is accepted: a line per source of drafts.

    Returns:
        A figure; without drafts one that says so.
    """
    info = _data(study)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    for (source, rows), (colour, symbol, dash) in zip(info.table.groupby("source", sort=False), STYLES, strict=False):
        name = clean(source)
        texts = [
            hover(
                [("accepted", f"{row.survival:.1%} of passes"), (f"{info.unit} per pass so far", f"{row.tokens_per_pass:.2f}")],
                f"{name}, position {row.position}",
            )
            for row in rows.itertuples()
        ]
        fig.add_scatter(
            x=rows["position"], y=rows["survival"], mode="lines+markers", line={"color": colour, "dash": dash},
            name=f"{name}: {rows['tokens_per_pass'].iloc[-1]:.2f} {info.unit} per pass",
            marker={"color": colour, "symbol": symbol, "size": 8}, hovertext=texts, hoverinfo="text",
        )  # fmt: skip
    fig.update_xaxes(title=f"position in the draft ({info.unit})", **whole_steps(sorted(set(info.table["position"]))))
    fig.update_yaxes(title="share of passes that accept this position", range=[0, 1], tickformat=".0%")
    note = f"measured on {clean(info.measured)}; a position is accepted only if all positions before it are"
    return styled(
        fig, TITLE, note, height=440, above=64,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "entrywidth": 330, "traceorder": "normal"},
    )  # fmt: skip
