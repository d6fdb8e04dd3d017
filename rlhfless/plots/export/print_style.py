"""Lays out a copy of a figure for print: size in millimetres, fonts in points, no background, legend below the plot.

plotly makes room for ticks, titles of axes and the legend, and turns names of categories that would overlap. It breaks no text
into lines and leaves out no tick that was asked for. This is done here, with the widths of texts estimated from their letters.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from rlhfless.errors import InputError
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.export.print_panels import panel_rows, stack, stacked_px
from rlhfless.plots.export.print_places import (
    LETTER,
    LINE,
    data_share,
    longest_line_chars,
    note_span,
    place_arrow_texts,
    stands_on,
)
from rlhfless.plots.frames import CAPTION
from rlhfless.plots.style import SOFT_BREAK, UNBROKEN, WIDE_ONLY

SANS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
PX_PER_MM, PX_PER_PT = 96 / 25.4, 96 / 72
MIN_MM, MAX_MM = 20.0, 2000.0
MIN_PT, MAX_PT = 6.0, 40.0
FLATTER = 0.62  # height of a plot on paper against the same on a screen, which people scroll
CATEGORY, PLOT, NOTES = 0.36, 0.85, 0.75  # shares of the width: of words at the left axis, of the plot, of a text over it
BOLD = 1.1  # width of bold letters against others
SMALLER = re.compile(r"<span style='font-size:[^']*'>(.*?)</span>", flags=re.DOTALL)
SYMBOL_PX, TWO_COLUMNS_PX = 84, 500  # beside a text of the legend; from which width on it may have two columns


def paper_style(
    figure: go.Figure,
    width_mm: float = 170.0,
    height_mm: float | None = None,
    *,
    font_pt: float = 8.0,
    font: str = SANS,
    title: bool = True,
) -> go.Figure:
    """Return a copy of a figure for print; ``rlhfless.plots.export.files.save`` writes it as PDF or SVG of this size.

    Args:
        figure: a figure of this package. A slider is left out: its current frame stays.
        width_mm: 170 is the text of an A4 page, 85 a column of two. Panels side by side and bars with texts want 170.
        height_mm: the height that the figure needs when None.
        font_pt: of texts; texts that are smaller on the screen stay as small.
        font: family, as CSS has it; the first one that is installed is used, and is embedded in the PDF.
        title: keep the title's first line; False leaves it out, for papers whose captions say it.

    Raises:
        InputError: a size is not one of a figure on paper.
    """
    for name, size in (("width_mm", width_mm), ("height_mm", height_mm)):
        if size is not None and not MIN_MM <= size <= MAX_MM:
            raise InputError(f"{name} is {size:g}; {MIN_MM:g} to {MAX_MM:g} millimetres are needed")
    if not MIN_PT <= font_pt <= MAX_PT:
        raise InputError(f"font_pt is {font_pt:g}; {MIN_PT:g} to {MAX_PT:g} points are needed")
    em, width = font_pt * PX_PER_PT, width_mm * PX_PER_MM
    if isinstance(figure, DataFigure):
        fig = DataFigure(figure.data, figure.layout)
        fig.table = figure.table
    else:
        fig = go.Figure(figure.data, figure.layout)
    heading = wrapped(str(fig.layout.title.text or "").split("<br><span")[0], width, BOLD * 1.2 * em) if title else ""
    left_out = {CAPTION, WIDE_ONLY} if width < TWO_COLUMNS_PX else {CAPTION}
    fig.layout.annotations = [note for note in fig.layout.annotations if note.name not in left_out]
    _fit_notes(fig, NOTES * width, em)
    for trace in fig.data:
        if trace.name:
            trace.name = wrapped(trace.name, (width / 2 if width > TWO_COLUMNS_PX else width) - SYMBOL_PX, em)
    rows = _break_categories(fig, CATEGORY * width, em)
    _break_bar_texts(fig, PLOT * width, em)
    for axis in fig.select_xaxes():
        _fit_axis(axis, PLOT * width, em, turned=True)
    margin = fig.layout.margin
    inner = (fig.layout.height or 450) - (margin.t or 100) - (margin.b or 80)
    inner = max(FLATTER * em / 12 * inner, 10 * em, rows * em)
    panels = panel_rows(fig, inner, em)
    inner = stacked_px(panels) if len(panels) > 1 else inner
    pad = 1.1 if "<br>" in heading else 0.2  # plotly moves a title of several lines up
    above = pad * em + 1.2 * LINE * _lines([heading]) * em + _above(fig, em)
    below = _below(fig, width, em)
    height = above + inner + below if height_mm is None else height_mm * PX_PER_MM
    plot_px = max(height - above - below, 2 * em)
    if len(panels) > 1:
        stack(fig, panels, plot_px)
    for axis in fig.select_yaxes():
        _fit_axis(axis, plot_px, em, turned=False)
    place_arrow_texts(fig, PLOT * width, plot_px, em)
    for part_name in ("sliders", "updatemenus", "hoverlabel"):
        fig.layout[part_name] = None
    return fig.update_layout(
        autosize=False,
        width=width,
        height=height,
        font={"family": font, "size": em, "color": "#000000"},
        title={"text": heading, "font": {"size": 1.2 * em}, "pad": {"t": pad * em, "l": 0}},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 0.3 * em, "r": 2 * em, "t": above, "b": 0.3 * em, "autoexpand": True},
        legend={
            "orientation": "h", "xref": "container", "x": 0, "xanchor": "left", "yref": "container", "y": 0,
            "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)", "itemwidth": 30, "font": {"size": em},
        },
    )  # fmt: skip


def wrapped(text: str, width_px: float, em: float) -> str:
    """Return the text in lines that fit, numbers with their units; text with markup that has spaces in it stays unchanged."""
    max_letters = max(8, int(width_px / (LETTER * em)))
    text = text.replace(SOFT_BREAK, " ")
    if longest_line_chars(text) <= max_letters or re.search(r"<[^<>]*\s[^<>]*>", text):
        return text
    lines = re.split(r"<br\s*/?>", re.sub(r"(?<=\d) (?=[A-Za-z])", UNBROKEN, text))
    return "<br>".join(
        part for line in lines for part in textwrap.wrap(line, max_letters, break_long_words=False, break_on_hyphens=False)
    ).replace(UNBROKEN, " ")


def _lines(texts: Sequence[str | None]) -> int:
    """Return the lines of the text that has most; 0 without texts."""
    return max((text.count("<br>") + 1 for text in texts if text), default=0)


def _fit_notes(fig: go.Figure, width: float, em: float) -> None:
    """Break texts over panels and beside bars into lines: each has the room up to the next one at its height."""
    notes = fig.layout.annotations
    shares = [note_span(fig, note, "x") for note in notes]
    for note, (low, high) in zip(notes, shares, strict=True):
        note.font.size = min(note.font.size or em, em)
        if note.showarrow is not False:
            note.text = wrapped(note.text or "", width, em)
        elif low == high:
            at_height = [(n.yref, n.y) == (note.yref, note.y) and n.showarrow is False for n in notes]
            next_one = min(
                (left for (left, _), same in zip(shares, at_height, strict=True) if same and left > low), default=1.0
            )
            room = {"left": next_one - low, "right": low}.get(note.xanchor, 2 * min(low, 1 - low))
            note.text = wrapped(SMALLER.sub(r"\1", note.text), room * width, em)
            note.align = "left"


def _break_categories(fig: go.Figure, width: float, em: float) -> float:
    """Break names at the left axis into lines, alike in all panels, and return the height of all together, in fonts."""
    every: set[str] = set()
    for trace in fig.data:
        if trace.y is not None and len(trace.y) and isinstance(trace.y[0], str):
            trace.y = [wrapped(word, width, em) for word in trace.y]
            every |= set(trace.y)
    for axis in fig.select_yaxes():
        if axis.categoryarray is not None:
            axis.categoryarray = [wrapped(str(word), width, em) for word in axis.categoryarray]
    return len(every) * (LINE * _lines(list(every)) + 0.3)


def _break_bar_texts(fig: go.Figure, width: float, em: float) -> None:
    """Break texts in horizontal bars into lines that fit in the bar, and texts outside into lines that fit beside it."""
    for trace in fig.data:
        if trace.type != "bar" or trace.orientation != "h" or trace.text is None or isinstance(trace.text, str):
            continue
        inside = trace.textposition == "inside" and trace.constraintext == "none"
        axis = fig.layout["xaxis" + (trace.xaxis or "x")[1:]]
        shares = [share for end in trace.x if (share := data_share(axis, end)) is not None]
        if len(shares) < len(trace.x) or not (inside or trace.textposition == "outside"):
            continue
        names = [longest_line_chars(word) for word in trace.y if isinstance(word, str)]
        plot = width - max(names, default=0) * LETTER * em
        left, right = axis.domain or (0.0, 1.0)
        rooms = [(share - left if inside else right - share) * plot for share in shares]
        trace.text = [wrapped(text, room, em) for text, room in zip(trace.text, rooms, strict=True)]


def _fit_axis(axis: go.layout.XAxis | go.layout.YAxis, length: float, em: float, *, turned: bool) -> None:
    """Break the title into lines, and leave out ticks that would overlap; ``length`` is that of all panels together.

    Args:
        turned: plotly may turn names of categories, as those at a horizontal axis.
    """
    low, high = axis.domain or (0.0, 1.0)
    axis_px = length * (high - low)
    if axis.title.text:
        axis.title = {"text": wrapped(axis.title.text, axis_px, em), "font": {"size": em}, "standoff": 0.4 * em}
    axis.automargin = True
    if turned:
        axis.tickangle = None
    if axis.tickvals is None or not len(axis.tickvals):
        return
    texts = axis.ticktext if axis.ticktext is not None else axis.tickvals
    each = max((longest_line_chars(str(text)) + 1) * LETTER * em for text in texts) if turned else 1.2 * em
    step = max(1, math.ceil(each * len(axis.tickvals) / axis_px))
    if axis.ticktext is not None:
        axis.ticktext = np.asarray(axis.ticktext)[::step]
    axis.tickvals = np.asarray(axis.tickvals)[::step]


def _above(fig: go.Figure, em: float) -> float:
    """Return the height of what reaches over the upper panels, in pixels: headings and texts at bars."""
    headings = [note.text for note in fig.layout.annotations if stands_on(fig, note, 1.0)]
    at_bars = any(trace.type == "bar" and trace.textposition == "outside" for trace in fig.data)
    return 0.6 * em + float(max(_lines(headings) * LINE * em, at_bars * em, 0.0))


def _below(fig: go.Figure, width: float, em: float) -> float:
    """Return the height of ticks, titles and the legend below the plot, in pixels; plotly reserves their true height."""
    ticks = (LINE * (_lines([axis.title.text for axis in fig.select_xaxes()]) + 1) + 1.2) * em
    shown = {trace.name for trace in fig.data if trace.name and trace.showlegend is not False}
    if fig.layout.showlegend is False or len(shown) < 2:
        return ticks
    columns = max(1, int(width / (max(map(longest_line_chars, shown)) * LETTER * em + 45)))
    return ticks + math.ceil(len(shown) / columns) * 1.6 * em * _lines(list(shown))
