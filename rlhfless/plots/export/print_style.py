"""Restyles figures for print: size in millimetres, fonts in points, no title and no background, colours unchanged.

A figure gets a new layout for its size and is never scaled down, so texts have exactly the requested size. Overflowing parts
are made to fit: texts are broken into lines, the legend moves below the plot, and of overlapping ticks only every second
(third, ...) keeps its text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from rlhfless.errors import InputError
from rlhfless.plots.export.text_fitting import (
    LETTER,
    LINE,
    SMALLEST_PX,
    axes_of,
    break_words,
    fit_axis,
    fit_notes,
    legend_height,
    length_of,
    make_room,
    reach,
    rows_height,
    ticks_height,
    words_of,
    wrapped,
)
from rlhfless.plots.slider import CAPTION

SANS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
PX_PER_MM, PX_PER_PT = 96 / 25.4, 96 / 72
SCREEN_PX = 12.0  # the size of texts that our figures are drawn for
SMALLEST_PT = SMALLEST_PX / PX_PER_PT
LEAST_MM, MOST_MM = 20.0, 2000.0
FLATTER = 0.62  # of a plot on paper against the same on a screen, which people scroll
CATEGORY = 0.36  # of the width, at most, for words at the left axis
PLOT = 0.85  # about the share of the width that is left to the plot by the ticks of its left axis
SYMBOL_PX, TWO_COLUMNS_PX = 84, 500  # beside a text of the legend; from which width on it may have two columns


def paper_style(
    figure: go.Figure,
    width_mm: float = 170.0,
    height_mm: float | None = None,
    *,
    font_pt: float = 8.0,
    font: str = SANS,
    title: bool = False,
) -> go.Figure:
    """Return a copy of a figure for print; ``rlhfless.plots.export.files.save`` writes it as PDF or SVG of exactly this size.

    Args:
        figure: any figure of this package. A slider is left out: its current frame stays.
        width_mm: 170 is the text of an A4 page, 85 a column of two. Panels side by side and bars with texts want 170.
        height_mm: the height that the figure needs when None.
        font_pt: of texts on axes and in the legend; texts that are smaller on the screen stay smaller, but never below 6 pt.
        font: family, as CSS has it; the first one that is installed is used, and is embedded in the PDF.
        title: keep the title. Papers have captions, so the title and its second line are left out by default.

    Raises:
        InputError: a size is not one of a figure on paper.
    """
    for name, size in (("width_mm", width_mm), ("height_mm", height_mm)):
        if size is not None and not LEAST_MM <= size <= MOST_MM:
            raise InputError(f"{name} is {size:g}; {LEAST_MM:g} to {MOST_MM:g} millimetres are needed")
    if not SMALLEST_PT <= font_pt <= 40:
        raise InputError(f"font_pt is {font_pt:g}; {SMALLEST_PT:g} to 40 points are needed")
    em, width = font_pt * PX_PER_PT, width_mm * PX_PER_MM
    layout = _with_arrays(figure.layout.to_plotly_json())
    data = [_with_arrays(trace.to_plotly_json()) for trace in figure.data]
    for part in (layout, *data):
        _scale(part, "", em / SCREEN_PX)
    layout["font"] = {**(layout.get("font") or {}), "family": font, "size": em, "color": "#000000"}
    head = wrapped(_first_line(layout.get("title")), width, 1.2 * em) if title else ""
    layout["title"] = {"text": head, "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container",
                       "yanchor": "top", "pad": {"t": 0.2 * em}, "font": {"size": 1.2 * em}}  # fmt: skip
    for name in ("sliders", "updatemenus", "modebar", "hoverlabel", "autosize"):
        layout.pop(name, None)
    notes = layout["annotations"] = [note for note in layout.get("annotations") or () if note.get("name") != CAPTION]
    fit_notes(notes, PLOT * width, em)
    for trace in data:
        if trace.get("name"):
            trace["name"] = wrapped(trace["name"], (width / 2 if width > TWO_COLUMNS_PX else width) - SYMBOL_PX, em)
    break_words(data, layout, PLOT * width, CATEGORY * width, em)
    words = words_of(data, "y")
    for axis in axes_of(layout, "x"):
        fit_axis(axis, "x", PLOT * width, em)
    lines = LINE * max((word.count("<br>") + 1 for word in words), default=0) + 0.3
    inner = max(FLATTER * em / SCREEN_PX * _inner_height(figure), 10 * em, len(words) * lines * em, rows_height(layout, em))
    above = (1.2 * LINE * (head.count("<br>") + 1) + 0.6) * em if head else 0.0
    above += max([0.6 * em, *(reach(note, inner, em) for note in notes)])
    below = legend_height(data, layout, width, em) + ticks_height(data, layout, PLOT * width, em)
    height = inner + above + below if height_mm is None else height_mm * PX_PER_MM
    inner = max(height - above - below, 2 * em)
    for axis in axes_of(layout, "y"):
        fit_axis(axis, "y", inner, em)
    across = min(PLOT * width, width - max(map(length_of, words), default=0) * LETTER * em - 4 * em)
    for trace in data:
        make_room(trace, layout, across, inner)
    layout |= {
        "width": width,
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 0.3 * em, "r": 0.9 * em, "t": above, "b": 0.3 * em, "autoexpand": True},
        "legend": {
            **(layout.get("legend") or {}), "orientation": "h", "xref": "container", "x": 0, "xanchor": "left",
            "yref": "container", "y": 0, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)", "itemwidth": 30,
        },
    }  # fmt: skip
    return go.Figure(data=data, layout=layout)


def values_of(stored: Mapping[str, Any]) -> np.ndarray:
    """Return an array that the JSON of a figure holds as base64."""
    flat = np.frombuffer(base64.b64decode(stored["bdata"]), dtype=np.dtype(stored["dtype"]))
    return flat.reshape([int(n) for n in str(stored.get("shape", len(flat))).split(",")])


def _with_arrays(node: Any) -> Any:
    """Replace base64 data, which figures have that were read from a file, by arrays."""
    if isinstance(node, dict):
        return values_of(node) if "bdata" in node else {key: _with_arrays(value) for key, value in node.items()}
    return [_with_arrays(one) for one in node] if isinstance(node, list) and node and isinstance(node[0], dict) else node


def _scale(node: dict[str, Any], parent: str, factor: float) -> None:
    """Make fonts, markers, lines and shifts larger or smaller, in place; bars and data keep their sizes."""
    for key, value in node.items():
        if isinstance(value, dict):
            if key != "template":
                _scale(value, key, factor)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            for one in value:
                _scale(one, key, factor)
        elif key == "size" and parent.endswith("font"):
            node[key] = np.maximum(np.asarray(value) * factor, SMALLEST_PX).tolist()
        elif _is_length(key, parent, node) and value is not None:
            node[key] = (np.asarray(value) * factor).tolist()


def _is_length(key: str, parent: str, node: Mapping[str, Any]) -> bool:
    """Whether the value is a length on the screen, and not of a text."""
    if key == "size":
        return parent in ("marker", "pattern")
    if key == "width":
        return parent in ("line", "error_x", "error_y")
    if key in ("ax", "ay"):
        return parent == "annotations" and f"{key}ref" not in node
    return key in ("thickness", "ticklen", "arrowwidth", "xshift", "yshift", "standoff")


def _inner_height(figure: go.Figure) -> float:
    """Height of the area within the margins, on the screen."""
    margin = figure.layout.margin
    return float((figure.layout.height or 450) - (margin.t or 100) - (margin.b or 80))


def _first_line(title: Any) -> str:
    text = str((title or {}).get("text") or "") if isinstance(title, Mapping) else str(title or "")
    return text.split("<br><span")[0]
