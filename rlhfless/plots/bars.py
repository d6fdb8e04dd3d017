"""Bars: a row of a frame per bar or group of bars, and a column per part. The result is plotly's JSON, as of ``lines``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


def hatched(colour: str, hatch: str = "", **pattern: Any) -> dict[str, Any]:
    """Return the marker of a bar: its fill and its hatch; ``pattern`` are further fields of plotly's ``pattern``."""
    return {"color": colour, "pattern": {"shape": hatch, "size": 5, "fgopacity": 0.4, **pattern}}


def bars(
    table: pd.DataFrame,
    at: Sequence[Any] | pd.Index | pd.Series,
    parts: Mapping[Any, Mapping[str, Any]],
    *,
    upright: bool = False,
    **trace: Any,
) -> list[dict[str, Any]]:
    """Return the bars of every part; the figure's ``barmode`` stacks them or puts them beside each other.

    Args:
        table: a row per bar. at: what the rows are, on the axis from which bars begin.
        parts: columns of the table, with fields of their traces, such as ``name``, ``marker`` and ``hovertext`` of the rows.
        upright: bars go up; else to the right. trace: fields of all traces.
    """
    drawn = []
    for part, fields in parts.items():
        place = {"x": at, "y": table[part]} if upright else {"x": table[part], "y": at, "orientation": "h"}
        own = {**trace, **fields}
        drawn.append({"type": "bar", **place, **({"hoverinfo": "text"} if "hovertext" in own else {}), **own})
    return drawn
