"""Where texts of a figure for print stand, as shares of its plotting area, and how much room their letters need.

Places are given in data, in shares of a panel or in shares of the paper. A place in data becomes a share by the range of its
axis. Where plotly chooses the range, only the axis's panel is known.
"""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any

import plotly.graph_objects as go

from rlhfless.plots.point_labels import place_texts
from rlhfless.plots.style import unmarked

LINE, LETTER = 1.3, 0.56  # height of a line and width of a letter, in sizes of the font
MOST_MARKS = 500  # points that texts at arrows keep away from
SCREEN_EM = 12.0  # size of the letters that ``place_texts`` knows


def longest_line_chars(text: str) -> int:
    """Return the number of letters in the longest line, without markup."""
    return max(len(unmarked(line)) for line in re.split(r"<br\s*/?>", text))


def axis_share(axis: go.layout.XAxis | go.layout.YAxis, value: Any) -> float | None:
    """Return where a value lies between the ends of the plotting area, 0 to 1 from the left or from below.

    Args:
        value: as plotly wants it for notes and ranges: on a logarithmic axis the logarithm.

    Returns:
        The share, within the axis's own panel; None where plotly chooses the range, or the value is a category or a date.
    """
    ends = axis.range
    if ends is None or len(ends) != 2 or not all(isinstance(number, Real) for number in (value, *ends)) or ends[0] == ends[1]:
        return None
    low, high = axis.domain or (0.0, 1.0)
    along = (float(value) - float(ends[0])) / (float(ends[1]) - float(ends[0]))
    return float(low + (high - low) * min(1.0, max(0.0, along)))


def data_share(axis: go.layout.XAxis | go.layout.YAxis, value: Any) -> float | None:
    """Return ``axis_share`` of a value of a trace; traces have no logarithms."""
    if axis.type == "log" and isinstance(value, Real):
        value = math.log10(float(value)) if float(value) > 0 else None
    return axis_share(axis, value)


def note_span(fig: go.Figure, note: go.layout.Annotation, letter: str) -> tuple[float, float]:
    """Return the least and the greatest share of the plotting area at which a note stands; equal where its place is known.

    Args:
        letter: ``x`` for shares from the left, ``y`` for shares from below.
    """
    ref, value = note[f"{letter}ref"] or letter, note[letter]
    if ref == "paper":
        share = 0.0 if value is None else float(value)
        return share, share
    axis = fig.layout[f"{letter}axis{ref.split()[0][1:]}"]
    low, high = axis.domain or (0.0, 1.0)
    if ref.endswith(" domain"):
        share = float(low + (high - low) * value)
        return share, share
    known = axis_share(axis, value)
    return (float(low), float(high)) if known is None else (known, known)


def stands_on(fig: go.Figure, note: go.layout.Annotation, top: float) -> bool:
    """Return whether a note is a heading of the panels that end at ``top``, a share of the plotting area."""
    in_data = re.fullmatch(r"y\d*", note.yref or "y") is not None
    return not in_data and note.yanchor == "bottom" and abs(note_span(fig, note, "y")[0] - top) < 1e-9


def place_arrow_texts(fig: go.Figure, width_px: float, height_px: float, em: float) -> None:
    """Place the texts at arrows anew for a plotting area of this size, so that they stay in it and cover no point.

    A text that is wider than the area is centred in it. Texts whose place only plotly knows keep theirs.
    """
    notes, at = [], []
    for note in fig.layout.annotations:
        spans = [note_span(fig, note, letter) for letter in "xy"]
        if note.showarrow and note.text and note.axref in (None, "pixel") and all(low == high for low, high in spans):
            notes.append(note)
            at.append((spans[0][0] * width_px, (1 - spans[1][0]) * height_px))
    if not notes:
        return
    scale = SCREEN_EM / em
    free = [i for i, note in enumerate(notes) if "paper" not in (note.xref, note.yref)]
    marks = [(x * width_px * scale, (1 - y) * height_px * scale) for x, y in _points(fig)]
    places = place_texts(
        [(at[i][0] * scale, at[i][1] * scale) for i in free], [notes[i].text for i in free],
        width_px * scale, height_px * scale, marks,
    )  # fmt: skip
    for i, (dx, dy) in zip(free, places, strict=True):
        notes[i].update(ax=dx / scale, ay=dy / scale)
    for note, (x, y) in zip(notes, at, strict=True):
        wide = LETTER * em * longest_line_chars(note.text) / 2
        tall = LINE * em * (note.text.count("<br>") + 1) / 2
        note.ax = _within(x + (note.ax or 0.0), wide, width_px) - x
        note.ay = _within(y + (note.ay or 0.0), tall, height_px) - y


def _within(middle: float, half: float, length: float) -> float:
    """Return the middle of a text that is moved into 0 to ``length``; half of the length where it is longer than that."""
    return 0.5 * length if 2 * half > length else min(max(middle, half), length - half)


def _points(fig: go.Figure) -> list[tuple[float, float]]:
    """Return the shares (from the left, from below) of points with markers, as far as they are known."""
    found: list[tuple[float, float]] = []
    for trace in fig.data:
        if trace.type != "scatter" or "markers" not in (trace.mode or "") or trace.x is None or trace.y is None:
            continue
        across, up = (fig.layout[f"{letter}axis{(trace[f'{letter}axis'] or letter)[1:]}"] for letter in "xy")
        for x, y in zip(trace.x, trace.y, strict=False):
            shares = [data_share(axis, value) for axis, value in ((across, x), (up, y))]
            found += [(shares[0], shares[1])] if shares[0] is not None and shares[1] is not None else []
            if len(found) == MOST_MARKS:
                return found
    return found
