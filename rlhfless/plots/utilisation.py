"""Plots the share of time that holders are busy as a heatmap, for timelines with too many spans for bars.

Inputs are intervals of busy and allocated time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from rlhfless.plots.palette import BUSY_SCALE

BINS = 240


def covered_s(starts: ArrayLike, ends: ArrayLike, edges: ArrayLike) -> NDArray[np.float64]:
    """Return the seconds of every bin that at least one of the intervals covers.

    Args:
        starts, ends: (N,) intervals in any order. edges: (B + 1,) increasing.

    Returns:
        (B,) seconds.
    """
    start, end, edge = (np.asarray(values, dtype=float) for values in (starts, ends, edges))
    if not len(start):
        return np.zeros(len(edge) - 1)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
    start = np.maximum(start, before)  # what is left are disjoint intervals
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return np.zeros(len(edge) - 1)
    points = np.column_stack([start, end]).ravel()
    total = np.column_stack([np.zeros(len(start)), end - start]).ravel().cumsum()
    return np.diff(np.interp(edge, points, total))


def busy_share(allocations: pd.DataFrame, spans: pd.DataFrame, rows: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rows, B) share of the allocated time of every bin that foreground spans cover; NaN where nothing is allocated."""
    shares = np.full((rows, len(edges) - 1), np.nan)
    front = spans[~spans["background"].to_numpy(dtype=bool)]
    of_row, held_by = front.groupby("row").indices, allocations.groupby("row").indices
    nothing = np.zeros(0, dtype=np.int64)
    for row in range(rows):
        busy, held = front.iloc[of_row.get(row, nothing)], allocations.iloc[held_by.get(row, nothing)]
        busy_s = covered_s(busy["start_s"], busy["end_s"], edges)
        held_s = (
            covered_s(held["start_s"], held["end_s"], edges) if len(allocations) else np.where(busy_s > 0, np.diff(edges), 0)
        )
        is_held = held_s > 1e-12
        shares[row, is_held] = np.clip(busy_s[is_held] / held_s[is_held], 0.0, 1.0)
    return shares


def add_busy_heatmap(
    fig: go.Figure,
    allocations: pd.DataFrame,
    spans: pd.DataFrame,
    labels: Sequence[str],
    between_s: tuple[float, float] | None = None,
) -> None:
    """Add the heatmap: holders x time, share of the allocated time in which GPUs are busy.

    Args:
        between_s: only this part of the step, in as many bins; all of it when None.
    """
    end_s = max(float(table["end_s"].max()) for table in (allocations, spans) if len(table))
    low, high = (0.0, max(end_s, 1e-9)) if between_s is None else between_s
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    shares = busy_share(allocations, spans, len(labels), edges)
    middle = (edges[:-1] + edges[1:]) / 2
    fig.add_heatmap(
        x=middle, y=np.arange(len(labels)), z=shares, zmin=0.0, zmax=1.0, colorscale=BUSY_SCALE, hoverongaps=False,
        customdata=np.broadcast_to(np.asarray(labels, dtype=object)[:, None], shares.shape),
        hovertemplate="<b>%{customdata}</b><br>time: %{x:.3g} s<br>busy: %{z:.0%}<extra></extra>",
        colorbar={"title": {"text": "busy share of allocated time", "side": "right"}, "tickformat": ".0%", "thickness": 14},
        ygap=2, name="busy share",
    )  # fmt: skip
