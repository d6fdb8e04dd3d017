"""Plots several numbers of one unit per schedule or setting as grouped bars.

Input is any table. A missing number leaves its bar empty.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, IDLE, ORANGE, POLICY_STYLES, SKY
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of

STYLES = ((IDLE, "/"), (SKY, "\\"), (BLUE, ""), (ORANGE, "x"))
"""Colour and hatch of the columns, in order; columns that are policies keep the colour of the policy."""


class _Data(NamedTuple):
    """Data of ``plot_side_by_side``: a table of numbers.

    Attributes:
        table: one row per group of bars, one column per series of bars.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the table with its rows' names as the first column."""
        return self.table.reset_index(names=str(self.table.index.name or "group"), allow_duplicates=True)


def _data(table: pd.DataFrame) -> _Data:
    """Return the data of ``plot_side_by_side``; with more than four columns ``missing`` says why nothing is drawn."""
    if len(table.columns) > len(STYLES):
        return _Data(table, f"There are {len(table.columns)} columns; a figure has at most {len(STYLES)}.")
    return _Data(table, "" if table.size else "There are no numbers to show.")


def plot_side_by_side(
    table: pd.DataFrame,
    title: str,
    axis: str,
    *,
    groups: str = "policy",
    decimals: int = 3,
    bound: tuple[str, float] | None = None,
) -> DataFigure:
    """Plot bars of every column of ``table``, grouped by its rows.

    Args:
        table: columns are the compared series (at most four). title: of the figure. axis: with the unit. groups: what rows are.
        decimals: of the numbers at the bars. bound: name and value of a line that no bar can be below.

    Returns:
        A figure; for an empty table one that says so.
    """
    info = _data(table)
    if info.missing:
        return message_figure(clean(title), info.missing, info.to_frame())
    names = [clean(name) for name in table.index]
    fig = figure_of(info.to_frame())
    for (column, values), (colour, hatch) in zip(table.items(), STYLES, strict=False):
        colour = POLICY_STYLES[column].colour if column in POLICY_STYLES else colour
        fig.add_bar(
            x=values, y=names, orientation="h", name=clean(column),
            text=["" if pd.isna(value) else f"{value:,.{decimals}f}" for value in values], textposition="outside",
            marker={"color": colour, "pattern": {"shape": hatch, "size": 5, "fgopacity": 0.4}}, cliponaxis=False,
            hovertext=[hover([(clean(column), number(value))], name) for name, value in zip(names, values, strict=True)],
            hoverinfo="text",
        )  # fmt: skip
    if bound is not None:
        fig.add_vline(x=bound[1], line={"color": BOUND, "dash": "dash", "width": 2})
    fig.update_yaxes(autorange="reversed", type="category", title=clean(groups))
    fig.update_xaxes(title=clean(axis), range=[0, 1.2 * float(table.max().max())])
    note = "" if bound is None else f"dashed: {clean(bound[0])}, {bound[1]:,.{decimals}f}"
    return styled(
        fig, clean(title), note, height=202 + (18 * len(table.columns) + 16) * len(table), barmode="group", bargap=0.25,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"}, above=34,
    )  # fmt: skip
