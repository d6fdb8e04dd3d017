"""Stacks the panels of a figure for print: each row keeps its height, and between rows is room for ticks, titles and headings.

Rows are the distinct domains of y axes. Texts over panels move with their panels. Nothing here knows sizes of paper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from rlhfless.plots.export.print_places import LINE, stands_on

PAD = 1.2  # free room between two rows, in sizes of the font


class PanelRow(NamedTuple):
    """Panels side by side: their domain before, their height, and the room above them, the latter two in pixels."""

    low: float
    high: float
    height_px: float
    above_px: float


def panel_rows(fig: go.Figure, inner_px: float, em: float) -> list[PanelRow]:
    """Return the rows of a figure from the top; one or none where panels do not stand under each other.

    Args:
        inner_px: height from the lowest panel to the top of the highest one, as it would be without more room.
        em: size of the font in pixels. Names of categories and texts at bars have a row of their own height each.
    """
    axes = [axis for axis in fig.select_yaxes() if axis.domain is not None and not axis.overlaying]
    domains = sorted({tuple(axis.domain) for axis in axes}, reverse=True)
    if any(upper[0] < lower[1] for upper, lower in pairwise(domains)):
        return []
    rows: list[PanelRow] = []
    for i, (low, high) in enumerate(domains):
        names = [_name(axis) for axis in axes if tuple(axis.domain) == (low, high)]
        height = max([(high - low) * inner_px, *(_bars_px(fig, name, em) for name in names)])
        texts = max(_headings_px(fig, high, em), *(_texts_on_bars_px(fig, name, em) for name in names))
        above = 0.0 if i == 0 else _below_px(fig, domains[i - 1], em) + texts + PAD * em
        rows.append(PanelRow(low, high, height, above))
    return rows


def stacked_px(rows: Sequence[PanelRow]) -> float:
    """Return the height of all rows with the room between them."""
    return sum(row.height_px + row.above_px for row in rows)


def stack(fig: go.Figure, rows: Sequence[PanelRow], inner_px: float) -> None:
    """Place the rows in ``inner_px``; where it is less than ``stacked_px``, panels shrink, down to half of it together."""
    between = sum(row.above_px for row in rows)
    room = min(1.0, inner_px / (2 * between))
    scale = (inner_px - room * between) / sum(row.height_px for row in rows)
    before, after, top = [], [], inner_px
    placed: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        top -= room * row.above_px
        low = max(0.0, top - scale * row.height_px)
        placed[row.low, row.high] = [low / inner_px, min(1.0, top / inner_px)]
        before += [row.high, row.low]
        after += placed[row.low, row.high][::-1]
        top = low
    for axis in fig.select_yaxes():
        if axis.domain is not None and tuple(axis.domain) in placed:
            axis.domain = placed[tuple(axis.domain)]
    for note in fig.layout.annotations:
        if note.yref == "paper" and note.y is not None and 0.0 <= note.y <= 1.0:
            note.y = float(np.interp(note.y, before[::-1], after[::-1]))


def _name(axis: go.layout.YAxis) -> str:
    """Return how traces name an axis: ``y``, ``y2``."""
    return str(axis.plotly_name).replace("axis", "")


def _bars_px(fig: go.Figure, name: str, em: float) -> float:
    """Return the height of the horizontal bars at an axis: of their names and texts in lines."""
    lines = {
        str(word): max(str(word).count("<br>"), str(text or "").count("<br>")) + 1
        for trace in fig.data
        if trace.type == "bar" and trace.orientation == "h" and (trace.yaxis or "y") == name
        for word, text in zip(trace.y, trace.text if isinstance(trace.text, tuple | np.ndarray) else (), strict=False)
        if isinstance(word, str)
    }
    return sum(LINE * count + 0.5 for count in lines.values()) * em


def _texts_on_bars_px(fig: go.Figure, name: str, em: float) -> float:
    """Return the height of the texts that stand on upright bars at an axis, and may reach over the panel."""
    texts = [
        str(text)
        for trace in fig.data
        if trace.type == "bar" and trace.orientation != "h" and trace.textposition == "outside" and (trace.yaxis or "y") == name
        for text in np.ravel(trace.text)
        if text
    ]
    return max((text.count("<br>") + 1 for text in texts), default=0) * LINE * em


def _below_px(fig: go.Figure, domain: tuple[float, float], em: float) -> float:
    """Return the height of ticks and titles under the panels with this domain."""
    anchors = {_name(axis) for axis in fig.select_yaxes() if axis.domain is not None and tuple(axis.domain) == domain}
    lines = 0.0
    for axis in fig.select_xaxes():
        if (axis.anchor or "y") in anchors:
            title = str(axis.title.text).count("<br>") + 1.4 if axis.title.text else 0
            lines = max(lines, (axis.showticklabels is not False) + title)
    return lines * LINE * em


def _headings_px(fig: go.Figure, top: float, em: float) -> float:
    """Return the height of the texts that stand on panels which end at ``top``."""
    notes = [note.text for note in fig.layout.annotations if stands_on(fig, note, top)]
    return max((len(re.split(r"<br\s*/?>", text)) for text in notes if text), default=0) * LINE * em
