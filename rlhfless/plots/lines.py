"""Lines over a common axis: one per name in a column of a tidy frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go


def lines(
    table: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    style: Callable[[Any, pd.DataFrame], dict[str, Any]],
    text: Callable[[Any], str] | None = None,
    **trace: Any,
) -> list[go.Scatter]:
    """Return a line with markers for every value of ``by``, in the order in which they appear.

    Args:
        table: a row per point, in the order of the line. x, y, by: its columns.
        style: fields of a line's trace, from its value of ``by`` and its rows. text: hover text of a row.
        trace: fields of all traces.
    """
    drawn = []
    for value, rows in table.groupby(by, sort=False):
        texts = {} if text is None else {"hovertext": [text(row) for row in rows.itertuples()], "hoverinfo": "text"}
        fields = {"mode": "lines+markers", **texts, **trace, **style(value, rows)}
        drawn.append(go.Scatter(x=rows[x], y=rows[y], **fields))
    return drawn
