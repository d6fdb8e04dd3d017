"""Plots variants of a run in the time-cost plane: policies at several time weights, on several numbers and kinds of GPUs.

Input is one row per variant, as ``Comparison.means`` has it. Variants of one policy have its colour.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.errors import InputError
from rlhfless.plots.clock import clock_of_results, with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BOUND, OUTLINE, policy_styles
from rlhfless.plots.point_labels import line_marks, place_labels
from rlhfless.plots.style import clean, cut_axes, hover, message_figure, number, styled, unmarked, usd
from rlhfless.plots.tables import figure_of
from solver.model.errors import as_given

TITLE = "Time and cost of variants"
COSTS = {"gpu_seconds": "GPU-seconds", "cost_usd": "USD"}
NEEDED = ("variant", "policy", "time_s", "gpu_seconds", "cost_usd", "bound_gpu_seconds")
LONGEST_NAME, MAX_LABELS = 40, 20
PLOT_PX = (620.0, 330.0)  # about what a notebook's output leaves for the plot; names are placed for it
NAME = "variant"
"""The name of a variant's text, among the annotations."""


class _Data(NamedTuple):
    """Data of ``plot_variants``.

    Attributes:
        points: one row per variant: ``variant, policy, time_s, cost, bound`` (the least cost in its time; NaN where none is
            known) and ``on_front``: no other variant is as fast and cheaper, or as cheap and faster.
        unit: of costs: ``GPU-seconds`` or ``USD``. missing: why there is nothing to show, or the empty text.
    """

    points: pd.DataFrame
    unit: str
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the points; costs are named by their unit."""
        column = "cost_usd" if self.unit == "USD" else "gpu_seconds"
        return self.points.rename(columns={"cost": column, "bound": f"bound_{column}"})


def _data(means: pd.DataFrame, cost: str = "gpu_seconds") -> _Data:
    """Return the data of ``plot_variants``; for the arguments see there."""
    absent = [name for name in NEEDED if name not in means.columns]
    if absent:
        raise InputError(f"the variants have no column {absent[0]!r}; {', '.join(NEEDED)} are needed")
    if cost not in COSTS:
        raise InputError(f"cost is {as_given(cost)}; one of {', '.join(COSTS)} is needed")
    table = means[means["time_s"].gt(0) & means[cost].gt(0)].reset_index(drop=True)
    bound = table["bound_gpu_seconds"] * (table[cost] / table["gpu_seconds"])
    points = pd.DataFrame({"variant": table["variant"], "policy": table["policy"], "time_s": table["time_s"]})
    points = points.assign(cost=table[cost], bound=bound)
    by_time = points.sort_values(["time_s", "cost"], kind="stable")
    points["on_front"] = by_time["cost"] < by_time["cost"].cummin().shift(fill_value=math.inf)
    return _Data(points, COSTS[cost], "" if len(points) else "There are no results: no variant has run a step.")


def plot_variants(means: pd.DataFrame, cost: str = "gpu_seconds", *, title: str = TITLE, note: str = "") -> DataFigure:
    """Plot time and cost of every variant; a line joins those that no other one beats. Only these and their equals are named.

    Args:
        means: ``variant, policy, time_s, gpu_seconds, cost_usd, bound_gpu_seconds``, as of ``Comparison.means``.
        cost: what counts as cost: ``gpu_seconds``, or ``cost_usd`` where GPUs of several prices are compared.
        title, note: clean text above the plot.

    Returns:
        A figure; without a variant one that says so.

    Raises:
        InputError: a column is missing, or the cost is neither.

    Example:
        >>> import rlhfless as rl
        >>> from rlhfless.plots import plot_variants
        >>> found = rl.load(rl.example(), verbose=False).sweep(gpus=[8, 16])
        >>> plot_variants(found.means()).layout.xaxis.title.text.startswith("time (s)")
        True
    """
    info = _data(means, cost)
    if info.missing:
        return message_figure(title, info.missing, info.to_frame())
    points, fig = info.points, figure_of(info.to_frame())
    front = points[points["on_front"]].sort_values("time_s", kind="stable")
    of_front = set(zip(front["time_s"], front["cost"], strict=True))
    points["named"] = [at in of_front for at in zip(points["time_s"], points["cost"], strict=True)]  # equal ones, too
    named = points[points["named"]].sort_values("time_s", kind="stable")
    fig.add_scatter(
        x=front["time_s"], y=front["cost"], mode="lines", name="best variants: none is as fast and cheaper", hoverinfo="skip",
        line={"color": BOUND, "width": 1.5, "shape": "hv"},
    )  # fmt: skip
    if points["bound"].notna().any():
        fig.add_scatter(
            x=points["time_s"], y=points["bound"], mode="markers", name="lower bound at that time",
            marker={"symbol": "line-ew", "size": 16, "line": {"width": 2, "color": BOUND}},
            hovertemplate=f"<b>lower bound</b><br>time: %{{x:.3g}} s<br>at least %{{y:,.4g}} {info.unit}<extra></extra>",
        )  # fmt: skip
    styles = policy_styles(list(dict.fromkeys(map(str, points["policy"]))))
    for policy, rows in points.groupby("policy", sort=False):
        style = styles[str(policy)]
        fig.add_scatter(
            x=rows["time_s"], y=rows["cost"], mode="markers", name=clean(policy, LONGEST_NAME), hoverinfo="text",
            hovertext=[_hover(row, info.unit) for row in rows.itertuples()],
            marker={"color": style.colour, "symbol": style.symbol, "size": 13, "line": {"width": 1.2, "color": OUTLINE},
                    "opacity": [0.95 if on else 0.4 for on in rows["named"]]},
        )  # fmt: skip
    across = _range(points["time_s"], points["time_s"])
    up = _range(points["cost"], pd.concat([points["cost"], points["bound"].dropna()]))
    fig.update_xaxes(title="time (s)", range=list(across))
    fig.update_yaxes(title=f"cost ({info.unit})", range=list(up))
    _add_names(fig, points, named if len(named) <= MAX_LABELS else named.iloc[:0], across, up)
    below = {"orientation": "h", "x": 0.0, "xanchor": "left", "y": -0.2, "yanchor": "top"}
    note = with_clock("; ".join(filter(None, [note, cut_axes(time=across[0], cost=up[0])])), clock_of_results(means))
    return styled(fig, title, note, height=500, legend=below)


def _hover(row: Any, unit: str) -> str:
    cost = usd(row.cost) if unit == "USD" else number(row.cost, unit)
    lines = [("policy", clean(row.policy)), ("time", number(row.time_s, "s")), ("cost", cost)]
    if row.bound > 0:
        lines.append(("above the lower bound at that time", f"{row.cost / row.bound - 1:.1%}"))
    return hover(lines, clean(row.variant, LONGEST_NAME))


def _range(values: pd.Series, shown: pd.Series) -> tuple[float, float]:
    """Return a range around these values; it begins at 0 where that takes at most half of it."""
    high, low = float(values.max()), float(shown.min())
    wide = max(high - low, 0.08 * high)
    begin = low - 0.2 * wide
    return (0.0 if begin < 0.5 * high else begin), high + 0.15 * wide


def _add_names(
    fig: go.Figure, points: pd.DataFrame, named: pd.DataFrame, across: tuple[float, float], up: tuple[float, float]
) -> None:
    """Write names beside the points that have one, with a line where a name is not next to its point."""

    def pixels(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
        x = (table["time_s"] - across[0]) / (across[1] - across[0]) * PLOT_PX[0]
        return x, (up[1] - table["cost"]) / (up[1] - up[0]) * PLOT_PX[1]

    names = [clean(name, LONGEST_NAME) for name in named["variant"]]
    bounds = points.assign(cost=points["bound"]).dropna(subset="cost")
    others = pd.concat([points[~points["named"]], bounds])
    marks = [*zip(*pixels(others), strict=True), *line_marks(*pixels(named), *PLOT_PX)]
    for label in place_labels(*pixels(named), [unmarked(name) for name in names], *PLOT_PX, marks):
        first = named.iloc[label.points[0]]
        fig.add_annotation(
            x=first["time_s"], y=first["cost"], ax=label.dx, ay=label.dy, showarrow=True, arrowhead=0, arrowwidth=1,
            arrowcolor=BOUND, standoff=8, text=" = ".join(names[i] for i in label.points), font={"size": 12}, name=NAME,
        )  # fmt: skip
