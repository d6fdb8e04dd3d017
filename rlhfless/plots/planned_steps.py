"""Plots how many actors every step of a log would have needed, with the mean length of its responses.

Input is a table with one row per step.
"""

from __future__ import annotations

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, VERMILLION
from rlhfless.plots.style import MINUS, counted, message_figure, styled, whole_counts, whole_steps
from rlhfless.plots.tables import figure_of

TITLE = "Planned number of actors per step"


def plot_planned_steps(table: pd.DataFrame) -> DataFigure:
    """Plot mean response length (above) and planned actors (below) by step, of ``analysis.plan_every_step``."""
    if table.empty:
        return message_figure(TITLE, "There are no steps.", table)
    fig = figure_of(table, rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.09)
    for row, (column, title, colour, shape) in enumerate(
        (("mean_tokens", "mean length (tokens)", BLUE, "linear"), ("actors", "planned actors", VERMILLION, "hv")), start=1
    ):
        drawn = line(
            table, "step", column, mode="lines+markers" if len(table) <= 60 else "lines", name=title,
            line={"color": colour, "shape": shape}, hovertemplate=f"step %{{x}}<br>{title}: %{{y:,.4g}}<extra></extra>",
        )  # fmt: skip
        fig.add_trace(drawn, row=row, col=1)
        fig.update_yaxes(title=title, rangemode="tozero", row=row, col=1)
    fig.update_xaxes(**whole_steps(table["step"].tolist()))
    fig.update_yaxes(**whole_counts(float(table["actors"].max())), row=2, col=1)
    fig.update_xaxes(title="step", row=2, col=1)
    fewest, highest = int(table["actors"].min()), int(table["actors"].max())
    subtitle = f"{fewest} to {highest} actors" if fewest < highest else f"{counted(fewest, 'actor')} in every step"
    tokens, actors = table["mean_tokens"], table["actors"]
    if tokens.nunique() > 1 and actors.nunique() > 1:
        correlation = float(tokens.rank().corr(actors.rank()))  # Spearman's
        subtitle += f"; rank correlation between actors and mean length {_rounded(correlation)}"
    return styled(fig, TITLE, subtitle, height=430, showlegend=False)


def _rounded(share: float) -> str:
    """Return two digits, without a sign where they are 0."""
    return f"{round(share, 2) + 0.0:.2f}".replace("-", MINUS)
