"""Common parts of figures with a slider: the slider itself, and the caption of a frame. Needs no kernel.

Output are parts of plotly layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhfless.plots.style import clean

CAPTION = "caption"
"""The name of a figure's own line above the plot, among its annotations."""
SLIDER_PX = 90  # height of a slider with its line and its labels; with less below it, plotly makes the plot lower
AT_ONCE = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}


def slider(labels: Sequence[str], first: int, prefix: str) -> dict[str, Any]:
    """Return a slider over the frames that are named ``labels``; ``prefix`` (clean text) precedes the chosen label."""
    return {
        "active": first,
        "currentvalue": {"prefix": prefix, "font": {"size": 13}},
        "pad": {"t": 52, "b": 4},
        "steps": [{"label": clean(label), "method": "animate", "args": [[label], AT_ONCE]} for label in labels],
    }


def start_at(labels: Sequence[str], start: str | None) -> int:
    """Return the position of the first label to show: ``start`` where it is one of them, else the middle one."""
    return list(labels).index(start) if start is not None and start in labels else len(labels) // 2


def caption(text: str, panels: Sequence[tuple[float, str]] = ()) -> dict[str, Any]:
    """Return the layout of a frame: its own line above the plot, and below it a title over each panel.

    Args:
        text: clean. panels: (left edge of the panel between 0 and 1, clean title); they are in every frame, because a frame
            replaces all annotations.
    """
    same = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False, "align": "left"}
    line = {**same, "name": CAPTION, "text": text, "x": 0, "y": 1.0, "yshift": 30 if panels else 6, "font": {"size": 13}}
    titles = [{**same, "text": f"<b>{t}</b>", "x": x, "y": 1.0, "yshift": 5, "font": {"size": 12}} for x, t in panels]
    return {"annotations": [line, *titles]}
