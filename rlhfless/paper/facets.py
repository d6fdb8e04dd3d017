"""The one drawing of all reproduced figures: panels of a tidy table, each with rows, x, y and hue.

A figure says which rows a panel shows and by which columns. Labels, colours, symbols and the legend are the same in all panels.
Dotted lines are numbers that the paper prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.plots.bars import bars
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION
from rlhfless.plots.style import legend_below, styled

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid")
HATCHES = ("", "/", "\\", "x", "-", ".")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
PRINTED_COLOUR, PRINTED_INK = ORANGE, "#9A6A00"
BETWEEN_PX, ABOVE_PX, BELOW_PX = 92, 96, 70
"""Pixels between rows of panels, above the first row and below the last one."""


class Look(NamedTuple):
    """How one value of a hue is drawn: its name in the legend, and what tells it apart, with and without colour. Without a
    symbol it is a curve."""

    label: str
    colour: str
    symbol: str = "circle"
    dash: str = "solid"
    hatch: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel: which rows of the table, and how they are drawn.

    Attributes:
        where: column to the value, or the tuple of values, of the rows.
        x, y, hue: columns. title, x_title, y_title: texts.
        kind: ``points``, ``lines`` (with points), ``curve`` (without), ``bars`` or ``across`` (bars to the right).
        printed: numbers that the paper prints, as (y, text): dotted lines. at: x of vertical lines.
        error: column of half an interval of y. xaxis, yaxis: settings of the axes, as plotly has them.
    """

    where: Mapping[str, Any]
    x: str
    y: str
    hue: str = "policy"
    kind: str = "points"
    title: str = ""
    x_title: str = ""
    y_title: str = ""
    printed: Sequence[tuple[float, str]] = ()
    at: Sequence[float] = ()
    error: str = ""
    xaxis: Mapping[str, Any] = field(default_factory=dict)
    yaxis: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the table that the panel shows; unknown values of y are left out."""
        return select(table, self.where).dropna(subset=[self.y])


PERCENT = {"tickformat": ".0%"}
FROM_ZERO = {"rangemode": "tozero"}


def select(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows whose columns have these values, each a value or a tuple of values."""
    for column, value in where.items():
        table = table[table[column].isin(value if isinstance(value, tuple) else (value,))]
    return table


def for_each(panel: Panel, column: str, values: Mapping[Any, str]) -> list[Panel]:
    """Return a panel for every value of a column, with its title."""
    return [replace(panel, where={**panel.where, column: value}, title=title) for value, title in values.items()]


def looks_of(values: Sequence[Any], labels: Mapping[Any, str] | None = None) -> dict[Any, Look]:
    """Return how values are drawn by their order, with these labels or their own names."""
    names = labels or {}
    return {
        value: Look(
            str(names.get(value, value)), COLOURS[i % 6], SYMBOLS[i % 6], DASHES[i % 6], HATCHES[i % 6]
        )
        for i, value in enumerate(values)
    }  # fmt: skip


def facets(
    table: pd.DataFrame, title: str, note: str, panels: Sequence[Sequence[Panel]], looks: Mapping[Any, Look] | None = None,
    heights: Sequence[int] = (300,), same_y: bool = False, between: int = BETWEEN_PX,
) -> go.Figure:  # fmt: skip
    """Return a figure with rows of panels; rows may have different numbers of panels.

    Args:
        table: tidy rows. looks: hue to how it is drawn, in the order of the legend; other hues follow in their own order.
        heights: pixels of each row of panels; of all rows where there is one number. same_y: panels of a row share the range
            of y. between: pixels between rows of panels.
    """
    shown = list(dict.fromkeys(value for row in panels for panel in row for value in panel.rows(table)[panel.hue]))
    given = dict(looks or {})
    known = {**given, **looks_of([value for value in shown if value not in given])}
    heights = list(heights) * (len(panels) if len(heights) == 1 else 1)
    columns = math.lcm(*(len(row) for row in panels))
    inner = sum(heights) + between * (len(panels) - 1)
    fig = make_subplots(
        rows=len(panels), cols=columns, row_heights=heights, vertical_spacing=between / inner if len(panels) > 1 else 0,
        horizontal_spacing=0.07 if columns > 1 else 0,
        specs=[[cell for _ in row for cell in ({"colspan": columns // len(row)}, *[None] * (columns // len(row) - 1))]
               for row in panels],
        subplot_titles=[panel.title for row in panels for panel in row],
    )  # fmt: skip
    in_legend: set[Any] = set()
    for row, of_row in enumerate(panels, start=1):
        for place, panel in enumerate(of_row):
            cell = {"row": row, "col": 1 + place * (columns // len(of_row))}
            by_hue = dict(iter(panel.rows(table).groupby(panel.hue, sort=False)))
            for value in (value for value in known if value in by_hue):
                _draw(fig, panel, by_hue[value], known[value], known[value].label not in in_legend, cell)
                in_legend.add(known[value].label)
            _printed(fig, panel, cell)
            fig.update_xaxes(title=panel.x_title or None, **panel.xaxis, **cell)
            first = next(fig.select_yaxes(row=row, col=1)).plotly_name.replace("axis", "")
            shared = {"matches": first} if same_y and place else {}
            fig.update_yaxes(title=panel.y_title or None, **panel.yaxis, **shared, **cell)
    fig.update_annotations(selector={"showarrow": False, "xanchor": "center"}, font={"size": 13})
    legend = {**legend_below(inner), "y": -BELOW_PX / inner}
    above, below = ABOVE_PX, BELOW_PX + 24 * math.ceil(len(in_legend) / 2)
    margin = {"l": 80, "r": 24, "t": above, "b": below}
    return styled(fig, title, note, height=inner + above + below, legend=legend, margin=margin, barmode="group")


def _draw(fig: go.Figure, panel: Panel, rows: pd.DataFrame, look: Look, in_legend: bool, cell: Mapping[str, int]) -> None:
    """Add the trace of one value of the hue."""
    label, place = look.label, {"rows": cell["row"], "cols": cell["col"]}
    common: dict[str, Any] = {"name": label, "legendgroup": label, "showlegend": in_legend}
    if panel.kind in ("bars", "across"):
        upright = panel.kind == "bars"
        hover = (
            f"<b>{label}</b><br>%{{x}}: %{{y:.4g}}<extra></extra>" if upright else f"{label}: %{{x:.4g}}<extra>%{{y}}</extra>"
        )
        bar = {"color": look.colour, "pattern": {"shape": look.hatch, "fgcolor": "#444444", "size": 6}}
        part = {"marker": bar, "hovertemplate": hover, **common}
        fig.add_traces(bars(rows, rows[panel.x], {panel.y: part}, upright=upright), **place)
        return
    dash = look.symbol.startswith("line-")
    marker = {
        "color": look.colour, "symbol": look.symbol or None, "size": 17 if dash else 9,
        "line": {"width": 2.5, "color": look.colour} if dash else {"width": 1, "color": "#444444"},
    }  # fmt: skip
    mode = {"points": "markers", "lines": "lines+markers", "curve": "lines"}[panel.kind if look.symbol else "curve"]
    trace = line(
        rows, panel.x, panel.y, mode=mode, marker=marker, line={"color": look.colour, "dash": look.dash, "width": 2},
        error_y=_interval(panel, rows), hovertemplate=f"<b>{label}</b><br>%{{x}}: %{{y:.4g}}<extra></extra>", **common,
    )  # fmt: skip
    fig.add_traces([trace], **place)


def _interval(panel: Panel, rows: pd.DataFrame) -> dict[str, Any] | None:
    return {"array": rows[panel.error].fillna(0), "thickness": 1, "width": 2} if panel.error else None


def _printed(fig: go.Figure, panel: Panel, cell: Mapping[str, int]) -> None:
    """Add dotted lines at the numbers that the paper prints."""
    for y, text in panel.printed:
        fig.add_hline(y=y, line={"color": PRINTED_COLOUR, "width": 1.5, "dash": "dot"}, **cell)
        if text:
            fig.add_annotation(
                text=text, x=0, y=y, xref="x domain", xanchor="left", yanchor="bottom", showarrow=False,
                font={"size": 11, "color": PRINTED_INK}, **cell,
            )  # fmt: skip
    for x in panel.at:
        fig.add_vline(x=x, line={"color": "#999999", "dash": "dot", "width": 1.5}, **cell)
