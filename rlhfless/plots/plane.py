"""The time-cost plane: lower bounds, fronts of plans, the plan of a slider, names beside points, and ranges of axes.

Inputs are tidy frames with a column of seconds, ``time_s``, and one of cost, ``y``. Outputs are traces as plotly's JSON, or
names in a figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.lines import line
from rlhfless.plots.palette import BOUND, ORANGE
from rlhfless.plots.point_labels import line_marks, place_labels
from rlhfless.plots.style import counted, unmarked

PLOT_PX = (620.0, 330.0)  # about what a notebook's output leaves for the plot; names are placed for it
BELOW = {"fill": "tozeroy", "fillcolor": "rgba(127,127,127,0.13)"}
"""What lies below a line of a bound: no schedule."""
OUTLINE = "#444444"

Range = tuple[float, float]


def bound_line(
    table: pd.DataFrame, name: str, look: dict[str, Any], *, y: str = "gpu_seconds", unit: str = "GPU-seconds", **trace: Any
) -> dict[str, Any]:
    """Return the least cost at every time as a line; ``look`` adds to a dashed grey one, ``trace`` are fields of the trace."""
    return line(
        table, "time_s", y, mode="lines", name=name, line={"color": BOUND, "width": 2, "dash": "dash", **look},
        hovertemplate=f"<b>{name.partition(':')[0]}</b><br>time: %{{x:.3g}} s<br>at least %{{y:,.4g}} {unit}<extra></extra>",
        **trace,
    )  # fmt: skip


def bound_ticks(table: pd.DataFrame, *, y: str = "bound_gpu_seconds", unit: str = "GPU-seconds") -> dict[str, Any]:
    """Return a tick for every row, at the least cost in its own time."""
    return line(
        table, "time_s", y, mode="markers", name="lower bound at that time",
        marker={"symbol": "line-ew", "size": 16, "line": {"width": 2, "color": BOUND}},
        hovertemplate=f"<b>lower bound</b><br>time: %{{x:.3g}} s<br>at least %{{y:,.4g}} {unit}<extra></extra>",
    )  # fmt: skip


def plans_line(
    front: pd.DataFrame, name: str, head: str = "plan", *, y: str = "gpu_seconds", unit: str = "GPU-seconds"
) -> dict[str, Any]:
    """Return a front of plans as a line: rows of ``time_s``, the cost and ``actors``; ``head`` is of hover texts."""
    return line(
        front, "time_s", y, name=name,
        line={"color": ORANGE, "width": 1.5, "shape": "hv"}, marker={"symbol": "circle-open", "size": 6},
        customdata=[counted(n, "actor") for n in front["actors"]],
        hovertemplate=f"<b>{head} with %{{customdata}}</b><br>time: %{{x:.3g}} s<br>cost: %{{y:,.4g}} {unit}<extra></extra>",
    )  # fmt: skip


def this_plan(x: Any, y: Any, colour: str, symbol: str = "star", size: float = 15, **trace: Any) -> dict[str, Any]:
    """Return the marker of the plan that a slider shows; ``trace`` are fields of the trace."""
    marker = {"symbol": symbol, "size": size, "color": colour, "line": {"width": 1, "color": OUTLINE}}
    return {
        "type": "scatter", "x": x, "y": y, "mode": "markers", "marker": marker, "name": "this plan", "hoverinfo": "skip",
        **trace,
    }  # fmt: skip


def axis_range(low: float, high: float, below: float, above: float, *, empty: float = 0.5) -> Range:
    """Return the range of an axis from ``low`` to ``high``, with these shares of it as room below and above.

    It begins at 0 where at most the share ``empty`` of the axis has no points then.
    """
    wide = max(high - low, 0.08 * high)
    begin = low - below * wide
    return 0.0 if begin < empty * high else begin, high + above * wide


def name_points(
    fig: go.Figure,
    points: pd.DataFrame,
    names: Sequence[str],
    ranges: tuple[Range, Range],
    *,
    y: str = "gpu_seconds",
    name: str | None = None,
    lines: Sequence[tuple[pd.DataFrame, bool]] = (),
    marks: pd.DataFrame | None = None,
    marks_px: Sequence[tuple[float, float]] = (),
    plot_px: tuple[float, float] = PLOT_PX,
    stretches: Sequence[float] = (1.0,),
    between: str = " = ",
    standoff: float = 8,
) -> None:
    """Write names beside their points and off the lines, with a line to the point where a name is not next to it.

    Args:
        points: ``time_s`` and the cost, ``y``. names: of the rows, clean. ranges: of the two axes.
        name: of these texts, among the annotations of the figure.
        lines: rows of a line, and whether it goes across before it goes up or down. marks: rows of further points;
            ``marks_px``: more of them, in pixels. No name covers any of these.
        plot_px, stretches: see ``place_labels``. between: names of points that lie on each other.
    """
    (left, right), (low, high) = ranges

    def pixels(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
        return (table["time_s"] - left) / (right - left) * plot_px[0], (high - table[y]) / (high - low) * plot_px[1]

    taken = [*marks_px, *(zip(*pixels(marks), strict=True) if marks is not None else ())]
    for one, stepped in lines:
        taken += line_marks(*pixels(one), *plot_px, stepped=stepped)
    for label in place_labels(*pixels(points), [unmarked(one) for one in names], *plot_px, taken, stretches):
        first = points.iloc[label.points[0]]
        fig.add_annotation(
            x=first["time_s"], y=first[y], ax=label.dx, ay=label.dy, showarrow=True, arrowhead=0, arrowwidth=1,
            arrowcolor=BOUND, standoff=standoff, text=between.join(names[i] for i in sorted(label.points)), font={"size": 12},
            name=name,
        )  # fmt: skip
