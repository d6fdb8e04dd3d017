"""Draws bars of holders over time: the bars, rows, marks and panels of every timeline.

Input is a tidy table with a row per bar. The result is plotly's JSON, because plotly checks and copies an object of its own
twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.palette import BLUE, IDLE, OCCUPANCY, OCCUPANCY_SCALE, OUTLINE, PHASE_STYLES, VERMILLION
from rlhfless.plots.style import clean
from rlhfless.trace import PHASES

MAX_LABELS = 32
BAR, BEHIND, BELOW = (-0.27, 0.54), (-0.42, 0.12), (0.30, 0.13)  # offset and width of the bars of a row
FEW = 0.01  # share of slots in use below which the legend says no number
DRAWN_PHASES = sorted(PHASES, key=lambda p: p not in ("decode", "learn", "prepare"))  # short phases on top of long ones
DECODE_RANK = 1 + PHASES.index("decode")
PLANNED_NOTE, BACKGROUND_NOTE = "hatched bar below: predicted by the plan", "thin bar above: in the background"
SHADES_NOTE = "blue: decoding; paler where more slots of the batch are empty"
EVENT_SYMBOLS = ("triangle-down", "diamond", "x", "star")


def bars_by_style(
    rows: pd.DataFrame, styles: Mapping[str, dict[str, Any]], by: str, **columns: Any
) -> Iterator[dict[str, Any]]:
    """Yield the bars of a table, one trace of plotly per style.

    Args:
        rows: one per bar. Those whose value of ``by`` has no style are left out.
        styles: attributes of a trace by value of the column ``by``, the last ones on top. columns: as in ``track_bars``, with
            ``upright``.
    """
    for value, style in styles.items():
        drawn = rows[rows[by] == value]
        if len(drawn):
            yield track_bars(drawn, **columns) | style


def track_bars(
    rows: pd.DataFrame, *, at: str = "row", start: str = "start_s", end: str = "end_s", upright: bool = False, **columns: str
) -> dict[str, Any]:
    """Return the bars of a table as one trace of plotly, to which ``name``, ``marker`` and other attributes are added.

    Args:
        rows: one per bar, with their hover texts in ``hover``.
        at, start, end: columns of the place across the tracks, and of the two times.
        upright: bars go up from ``start`` to ``end``; else to the right.
        columns: further attributes that differ from bar to bar, and their columns.
    """
    begin = rows[start].to_numpy()
    own = {name: rows[column].tolist() for name, column in {"hovertext": "hover", **columns}.items()}
    length, place = rows[end].to_numpy() - begin, rows[at].to_numpy()
    if upright:
        return {"type": "bar", "base": begin, "x": place, "y": length, "hoverinfo": "text", **own}
    return bar_trace(begin, length, place, hoverinfo="text", **own)


def bar_trace(base: Any, x: Any, y: Any, **attributes: Any) -> dict[str, Any]:
    """Return bars as plotly's JSON, with their starts, lengths and places, and attributes of the trace."""
    return {"type": "bar", "orientation": "h", "base": base, "x": x, "y": y, **attributes}


def _style(name: str, marker: Mapping[str, Any], where: tuple[Any, Any], rank: float) -> dict[str, Any]:
    return {"name": name, "marker": marker, "legendrank": rank, "offset": where[0], "width": where[1]}


ALLOCATED = _style("allocated, idle", {"color": IDLE, "line": {"color": OUTLINE, "width": 1}}, BAR, 0)
"""Look of the bars of allocations: what no other bar covers was idle."""

PLANNED = _style(
    "planned",
    {
        "color": "rgba(0,0,0,0)", "line": {"color": "#8A8A8A", "width": 1},
        "pattern": {"shape": "/", "fgcolor": "#8A8A8A", "bgcolor": "rgba(127,127,127,0.12)", "size": 4, "solidity": 0.35},
    },
    BELOW,
    100,
)  # fmt: skip
"""Look of the bars of a plan, below those of what was executed."""


def phase_style(phase: str, behind: bool | Sequence[bool]) -> dict[str, Any]:
    """Return the look of the bars of a phase other than decoding.

    Args:
        behind: whether they are in the background: all of them, or each.
    """
    style = PHASE_STYLES[phase]
    marker: dict[str, Any] = {"color": style.colour, "line": {"width": 0}}
    if style.hatch:
        marker["pattern"] = {"shape": style.hatch, "fgcolor": "rgba(255,255,255,0.65)", "size": 5, "solidity": 0.25}
    where: tuple[Any, Any] = BEHIND if behind is True else BAR
    if not isinstance(behind, bool):
        places = [BEHIND if one else BAR for one in behind]
        where = [offset for offset, _ in places], [width for _, width in places]
    name = f"{phase} (background)" if np.all(behind) else phase
    return _style(name, marker, where, 1 + PHASES.index(phase))


def decode_style(in_use: Any = None, name: str = "decode") -> dict[str, Any]:
    """Return the look of decode bars with these shares of slots in use: blue that is the paler the emptier the batch.

    ``shade_samples`` are their entries of the legend. Where no share is known, all are blue.
    """
    if in_use is None:
        return _style(name, {"color": BLUE, "line": {"width": 0}}, BAR, DECODE_RANK)
    marker = {"color": in_use, "colorscale": OCCUPANCY_SCALE, "cmin": 0, "cmax": 1, "line": {"width": 0}}
    return {**_style(name, marker, BAR, DECODE_RANK), "showlegend": False, "legendgroup": name}


def shade_samples(in_use: Any) -> list[dict[str, Any]]:
    """Return the entries of the legend for decode bars with these shares of slots in use: the fullest and the emptiest."""
    known = np.asarray(in_use, dtype=float)
    known = known[~np.isnan(known)]
    ends = (known.max(), known.min()) if len(known) else ()
    names = {f"decode, {f'{share:.0%}' if share >= FEW else f'under {FEW:.0%}'} of slots in use": share for share in ends}
    return [
        {
            "type": "bar", "x": [None], "y": [None], "name": name, "orientation": "h", "legendgroup": "decode",
            "legendrank": DECODE_RANK + i / 10, "hoverinfo": "skip",
            "marker": {"color": _shade_on_idle(float(share)), "line": {"color": OUTLINE, "width": 1}},
        }
        for i, (name, share) in enumerate(names.items())
    ]  # fmt: skip


def _shade_on_idle(share: float) -> str:
    """Return the colour of decode bars with this share of slots in use, as it is seen over the grey of the allocation."""
    shares, opacities = zip(*OCCUPANCY, strict=True)
    over = float(np.interp(share, shares, opacities))
    under = 0.25 * (1.0 - over)  # the opacity of IDLE
    red, green, blue = ((over * of_blue + under * 127) / (over + under) for of_blue in (0, 114, 178))
    return f"rgba({red:.0f},{green:.0f},{blue:.0f},{over + under:.2f})"


def event_marks(number: int, name: str, times: Sequence[float], rows: Any, **attributes: Any) -> dict[str, Any]:
    """Return the marks of the events of one name, over their rows.

    Args:
        number: of the name among all names, which decides symbol and place in the legend.
    """
    symbol = EVENT_SYMBOLS[number % len(EVENT_SYMBOLS)]
    return {
        "type": "scatter", "mode": "markers", "name": f"event: {clean(name, 24)}",
        "x": times, "y": [row + (BAR[0] - 0.06) for row in rows],
        "marker": {"symbol": symbol, "size": 9, "color": VERMILLION, "line": {"width": 1, "color": "#FFFFFF"}},
        "legendrank": 200 + number, "showlegend": True, **attributes,
    }  # fmt: skip


def track_label(holder: str, gpu_ids: Sequence[int]) -> str:
    """Return ``actor-0 (0, 1)``: the holder and its GPUs, or the number of GPUs."""
    few = ", ".join(map(str, gpu_ids)) if len(gpu_ids) <= 4 else f"{len(gpu_ids)} GPUs"
    return clean(holder, 22) + (f" ({few})" if len(gpu_ids) else "")


def track_axis(labels: Sequence[str], every: int = 0, room: float = 0.45) -> dict[str, Any]:
    """Return the axis of rows from top to bottom; of many, only some are labelled.

    Args:
        every: label each of so many rows; 0 labels at most ``MAX_LABELS``. room: above the first row and below the last one.
    """
    rows = len(labels)
    shown = range(0, rows, every or max(1, -(-rows // MAX_LABELS)))
    return {
        "tickvals": list(shown), "ticktext": [labels[i] for i in shown], "range": [rows - room, room - 1.0],
        "zeroline": False, "showgrid": False,
    }  # fmt: skip


def place_panels(fig: go.Figure, heights: Sequence[float], above: Sequence[float], cols: int = 1) -> list[float]:
    """Give every panel of a figure its height, from top to bottom.

    Args:
        heights: of the panels in pixels. above: pixels above each. cols: panels side by side in every row.

    Returns:
        Where each panel ends above, as a share of the height of all of them.
    """
    inner = sum(heights) + sum(above)
    top, ends = float(inner), []
    for row, (height, gap) in enumerate(zip(heights, above, strict=True), start=1):
        top -= gap
        ends.append(min(1.0, top / inner))
        for col in range(1, cols + 1):
            fig.update_yaxes(domain=[max(0.0, (top - height) / inner), ends[-1]], row=row, col=col)
        top -= height
    return ends
