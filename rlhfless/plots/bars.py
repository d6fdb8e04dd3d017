"""Horizontal bars: a row of a frame per bar or group of bars, and a column per part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go


def hatched(colour: str, hatch: str = "", **pattern: Any) -> dict[str, Any]:
    """Return the marker of a bar: its fill and its hatch; ``pattern`` are further fields of plotly's ``pattern``."""
    return {"color": colour, "pattern": {"shape": hatch, "size": 5, "fgopacity": 0.4, **pattern}}


def bars(
    table: pd.DataFrame, y: Sequence[Any] | pd.Index, parts: Mapping[str, Mapping[str, Any]], **trace: Any
) -> list[go.Bar]:
    """Return the bars of every part; the figure's ``barmode`` stacks them or puts them beside each other.

    Args:
        table: a row per bar. y: what the rows are. parts: columns of the table, with fields of their traces, such as ``name``,
            ``marker`` and ``hovertext`` of the rows. trace: fields of all traces.
    """
    return [
        go.Bar(x=table[part], y=y, orientation="h", hoverinfo="text", **{**trace, **fields}) for part, fields in parts.items()
    ]
