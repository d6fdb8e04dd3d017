"""Lines and marks over a common axis: one for a whole tidy frame, or one per name in a column of it.

The result is plotly's JSON: plotly checks and copies an object of its own twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd


def line(table: pd.DataFrame, x: str, y: str, text: Callable[[Any], str] | None = None, **trace: Any) -> dict[str, Any]:
    """Return a line with markers through the rows of a table.

    Args:
        table: a row per point, in the order of the line. x, y: its columns.
        text: hover text of a row. trace: fields of the trace; ``mode="markers"`` leaves the line out.
    """
    texts = {} if text is None else {"hovertext": [text(row) for row in table.itertuples()], "hoverinfo": "text"}
    return {"type": "scatter", "mode": "lines+markers", "x": table[x], "y": table[y], **texts, **trace}


def lines(
    table: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    style: Callable[[Any, pd.DataFrame], dict[str, Any]],
    text: Callable[[Any], str] | None = None,
    **trace: Any,
) -> list[dict[str, Any]]:
    """Return a line for every value of ``by``, in the order in which they appear.

    Args:
        table, x, y, text: as of ``line``. by: the column whose values are lines.
        style: fields of a line's trace, from its value of ``by`` and its rows. trace: fields of all traces.
    """
    return [line(rows, x, y, text, **{**trace, **style(value, rows)}) for value, rows in table.groupby(by, sort=False)]


def reference_line(x: Sequence[Any], y: Sequence[Any], look: dict[str, Any], **trace: Any) -> dict[str, Any]:
    """Return a line that is no data, from one end to the other; ``look`` is its colour, dash and width."""
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": look, **trace}
