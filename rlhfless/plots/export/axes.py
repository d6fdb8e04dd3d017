"""Axes of a figure as table columns: names with units, tick texts and panels.

Figures are plotly dictionaries, including those that were read from JSON.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhfless.plots.slider import CAPTION
from rlhfless.plots.style import axis_keys

UNITS = {
    "s": "s", "ms": "ms", "GPU-seconds": "gpu_s", "tokens": "tokens", "USD": "usd", "bytes": "bytes", "%": "percent",
}  # fmt: skip
"""Units in titles, and as they end names of columns."""

Spec = Mapping[str, Any]


def plain(text: Any) -> str:
    """Return text of a figure without markup, on one line."""
    line = re.sub(r"<br\s*/?>", " ", str(text))
    return " ".join(unmarked(line).split())


def unmarked(text: str) -> str:
    """Return the text without markup, as a reader sees it."""
    return html.unescape(re.sub(r"<[^<>]*>", "", text))


def column_name(title: Any, otherwise: str) -> str:
    """Return ``cost (GPU-seconds)`` as ``cost_gpu_s``; ``otherwise`` for an axis without a title."""
    text, unit = plain(title or "").split(";")[0], ""
    found = re.fullmatch(r"(.*?)\s*\(([^()]*)\)", text)
    if found and (unit := UNITS.get(re.split(r",| of ", found[2])[0].strip(), "")):
        text = found[1]
    elif text in UNITS:
        return UNITS[text]
    name = re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_") or otherwise
    return f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name


def values_of(stored: Any) -> np.ndarray | None:
    """Return an array of a figure, which its JSON may hold as base64; None where the figure has none."""
    if stored is None:
        return None
    if isinstance(stored, Mapping):
        flat = np.frombuffer(base64.b64decode(stored["bdata"]), dtype=np.dtype(stored["dtype"]))
        flat = flat.astype(np.int64) if flat.dtype.kind in "iu" else flat  # the smallest that holds them, in JSON
        shape = stored.get("shape", len(flat))
        return flat.reshape([int(n) for n in str(shape).split(",")])
    found = np.empty(len(stored), dtype=object)
    found[:] = list(stored)
    return found


class Axes:
    """The axes of a figure: their columns, tick texts and panel numbers."""

    def __init__(self, layout: Spec, traces: Sequence[Spec]) -> None:
        self._layout = layout
        pairs = {self.pair(trace) for trace in traces}
        self._panels = {pair: i for i, pair in enumerate(sorted(pairs, key=lambda p: [int(a[1:] or 1) for a in p]), start=1)}

    @staticmethod
    def pair(trace: Spec) -> tuple[str, str]:
        return trace.get("xaxis") or "x", trace.get("yaxis") or "y"

    def panel(self, pair: tuple[str, str]) -> dict[str, Any]:
        """Return the panel's number and the heading above it, where there are several panels."""
        if len(self._panels) < 2:
            return {}
        (left, right), (_, top) = (self._of(axis).get("domain") or (0.0, 1.0) for axis in pair)
        above = (
            plain(note.get("text") or "") for note in self._layout.get("annotations") or ()
            if note.get("yref") == "paper" and note.get("xref") == "paper" and not note.get("showarrow")
            and note.get("name") != CAPTION and left <= note.get("x", -1) <= right and abs(note.get("y", -1) - top) < 1e-6
        )  # fmt: skip
        return {"panel": self._panels.get(pair), "panel_title": next(above, None)}

    def column(self, axis: str, otherwise: str = "") -> str:
        """Return the column name of the axis, by its title, the title of an axis that moves with it, or that of an axis on its
        left in its row; without a title and without another name given, its letter."""
        own = self._of(axis)
        group, place = own.get("matches", axis), own.get("domain")
        with_it = [a for a in self._names(axis[0]) if a == group or self._of(a).get("matches") == group]
        rows = self._names("y") if axis[0] == "y" and place is not None else []
        beside = [a for a in rows if self._of(a).get("domain") == place]
        title = next((found for a in (axis, *with_it, *beside) if (found := self._title(a))), "")
        return column_name(title, otherwise or axis[0])

    def ticks(self, axis: str) -> dict[Any, str]:
        """Return number to text, where the axis shows texts at numbers."""
        own = self._of(axis)
        at, texts = values_of(own.get("tickvals")), values_of(own.get("ticktext"))
        if at is None or texts is None or [str(n) for n in at] == [plain(text) for text in texts]:
            return {}
        return {n: plain(text) for n, text in zip(at, texts, strict=False)}

    def _of(self, axis: str) -> Spec:
        return self._layout.get(f"{axis[0]}axis{axis[1:]}") or {}

    def _title(self, axis: str) -> str:
        title = self._of(axis).get("title") or ""
        return str(title.get("text") or "") if isinstance(title, Mapping) else str(title)

    def _names(self, letter: str) -> list[str]:
        return [letter + key[5:] for key in axis_keys(self._layout, letter)]
