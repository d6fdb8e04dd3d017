"""Plots what each idea contributes between the static schedule and the true lengths, and the remaining gap to the bound.

Input is a table of results of policies that each add one idea to the policy before. A contribution is the difference of two
measured sums: it can be negative, and it depends on the order of the ideas.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from rlhfless.plots.clock import clock_of_results, with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import reference_line
from rlhfless.plots.palette import BOUND, GREEN, IDLE, OUTLINE, SKY, VERMILLION
from rlhfless.plots.style import SOFT_BREAK, clean, hover, lines_of, message_figure, number, plain, signed_share, styled
from rlhfless.plots.tables import figure_of, stacked
from rlhfless.plots.time_cost import results_by_policy
from rlhfless.plots.tracks import bars_by_style
from rlhfless.scheduling import POLICY_TABLE

TITLE = "What each idea contributes"
NO_CHANGE = 1e-5  # of the first total, below which a change is rounding
LABEL_CHARS = 14  # of a line under a bar
KINDS = {
    "total": (SKY, "", "total of a schedule"),
    "saves": (GREEN, "/", "takes less than the schedule before"),
    "costs": (VERMILLION, "x", "takes more than the schedule before"),
    "left": (IDLE, "/", "between the last schedule and the lower bound"),
    "bound": (BOUND, "", "lower bound: no schedule costs less"),
}


def _style(rank: int, kind: str, colour: str, hatch: str, name: str) -> dict[str, Any]:
    marker = {"color": colour, "pattern": {"shape": hatch, "fgcolor": "rgba(255,255,255,0.6)", "size": 6}}
    if kind == "left":  # its fill is see-through: on white paper a white hatch could not be seen
        marker = {
            "color": colour, "pattern": {"shape": hatch, "fgcolor": BOUND, "size": 6, "solidity": 0.12},
            "line": {"color": OUTLINE, "width": 1},
        }  # fmt: skip
    return {
        "name": name, "marker": marker, "legendgroup": kind, "legendrank": rank, "width": 0.62, "cliponaxis": False,
        "textposition": "outside", "constraintext": "none",
    }  # fmt: skip


STYLES = {kind: _style(rank, kind, *look) for rank, (kind, look) in enumerate(KINDS.items(), start=1)}


class WaterfallBar(NamedTuple):
    """One bar of the waterfall; it reaches from ``start`` to ``end``.

    Attributes:
        label: clean text under it. kind: ``total``, ``saves``, ``costs``, ``left`` (to the bound) or ``bound``.
    """

    label: str
    kind: str
    start: float
    end: float

    @property
    def change(self) -> float:
        """End minus start."""
        return self.end - self.start


Bars = tuple[WaterfallBar, ...]


def _bars(results: pd.DataFrame) -> tuple[Bars, Bars]:
    """Return the bars in GPU-seconds and in seconds, with the same labels except for the bound; none for a single schedule."""
    table = results_by_policy(results)
    if len(table) < 2:
        return (), ()
    names = [_label(policy) for policy in table["policy"]]
    last = clean(table["policy"].iloc[-1], 24).replace(", ", ",<br>")

    def bars_of(values: list[float]) -> list[WaterfallBar]:
        steps = zip(names[1:], values[:-1], values[1:], strict=True)
        changes = [WaterfallBar(name, "saves" if after <= before else "costs", before, after) for name, before, after in steps]
        return [
            WaterfallBar(names[0], "total", 0.0, values[0]),
            *changes,
            WaterfallBar(f"<b>{last}</b>", "total", 0.0, values[-1]),
        ]

    cost = bars_of(table["gpu_seconds"].tolist())
    bound = float(table["bound_gpu_seconds"].iloc[-1])
    if bound == bound:
        cost += [
            WaterfallBar("still<br>possible", "left", cost[-1].end, bound),
            WaterfallBar("<b>lower<br>bound</b>", "bound", 0.0, bound),
        ]
    return tuple(cost), tuple(bars_of(table["time_s"].tolist()))


def _label(policy: str) -> str:
    if policy in POLICY_TABLE:
        return POLICY_TABLE[policy].label.replace("\n", "<br>")
    return lines_of(clean(policy, 40), LABEL_CHARS).replace(SOFT_BREAK, "<br>")


def plot_waterfall(results: pd.DataFrame, *, title: str = TITLE, note: str = "") -> DataFigure:
    """Plot the steps from the first schedule to the last, one idea at a time, in GPU-seconds and in time.

    Args:
        results: one row per schedule, or per schedule and step, in the order of the ideas: ``policy, time_s, gpu_seconds`` and
            ``bound_gpu_seconds`` or ``bound_cost_at_time``; several rows of a policy are added up.
        title, note: clean text above the plot; the note gets the clock of the times where ``results`` says it.

    Returns:
        A figure, whose table has the parts ``cost`` and ``time``: ``label, kind`` of a bar, where it reaches from and to.
        For fewer than two schedules one that says so.
    """
    cost, time = _bars(results)
    table = stacked(cost=_frame(cost, "gpu_seconds"), time=_frame(time, "time_s"))
    if not cost:
        return message_figure(title, "There are fewer than two schedules to compare.", table)
    fig = figure_of(table, rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.62, 0.38])
    shown: set[str] = set()
    for row, (bars, unit) in enumerate(((cost, "GPU-seconds"), (time, "s")), start=1):
        columns = {"at": "label", "start": "low", "end": "high", "text": "text"}
        for drawn in bars_by_style(_drawn(bars, unit), STYLES, "kind", upright=True, **columns):
            fig.add_trace(drawn | {"showlegend": drawn["legendgroup"] not in shown}, row=row, col=1)
            shown.add(drawn["legendgroup"])
        steps = [(r.label, r.end) for r in bars]
        dotted = {"color": BOUND, "width": 1, "dash": "dot"}
        for (left, level), (right, _) in pairwise(steps):
            joint = reference_line([left, right], [level, level], dotted, hoverinfo="skip", showlegend=False)
            fig.add_trace(joint, row=row, col=1)
        top = max(max(r.start, r.end) for r in bars)
        fig.update_yaxes(title="cost (GPU-seconds)" if row == 1 else "time (s)", range=[0, top * 1.18], row=row, col=1)
    order = [r.label for r in cost]
    fig.update_xaxes(categoryorder="array", categoryarray=order, tickangle=0, showgrid=False)
    if len(order) > 10:
        fig.update_xaxes(tickfont={"size": 10})
    fig.update_xaxes(
        title="ideas added one by one, left to right; percentages are of the first bar",
        row=2,
        col=1,
    )
    above = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}  # beside, it takes labels' room
    texts = {"minsize": 10, "mode": "show"}
    note = with_clock(note, clock_of_results(results))
    return styled(fig, title, note, height=672, above=60, barmode="overlay", uniformtext=texts, legend=above)


def _drawn(bars: Bars, unit: str) -> pd.DataFrame:
    """Return a row per bar, from its lower end to its upper one, with its texts."""
    first = bars[0].end
    rows = [
        (bar.label, bar.kind, min(bar.start, bar.end), max(bar.start, bar.end), _text(bar, first), _hover(bar, unit, first))
        for bar in bars
    ]
    return pd.DataFrame(rows, columns=["label", "kind", "low", "high", "text", "hover"])


def _frame(bars: Bars, unit: str) -> pd.DataFrame:
    """Return a row per bar: ``label, kind``, and where it reaches from and to."""
    rows = [(plain(bar.label), bar.kind, bar.start, bar.end) for bar in bars]
    return pd.DataFrame(rows, columns=["label", "kind", f"from_{unit}", f"to_{unit}"])


def _text(bar: WaterfallBar, first: float) -> str:
    if bar.kind in ("total", "bound"):
        return number(bar.end)
    if abs(bar.change) < NO_CHANGE * abs(first):
        return "0<br>(0.0%)"
    sign = "+" if bar.change > 0 else ""
    return f"{sign}{number(bar.change)}<br>({signed_share(bar.change / first)})"


def _hover(bar: WaterfallBar, unit: str, first: float) -> str:
    head = bar.label.replace("<br>", " ").replace("<b>", "").replace("</b>", "")
    if bar.kind in ("total", "bound"):
        return hover([("total", number(bar.end, unit))], head)
    lines = [("change", number(bar.change, unit)), ("of the first total", signed_share(bar.change / first))]
    return hover([*lines, ("from", number(bar.start, unit)), ("to", number(bar.end, unit))], head)
