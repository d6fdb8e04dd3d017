"""Figures with a slider: a frame for every label, the slider over them, and the caption of a frame. Needs no kernel.

Inputs are what draws a frame and what says it in words. The traces of a frame are the first ones of the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.style import axis_keys, clean, legend_below, styled

CAPTION = "caption"
"""The name of a figure's own line above the plot, among its annotations."""
SLIDER_PX = 90  # height of a slider with its line and its labels; with less below it, plotly makes the plot lower
AT_ONCE = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}


def start_at(labels: Sequence[str], start: Any) -> int:
    """Return the position of the first label to show: ``start`` where it is one of them, else the middle one."""
    return list(labels).index(str(start)) if start is not None and str(start) in labels else len(labels) // 2


def with_frames(
    fig: DataFigure,
    title: str,
    labels: Sequence[str],
    first: int,
    frame: Callable[[int], list[Any]],
    line: Callable[[int], str],
    *,
    of: str,
    px: tuple[int, int, int],
    panels: Sequence[str] = (),
    ranges: Callable[[int], dict[str, Any]] = lambda _: {},
    subtitle: str = "",
    **layout: Any,
) -> DataFigure:
    """Return the figure with its style, a frame for every label, and the slider.

    Args:
        fig: its first traces are ``frame(first)``. labels: of the frames, as a log has them.
        frame: traces of the label at a position, the same kinds in the same order for all. line: what they say, clean.
        of: what the labels are, clean. px: height of the plot, of what is above it, and of what is below it without the slider.
        panels: clean titles of the panels, from left to right. ranges: layout of a frame's axes.
        layout: as of ``styled``.
    """
    inner, above, below = px[0], px[1], px[2] + SLIDER_PX
    axes = sorted(axis_keys(fig.layout.to_plotly_json(), "x"), key=lambda axis: (len(axis), axis))
    heads = [(fig.layout[axis].domain[0], text) for axis, text in zip(axes, panels, strict=False)]

    def of_frame(i: int) -> dict[str, Any]:
        return {**caption(line(i), heads), **ranges(i)}

    fig.frames = [
        go.Frame(data=traces, traces=list(range(len(traces))), name=label, layout=of_frame(i))
        for i, label in enumerate(labels)
        for traces in [frame(i)]
    ]
    margin = {"t": above, "b": below, **layout.pop("margin", {})}
    styled(
        fig, title, subtitle, height=inner + above + below, sliders=[slider(labels, first, f"{of}: ")],
        **caption(line(first), heads), legend=legend_below(inner), **layout,
    )  # fmt: skip
    fig.update_layout(margin=margin, sliders=[{"pad": {"t": below - SLIDER_PX}}], **ranges(first))
    return fig


def slider(labels: Sequence[str], first: int, prefix: str) -> dict[str, Any]:
    """Return a slider over the frames that are named ``labels``; ``prefix`` (clean text) precedes the chosen label."""
    return {
        "active": first,
        "currentvalue": {"prefix": prefix, "font": {"size": 13}},
        "pad": {"t": 52, "b": 4},
        "steps": [{"label": clean(label), "method": "animate", "args": [[label], AT_ONCE]} for label in labels],
    }


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
