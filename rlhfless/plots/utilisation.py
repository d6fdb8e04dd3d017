"""Plots the share of time and slots that holders use as a heatmap, for timelines with too many spans for bars.

Input is the data of a timeline. The best used rows are on top, so that idle time and empty slots are one area.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from rlhfless.plots.palette import BUSY_SCALE
from rlhfless.plots.timeline_data import StepTimeline

BINS = 240
MAX_ROWS = 128
"""Rows of the heatmap; each has at least four pixels."""


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


def use_share(allocations: pd.DataFrame, spans: pd.DataFrame, rows: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rows, B) share of the allocated time of every bin that is used; NaN where nothing is allocated.

    A foreground span uses the time that it covers; one of decoding uses its share of slots (``in_use``) of it.
    """
    shares = np.full((rows, len(edges) - 1), np.nan)
    front = spans[~spans["background"].to_numpy(dtype=bool)]
    of_row, held_by = front.groupby("row").indices, allocations.groupby("row").indices
    nothing = np.zeros(0, dtype=np.int64)
    for row in range(rows):
        busy, held = front.iloc[of_row.get(row, nothing)], allocations.iloc[held_by.get(row, nothing)]
        busy_s = covered_s(busy["start_s"], busy["end_s"], edges)
        used_s = np.minimum(busy_s, _weighted_s(busy, edges))
        held_s = (
            covered_s(held["start_s"], held["end_s"], edges) if len(allocations) else np.where(busy_s > 0, np.diff(edges), 0)
        )
        is_held = held_s > 1e-12
        shares[row, is_held] = np.clip(used_s[is_held] / held_s[is_held], 0.0, 1.0)
    return shares


def _weighted_s(spans: pd.DataFrame, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (B,) seconds of spans per bin, each counted by its share of slots in use; all of it outside decoding."""
    if spans.empty:
        return np.zeros(len(edges) - 1)
    start, end = (spans[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    weight = np.nan_to_num(spans["in_use"].to_numpy(dtype=float), nan=1.0)
    points = np.concatenate([start, end])
    order = np.argsort(points, kind="stable")
    slope = np.concatenate([weight, -weight])[order].cumsum()  # slots in use after each point
    points = points[order]
    total = np.concatenate([[0.0], (slope[:-1] * np.diff(points)).cumsum()])
    return np.diff(np.interp(edges, points, total))


def row_order(allocations: pd.DataFrame, rows: int) -> NDArray[np.int64]:
    """Return the rows from the best used to the emptiest, by idle time and empty slots in the whole step."""
    if allocations.empty:
        return np.arange(rows)
    sums = allocations.groupby("row")[["gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds"]].sum()
    waste = (sums["idle_gpu_seconds"] + sums["slot_idle_gpu_seconds"]) / sums["gpu_seconds"].where(sums["gpu_seconds"] > 0)
    return np.argsort(waste.reindex(range(rows)).fillna(0.0).to_numpy(), kind="stable")


def add_use_heatmap(
    fig: go.Figure, info: StepTimeline, between_s: tuple[float, float] | None = None
) -> tuple[dict[int, float], list[str]]:
    """Add the heatmap: holders x time, share of the allocated time and slots that are used. More than ``MAX_ROWS`` holders are
    joined to bands of neighbours in ``row_order``.

    Args:
        between_s: only this part of the step, in as many bins; all of it when None.

    Returns:
        Where every row of the timeline is on the axis, and the labels of the axis.
    """
    end_s = max(float(table["end_s"].max()) for table in (info.allocations, info.spans) if len(table))
    low, high = (0.0, max(end_s, 1e-9)) if between_s is None else between_s
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    count = len(info.labels)
    order, each = row_order(info.allocations, count), -(-count // MAX_ROWS)
    shares = use_share(info.allocations, info.spans, count, edges)[order]
    bands = [range(first, min(first + each, count)) for first in range(0, count, each)]
    if each > 1:
        with np.errstate(invalid="ignore"):
            held = [(~np.isnan(shares[band])).sum(axis=0) for band in bands]
            sums = [np.nansum(shares[band], axis=0) for band in bands]
            shares = np.array([np.where(n > 0, total / np.maximum(n, 1), np.nan) for n, total in zip(held, sums, strict=True)])
    labels = [
        info.labels[order[band[0]]] + (f" and {len(band) - 1} more" if len(band) > 1 else "") for band in bands
    ]  # fmt: skip
    middle = (edges[:-1] + edges[1:]) / 2
    fig.add_heatmap(
        x=middle, y=np.arange(len(labels)), z=shares, zmin=0.0, zmax=1.0, colorscale=BUSY_SCALE, hoverongaps=False,
        customdata=np.broadcast_to(np.asarray(labels, dtype=object)[:, None], shares.shape),
        hovertemplate="<b>%{customdata}</b><br>time: %{x:.3g} s<br>in use: %{z:.0%}<extra></extra>",
        colorbar={"title": {"text": "share of slots in use", "side": "right"}, "tickformat": ".0%", "thickness": 14},
        ygap=2 if len(labels) <= 40 else 0, name="share in use",
    )  # fmt: skip
    return {int(row): float(at // each) for at, row in enumerate(order)}, labels
