"""Plots several numbers of one unit per schedule or setting as grouped bars.

Input is any table. A missing number leaves its bar empty.
"""

from __future__ import annotations

import pandas as pd

from rlhfless.plots.bars import bars, hatched
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, IDLE, ORANGE, POLICY_STYLES, SKY
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of

STYLES = ((IDLE, "/"), (SKY, "\\"), (BLUE, ""), (ORANGE, "x"))
"""Colour and hatch of the columns, in order; columns that are policies keep the colour of the policy."""


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
        A figure, whose table is ``table`` with the names of its rows as the first column; for an empty table one that says so.
    """
    drawn = table.reset_index(names=str(table.index.name or "group"), allow_duplicates=True)
    if len(table.columns) > len(STYLES):
        missing = f"There are {len(table.columns)} columns; a figure has at most {len(STYLES)}."
        return message_figure(clean(title), missing, drawn)
    if not table.size:
        return message_figure(clean(title), "There are no numbers to show.", drawn)
    names = [clean(name) for name in table.index]
    parts = {}
    for (column, values), (colour, hatch) in zip(table.items(), STYLES, strict=False):
        colour = POLICY_STYLES[column].colour if column in POLICY_STYLES else colour
        parts[column] = {
            "name": clean(column), "marker": hatched(colour, hatch),
            "text": ["" if pd.isna(value) else f"{value:,.{decimals}f}" for value in values],
            "hovertext": [hover([(clean(column), number(value))], name) for name, value in zip(names, values, strict=True)],
        }  # fmt: skip
    fig = figure_of(drawn)
    fig.add_traces(bars(table, names, parts, textposition="outside", cliponaxis=False))
    if bound is not None:
        fig.add_vline(x=bound[1], line={"color": BOUND, "dash": "dash", "width": 2})
    fig.update_yaxes(autorange="reversed", type="category", title=clean(groups))
    ends = pd.Series([0.0, *table.min(), *table.max()], dtype=float)
    fig.update_xaxes(title=clean(axis), range=[1.2 * ends.min(), 1.2 * ends.max()])
    note = "" if bound is None else f"dashed: {clean(bound[0])}, {bound[1]:,.{decimals}f}"
    return styled(
        fig, clean(title), note, height=202 + (18 * len(table.columns) + 16) * len(table), barmode="group", bargap=0.25,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"}, above=34,
    )  # fmt: skip
