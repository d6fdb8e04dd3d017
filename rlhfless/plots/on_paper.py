"""Figures for print: their size in millimetres, fonts in points, no title and no background, colours as they are.

Knows plotly's layout; nothing of what figures show, nor of files. A figure is laid out anew for its size, never scaled down, so
that texts are as large as was asked for. What would be cut off is made to fit: texts are broken into lines, the legend
goes below, and of ticks that would overlap only every second (third, ...) keeps its text.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from rlhfless.errors import InputError
from rlhfless.plots.frames import CAPTION

SANS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
PX_PER_MM, PX_PER_PT = 96 / 25.4, 96 / 72
SCREEN_PX = 12.0  # the size of texts that our figures are drawn for
SMALLEST_PT = 6.0
LEAST_MM, MOST_MM = 20.0, 2000.0
FLATTER = 0.62  # of a plot on paper against the same on a screen, which people scroll
LETTER, LINE = 0.56, 1.3  # width of a letter and height of a line, in sizes of the font


def paper_style(
    figure: go.Figure,
    width_mm: float = 170.0,
    height_mm: float | None = None,
    *,
    font_pt: float = 8.0,
    font: str = SANS,
    title: bool = False,
) -> go.Figure:
    """A copy of a figure for print; ``rlhfless.figure_files.save`` writes it as PDF or SVG of exactly this size.

    Args:
        figure: any figure of ours. A slider is left out: what it shows now stays.
        width_mm: 170 is the text of an A4 page, 85 a column of two. Figures with several panels side by side want 170.
        height_mm: what the figure needs when None.
        font_pt: of texts on axes and in the legend; what is smaller on the screen is smaller here too, but never below 6 pt.
        font: family, as CSS has it; the first one that is installed is used, and is in the PDF.
        title: keep the title. Papers have captions, so it is left out with its second line; what it says belongs there.

    Raises:
        InputError: a size is not one of a figure on paper.
    """
    for name, size in (("width_mm", width_mm), ("height_mm", height_mm)):
        if size is not None and not LEAST_MM <= size <= MOST_MM:
            raise InputError(f"{name} is {size:g}; {LEAST_MM:g} to {MOST_MM:g} millimetres are needed")
    if not SMALLEST_PT <= font_pt <= 40:
        raise InputError(f"font_pt is {font_pt:g}; {SMALLEST_PT:g} to 40 points are needed")
    em, width = font_pt * PX_PER_PT, width_mm * PX_PER_MM
    layout = figure.layout.to_plotly_json()
    data = [trace.to_plotly_json() for trace in figure.data]
    for part in (layout, *data):
        _scale(part, "", em / SCREEN_PX)
    head = _wrapped(_first_line(layout.get("title")), width, 1.2 * em) if title else ""
    above = 1.2 * em * LINE * (head.count("<br>") + 1) + 0.6 * em if head else 0.0
    layout["title"] = {"text": head, "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container",
                       "yanchor": "top", "pad": {"t": 0.2 * em}, "font": {"size": 1.2 * em}}  # fmt: skip
    inner = FLATTER * em / SCREEN_PX * _inner_height(figure)
    legend = _legend_height(data, layout, width, em)
    if height_mm is None:
        height = max(inner, 10 * em) + above + legend + 4.5 * em
    else:
        height = height_mm * PX_PER_MM
        inner = max(2 * em, height - above - legend - 4.5 * em)
    for name in ("sliders", "updatemenus", "modebar", "hoverlabel", "autosize"):
        layout.pop(name, None)
    layout["annotations"] = [note for note in layout.get("annotations") or () if note.get("name") != CAPTION]
    for note in layout["annotations"]:
        note["text"] = _wrapped(note.get("text", ""), _room(note, layout["annotations"], 0.86 * width), em)
    for axis in [key for key in layout if re.fullmatch(r"[xy]axis\d*", key)]:
        _fit_axis(layout[axis], axis[0], 0.86 * width if axis[0] == "x" else inner, em)
    for trace in data:
        _fit_trace(trace, width, em)
    layout |= {
        "width": width,
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {**(layout.get("font") or {}), "family": font, "size": em, "color": "#000000"},
        "margin": {
            "l": 0.3 * em, "r": 0.9 * em, "t": above + max([0.6 * em, *(_reach(n, em) for n in layout["annotations"])]),
            "b": 0.3 * em, "autoexpand": True,
        },
        "legend": {
            **(layout.get("legend") or {}), "orientation": "h", "xref": "container", "x": 0, "xanchor": "left",
            "yref": "container", "y": 0, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)", "itemwidth": 30,
        },
    }  # fmt: skip
    return go.Figure(data=data, layout=layout)


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
            node[key] = np.maximum(np.asarray(value) * factor, SMALLEST_PT * PX_PER_PT).tolist()
        elif _is_length(key, parent, node) and value is not None:
            node[key] = (np.asarray(value) * factor).tolist()


def _is_length(key: str, parent: str, node: Mapping[str, Any]) -> bool:
    """Whether it is one on the screen, and no text's."""
    if key == "size":
        return parent in ("marker", "pattern")
    if key == "width":
        return parent in ("line", "error_x", "error_y")
    if key in ("ax", "ay"):
        return parent == "annotations" and f"{key}ref" not in node
    return key in ("thickness", "ticklen", "arrowwidth", "xshift", "yshift", "standoff")


def _inner_height(figure: go.Figure) -> float:
    """Of what lies within the margins, on the screen."""
    margin = figure.layout.margin
    return float((figure.layout.height or 450) - (margin.t or 100) - (margin.b or 80))


def _first_line(title: Any) -> str:
    text = str((title or {}).get("text") or "") if isinstance(title, Mapping) else str(title or "")
    return text.split("<br><span")[0]


def _length(text: str) -> int:
    """Letters of the longest line, markup left out."""
    lines = re.split(r"<br\s*/?>", text)
    return max(len(html.unescape(re.sub(r"<[^<>]*>", "", line))) for line in lines)


def _wrapped(text: str, width_px: float, em: float) -> str:
    """The text in lines that fit; text with markup that has spaces in it stays as it is."""
    most = max(8, int(width_px / (LETTER * em)))
    if _length(text) <= most or re.search(r"<[^<>]*\s[^<>]*>", text):
        return text
    return "<br>".join(
        part for line in re.split(r"<br\s*/?>", text) for part in textwrap.wrap(line, most, break_long_words=False)
    )


def _room(note: Mapping[str, Any], notes: Sequence[Mapping[str, Any]], width: float) -> float:
    """Pixels for a text beside those that stand at the same height."""
    if note.get("showarrow") or not str(note.get("xref", "")).endswith(("paper", "domain")):
        return width
    beside = [n["x"] for n in notes if (n.get("yref"), n.get("y")) == (note.get("yref"), note.get("y"))]
    if note.get("xanchor") == "left":
        return float(width * (min([x for x in beside if x > note["x"]], default=1.0) - note["x"]))
    return width / max(1, len(beside))


def _reach(note: Mapping[str, Any], em: float) -> float:
    """Pixels by which a text stands out above the plot."""
    if note.get("showarrow") or not str(note.get("yref", "")).endswith("paper") or note.get("yanchor") != "bottom":
        return 0.0
    size = (note.get("font") or {}).get("size") or em
    return float(note.get("yshift") or 0) + LINE * size * (note["text"].count("<br>") + 1) if note.get("y", 0) > 0.99 else 0.0


def _fit_axis(axis: dict[str, Any], letter: str, length: float, em: float) -> None:
    """Break the title into lines, and thin out ticks with texts of their own; ``length`` is that of all panels together."""
    low, high = axis.get("domain") or (0.0, 1.0)
    own = length * (high - low)
    named = axis.get("title")
    text = (named or {}).get("text") if isinstance(named, Mapping) else named
    if text:
        axis["title"] = {"text": _wrapped(text, own, em), "font": {"size": em}, "standoff": 0.4 * em}
    axis["automargin"] = True
    axis.pop("tickangle", None)
    at, texts = axis.get("tickvals"), axis.get("ticktext")
    if at is None or not len(at):
        return
    longest = max(_length(str(t)) for t in (texts if texts is not None else at))
    each = LINE * em if letter == "y" else (longest + 1) * LETTER * em
    step = max(1, math.ceil(each * len(at) / own))
    axis["tickvals"] = list(at)[::step]
    if texts is not None:
        axis["ticktext"] = list(texts)[::step]


def _fit_trace(trace: dict[str, Any], width: float, em: float) -> None:
    """Break what the legend says into lines."""
    if trace.get("name"):
        trace["name"] = _wrapped(trace["name"], width - 60, em)


def _legend_height(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], width: float, em: float) -> float:
    """About the height of the legend below the plot, in pixels; plotly makes room for it as it really is."""
    shown = {_wrapped(t["name"], width - 60, em) for t in data if t.get("name") and t.get("showlegend") is not False}
    if layout.get("showlegend") is False or len(shown) < 2:
        return 0.0
    columns = max(1, int(width / (max(map(_length, shown)) * LETTER * em + 45)))
    return math.ceil(len(shown) / columns) * 1.6 * em * max(name.count("<br>") + 1 for name in shown)
