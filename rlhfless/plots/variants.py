"""Plots variants of a run in the time-cost plane: policies at several time weights, on several numbers and kinds of GPUs.

Input is one row per variant, as ``Comparison.means`` has it. Variants of one policy have its colour.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.plots.clock import clock_of_results, with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import line, lines
from rlhfless.plots.palette import BOUND, OUTLINE, policy_styles
from rlhfless.plots.plane import axis_range, bound_ticks, name_points
from rlhfless.plots.style import clean, cut_axes, hover, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of
from solver.model.errors import as_given

TITLE = "Time and cost of variants"
COSTS = {"gpu_seconds": "GPU-seconds", "cost_usd": "USD"}
NEEDED = ("variant", "policy", "time_s", "gpu_seconds", "cost_usd", "bound_gpu_seconds")
LONGEST_NAME, MAX_LABELS = 40, 20
NAME = "variant"
"""The name of a variant's text, among the annotations."""


def plot_variants(means: pd.DataFrame, cost: str = "gpu_seconds", *, title: str = TITLE, note: str = "") -> DataFigure:
    """Plot time and cost of every variant; a line joins those that no other one beats. Only these and their equals are named.

    Args:
        means: ``variant, policy, time_s, gpu_seconds, cost_usd, bound_gpu_seconds``, as of ``Comparison.means``.
        cost: what counts as cost: ``gpu_seconds``, or ``cost_usd`` where GPUs of several prices are compared.
        title, note: clean text above the plot.

    Returns:
        A figure, whose table has ``variant, policy, time_s``, the cost, its lower bound in that time, and ``on_front``: no
        other variant is as fast and cheaper, or as cheap and faster. Without a variant one that says so.

    Raises:
        InputError: a column is missing, or the cost is neither.

    Example:
        >>> import rlhfless as rl
        >>> found = rl.load(rl.example(), verbose=False).sweep(gpus=[8, 16])
        >>> "bound_gpu_seconds" in found.plot().table
        True
    """
    absent = [name for name in NEEDED if name not in means.columns]
    if absent:
        raise InputError(f"the variants have no column {absent[0]!r}; {', '.join(NEEDED)} are needed")
    if cost not in COSTS:
        raise InputError(f"cost is {as_given(cost)}; one of {', '.join(COSTS)} is needed")
    unit, bound = COSTS[cost], f"bound_{cost}"
    table = means[means["time_s"].gt(0) & means[cost].gt(0)].reset_index(drop=True)
    points = table[["variant", "policy", "time_s", cost]]
    points = points.assign(**{bound: table["bound_gpu_seconds"] * (table[cost] / table["gpu_seconds"])})
    by_time = points.sort_values(["time_s", cost], kind="stable")
    points["on_front"] = by_time[cost] < by_time[cost].cummin().shift(fill_value=math.inf)
    if points.empty:
        return message_figure(title, "There are no results: no variant has run a step.", points)
    fig = figure_of(points)
    front = points[points["on_front"]].sort_values("time_s", kind="stable")
    of_front = set(zip(front["time_s"], front[cost], strict=True))
    named = pd.Series([at in of_front for at in zip(points["time_s"], points[cost], strict=True)])  # equal ones, too
    best: dict[str, Any] = {"name": "best variants: none is as fast and cheaper", "hoverinfo": "skip"}
    fig.add_trace(line(front, "time_s", cost, mode="lines", line={"color": BOUND, "width": 1.5, "shape": "hv"}, **best))
    if points[bound].notna().any():
        fig.add_trace(bound_ticks(points, y=bound, unit=unit))
    styles = policy_styles(list(dict.fromkeys(map(str, points["policy"]))))

    def style(policy: Any, rows: pd.DataFrame) -> dict[str, Any]:
        colour, symbol = styles[str(policy)]
        marker = {"color": colour, "symbol": symbol, "size": 13, "line": {"width": 1.2, "color": OUTLINE}}
        pale = [0.95 if on else 0.4 for on in named[rows.index]]
        return {"name": clean(policy, LONGEST_NAME), "marker": {**marker, "opacity": pale}}

    fig.add_traces(lines(points, "time_s", cost, "policy", style, lambda row: _hover(row, cost), mode="markers"))
    across = axis_range(points["time_s"].min(), points["time_s"].max(), 0.2, 0.15)
    up = axis_range(points[[cost, bound]].min().min(), points[cost].max(), 0.2, 0.15)
    fig.update_xaxes(title="time (s)", range=list(across))
    fig.update_yaxes(title=f"cost ({unit})", range=list(up))
    with_names = points[named].sort_values("time_s", kind="stable")
    with_names = with_names if len(with_names) <= MAX_LABELS else with_names.iloc[:0]
    others = pd.concat([points[~named], points.assign(**{cost: points[bound]}).dropna(subset=cost)])
    name_points(
        fig, with_names, [clean(name, LONGEST_NAME) for name in with_names["variant"]], (across, up), y=cost, name=NAME,
        lines=[(with_names, True)], marks=others,
    )  # fmt: skip
    below = {"orientation": "h", "x": 0.0, "xanchor": "left", "y": -0.2, "yanchor": "top"}
    note = with_clock("; ".join(filter(None, [note, cut_axes(time=across[0], cost=up[0])])), clock_of_results(means))
    return styled(fig, title, note, height=500, legend=below)


def _hover(row: Any, cost: str) -> str:
    paid, bound = getattr(row, cost), getattr(row, f"bound_{cost}")
    said = [("policy", clean(row.policy)), ("time", number(row.time_s, "s"))]
    said.append(("cost", usd(paid) if cost == "cost_usd" else number(paid, COSTS[cost])))
    if bound > 0:
        said.append(("above the lower bound at that time", f"{paid / bound - 1:.1%}"))
    return hover(said, clean(row.variant, LONGEST_NAME))
