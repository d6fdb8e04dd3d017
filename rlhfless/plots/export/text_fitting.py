"""Makes the texts of a figure fit its size: titles, headings, ticks, bar labels, and the height of the parts below the plot.

Layouts are plotly dictionaries. Text widths are estimated from the letters, without a browser. Sizes are CSS pixels; ``em`` is
the size of the font.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhfless.plots.style import axis_keys, unmarked

SMALLEST_PX = 8.0
"""Of a font: 6 points, which is still legible on paper."""
LETTER, LINE = 0.56, 1.3  # width of a letter and height of a line, in sizes of the font


def axes_of(layout: Mapping[str, Any], letter: str) -> list[dict[str, Any]]:
    """Return the axes of a letter."""
    return [layout[key] for key in axis_keys(layout, letter)]


def length_of(text: str) -> int:
    """Return the number of letters in the longest line, without markup."""
    lines = re.split(r"<br\s*/?>", text)
    return max(len(unmarked(line)) for line in lines)


def wrapped(text: str, width_px: float, em: float) -> str:
    """Return the text in lines that fit; text with markup that has spaces in it stays unchanged."""
    most = max(8, int(width_px / (LETTER * em)))
    if length_of(text) <= most or re.search(r"<[^<>]*\s[^<>]*>", text):
        return text
    return "<br>".join(
        part
        for line in re.split(r"<br\s*/?>", text)
        for part in textwrap.wrap(line, most, break_long_words=False, break_on_hyphens=False)
    )


def _room(note: Mapping[str, Any], notes: Sequence[Mapping[str, Any]], width: float) -> float:
    """Pixels for a text next to the other texts at the same height."""
    if note.get("showarrow") or not str(note.get("xref", "")).endswith(("paper", "domain")):
        return width
    place = [note.get(key) for key in ("xref", "yref", "y")]
    beside = [float(n.get("x") or 0) for n in notes if [n.get(key) for key in ("xref", "yref", "y")] == place]
    if note.get("xanchor") == "left":
        own = float(note.get("x") or 0)
        return max(0.1, min((x for x in beside if x > own), default=1.0) - own) * width
    return width / max(1, len(beside))


def fit_notes(notes: Sequence[dict[str, Any]], width: float, em: float) -> None:
    """Break texts in the figure into lines; headings between panels, which have room for one line, get a smaller font first."""
    for note in notes:
        font = note.setdefault("font", {})
        font["size"] = min(font.get("size") or em, em)
        if note.get("xanchor") == "left":
            note["align"] = "left"
    headings = [n for n in notes if not n.get("showarrow") and n.get("yanchor") == "bottom"]
    if any(note.get("y", 0) < 0.99 for note in headings):
        needed = [length_of(n["text"]) * LETTER * n["font"]["size"] / _room(n, notes, width) for n in headings]
        for note in headings:
            note["font"]["size"] = max(SMALLEST_PX, note["font"]["size"] / max(1.0, *needed))
    for note in notes:
        note["text"] = wrapped(note.get("text", ""), _room(note, notes, width), note["font"]["size"])


def _are_words(values: Any) -> bool:
    return isinstance(values, list | tuple | np.ndarray) and len(values) > 0 and isinstance(values[0], str)


def words_of(data: Sequence[Mapping[str, Any]], letter: str, axis: str | None = None) -> set[str]:
    """Return the names of categories on an axis (``x2``), or on all of a letter."""
    own = (t for t in data if axis is None or (t.get(f"{letter}axis") or letter) == axis)
    return {str(word) for trace in own if _are_words(trace.get(letter)) for word in trace[letter]}


def break_words(data: Sequence[dict[str, Any]], layout: Mapping[str, Any], width: float, beside: float, em: float) -> None:
    """Break names of categories into lines: below the plot they share its width, at its left they have ``beside`` pixels.

    A name is broken alike on all axes, because panels may share them. It is not broken where its lines would still be too long.
    """
    for letter in "xy":
        rooms = [beside]
        if letter == "x":
            keys = {str(trace.get("xaxis") or "x") for trace in data}
            spans = {key: (layout.get(f"xaxis{key[1:]}") or {}).get("domain") or (0.0, 1.0) for key in keys}
            rooms = [width * (high - low) / max(1, len(words_of(data, "x", key))) for key, (low, high) in spans.items()]
        broken = {word: wrapped(word, min(rooms, default=width), em) for word in words_of(data, letter)}
        if letter == "x" and any(length_of(word) * LETTER * em > min(rooms) for word in broken.values()):
            continue
        for owner, name in [*((trace, letter) for trace in data), *((a, "categoryarray") for a in axes_of(layout, letter))]:
            if _are_words(owner.get(name)):
                owner[name] = [broken.get(str(word), word) for word in owner[name]]


def reach(note: Mapping[str, Any], inner: float, em: float) -> float:
    """Pixels by which a text extends above the plot."""
    if not str(note.get("yref", "")).endswith("paper"):
        return 0.0
    tall: float = LINE * ((note.get("font") or {}).get("size") or em) * (note["text"].count("<br>") + 1) + 0.3 * em
    below = (1.0 - float(note.get("y") or 0)) * inner - float(note.get("yshift") or 0)
    if note.get("showarrow"):
        return max(0.0, tall - float(note.get("ay") or 0) - below)
    return max(0.0, tall - below) if note.get("yanchor") == "bottom" else 0.0


def fit_axis(axis: dict[str, Any], letter: str, length: float, em: float) -> None:
    """Break the title into lines, and thin out ticks with texts of their own; ``length`` is that of all panels together."""
    low, high = axis.get("domain") or (0.0, 1.0)
    own = length * (high - low)
    named = axis.get("title")
    text = (named or {}).get("text") if isinstance(named, Mapping) else named
    if text:
        axis["title"] = {"text": wrapped(text, own, em), "font": {"size": em}, "standoff": 0.4 * em}
    axis["automargin"] = True
    axis.pop("tickangle", None)
    at, texts = axis.get("tickvals"), axis.get("ticktext")
    if at is None or not len(at):
        return
    longest = max(length_of(str(t)) for t in (texts if texts is not None else at))
    size = (axis.get("tickfont") or {}).get("size") or em
    each = 1.2 * size if letter == "y" else (longest + 1) * LETTER * size
    step = max(1, math.ceil(each * len(at) / own))
    axis["tickvals"] = list(at)[::step]
    if texts is not None:
        axis["ticktext"] = list(texts)[::step]


def make_room(trace: Mapping[str, Any], layout: dict[str, Any], width: float, inner: float) -> None:
    """Extend the axis as far as the texts at the ends of bars."""
    texts = trace.get("text")
    if trace.get("type") != "bar" or trace.get("textposition") != "outside" or texts is None or not len(texts):
        return
    letter, length = ("x", width) if trace.get("orientation") == "h" else ("y", inner)
    axis = layout.get(f"{letter}axis{(trace.get(f'{letter}axis') or letter)[1:]}", {})
    if not axis.get("range") or axis.get("type") == "log":
        return
    (start, stop), (low, high) = axis["range"], axis.get("domain") or (0.0, 1.0)
    em = layout["font"]["size"]
    letters, lines = max(length_of(str(t)) for t in texts), max(str(t).count("<br>") + 1 for t in texts)
    needed = (0.4 + (letters * LETTER if letter == "x" else 1.2 * lines)) * em
    share = min(0.6, needed / (length * (high - low)))
    base = trace.get("base")
    ends = np.asarray(trace[letter], dtype=float) + np.asarray(0.0 if base is None else base, dtype=float)
    axis["range"] = [start, max(stop, start + (float(np.nanmax(ends)) - start) / (1.0 - share))]


def rows_height(layout: Mapping[str, Any], em: float) -> float:
    """Pixels that panels need for the parts between them: ticks and titles of the upper ones, headings of the lower ones."""
    needed = 0.0
    for axis in axes_of(layout, "x"):
        bottom, _ = _domain(layout, axis)
        tops = [top for other in axes_of(layout, "x") if (top := _domain(layout, other)[1]) < bottom]
        if not tops:
            continue
        title = str((axis.get("title") or {}).get("text") or "")
        lines = LINE * (title.count("<br>") + 1) if title else 0.0
        lines += 1.0 if axis.get("showticklabels") is False else LINE + 1.0
        headings = [n["text"].count("<br>") + 1 for n in layout["annotations"] if max(tops) <= n.get("y", -1) < bottom]
        needed = max(needed, (lines + LINE * max(headings, default=0)) * em / (bottom - max(tops)))
    return needed


def _domain(layout: Mapping[str, Any], axis: Mapping[str, Any]) -> tuple[float, float]:
    """Vertical range of the panel above an x axis, as shares of the height."""
    above = layout.get(f"yaxis{str(axis.get('anchor') or 'y')[1:]}") or {}
    low, high = above.get("domain") or (0.0, 1.0)
    return float(low), float(high)


def ticks_height(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], width: float, em: float) -> float:
    """Estimated height of ticks and title below the plot, in pixels; plotly reserves their true height."""
    titles = [str((axis.get("title") or {}).get("text") or "") for axis in axes_of(layout, "x")]
    lines = max((title.count("<br>") + 1 for title in titles if title), default=0)
    names = words_of(data, "x")
    ticks = LINE * max((name.count("<br>") + 1 for name in names), default=1)
    longest = max(map(length_of, names), default=0)
    if len(names) * (longest + 1) * LETTER * em > width:
        ticks += 0.5 * LETTER * longest  # plotly turns them by 30 degrees
    return (LINE * lines + ticks + 1.2) * em


def legend_height(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], width: float, em: float) -> float:
    """Estimated height of the legend below the plot, in pixels; plotly reserves its true height."""
    shown = {t["name"] for t in data if t.get("name") and t.get("showlegend") is not False}
    if layout.get("showlegend") is False or len(shown) < 2:
        return 0.0
    columns = max(1, int(width / (max(map(length_of, shown)) * LETTER * em + 45)))
    lines = max(str(name).count("<br>") + 1 for name in shown)
    return math.ceil(len(shown) / columns) * 1.6 * em * lines
