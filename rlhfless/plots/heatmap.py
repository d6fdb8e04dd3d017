"""Heatmaps: one cell per pair of values of a tidy frame. The result is plotly's JSON, as of ``lines``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd


def heatmap(table: pd.DataFrame, x: str, y: str, z: str, text: Callable[[Any], str], /, **trace: Any) -> dict[str, Any]:
    """Return the cells of a table.

    Args:
        table: a row per cell. x, y, z: its columns; ``z`` is the colour. text: hover text of a row.
        trace: further fields of the trace.
    """
    shown = table.assign(hover=[text(row) for row in table.itertuples()])
    colour, texts = (shown.pivot(index=y, columns=x, values=column) for column in (z, "hover"))
    return {
        "type": "heatmap", "x": colour.columns.tolist(), "y": colour.index.tolist(), "z": colour.to_numpy(),
        "hovertext": texts.to_numpy(), "hoverinfo": "text", **trace,
    }  # fmt: skip
