"""Shared drawing code of the reproduced figures: markers of policies, and lines at the paper's printed numbers.

Inputs are names of policies and points; output are plotly traces and markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from rlhfless.paper.comparison import IN_FIGURES, label_of
from rlhfless.plots.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION, PolicyStyle, policy_styles

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, GREY)
"""Of data sets and other things that are no policies."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid")
PATTERNS = ("", "/", "\\", "x", "-", ".")
"""Of bars, beside ``COLOURS``: for print without colour."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
WIDE_LEGEND = {"x": 0.0, "xanchor": "left", "y": -0.16, "yanchor": "top", "orientation": "h"}
"""A legend below the plot."""


def style_of(policy: str) -> PolicyStyle:
    """Return colour and marker of a policy in these figures."""
    return IN_FIGURES[policy].style if policy in IN_FIGURES else policy_styles([policy])[policy]


def marker_of(policy: str, size: int = 10) -> dict[str, Any]:
    """Return a plotly marker; the bound is a dash."""
    style = style_of(policy)
    line = {"width": 2.5, "color": style.colour} if policy == "bound" else {"width": 1, "color": "#444444"}
    return {"color": style.colour, "symbol": style.symbol, "size": 16 if policy == "bound" else size, "line": line}


def bar_of(place: int, colour: str | None = None) -> dict[str, Any]:
    """Return a plotly marker of bars, by position in the legend: a colour, and a pattern that repeats the distinction."""
    pattern = {"shape": PATTERNS[place % len(PATTERNS)], "fgcolor": "#444444", "size": 6}
    return {"color": colour or COLOURS[place % len(COLOURS)], "pattern": pattern}


def add_policies(fig: go.Figure, policies: Sequence[str], points: Any, **cell: Any) -> None:
    """Add one trace of markers per policy.

    Args:
        points: policy to (x values, y values); ``None`` leaves it out.
        cell: ``row``, ``col`` and ``showlegend``.
    """
    shown = cell.pop("showlegend", True)
    for policy in policies:
        point = points(policy)
        if point is None:
            continue
        fig.add_scatter(
            x=point[0], y=point[1], mode="markers", name=label_of(policy), legendgroup=policy, showlegend=shown,
            marker=marker_of(policy), hovertemplate=f"<b>{label_of(policy)}</b><br>%{{x}}: %{{y:.3g}}<extra></extra>", **cell,
        )  # fmt: skip


def paper_line(fig: go.Figure, y: float, text: str, **cell: Any) -> None:
    """Draw a dotted horizontal line at a number that the paper prints."""
    fig.add_hline(
        y=y, line={"color": ORANGE, "width": 1.5, "dash": "dot"}, annotation_text=text, annotation_position="top left",
        annotation_font={"size": 11, "color": "#9A6A00"}, **cell,
    )  # fmt: skip
