"""Plots time-cost fronts of one step above their lower bounds: with and without drafts, or learned from in two ways.

Input is a comparison with curves, of ``rlhfless.simulate.draft_fronts`` or ``fusion_front``: a step at several time weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, GREY, VERMILLION, policy_styles
from rlhfless.plots.plane import bound_line
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from rlhfless.simulate import Comparison

DRAFTS = "Time and cost with and without speculative decoding"
LEARNING = "Time and cost of a step that learns after generation, or during it"
NOTHING = "There are no results: no policy has run the step."
BOUNDS = {
    "one_token": ("lower bound without drafts", {"color": GREY, "dash": "dash"}),
    "with_drafts": ("lower bound with these drafts", {"color": BLUE, "dash": "dot"}),
}
COLUMNS = ["policy", "learning", "time_weight", "actors", "time_s", "gpu_seconds", "bound_gpu_seconds", "on_front"]
WAYS = {
    "batch": ("learns after generation", BLUE, "circle"),
    "stream": ("learns while others decode", VERMILLION, "diamond"),
}


def plot_fronts(front: Comparison) -> DataFigure:
    """Plot the fronts in the time-cost plane, above the lower bounds; further to the lower left is better.

    Args:
        front: of ``rlhfless.simulate.draft_fronts``, with a line per policy, or of ``fusion_front``, with a line per way to
            learn.

    Returns:
        A figure; without a result one that says so. Its table has the results, ``on_front`` where no other one of their line
        is as fast and cheaper, and the bounds, unknown where no policy is that fast.
    """
    return _learning(front) if "learning" in front.table else _drafts(front)


def _drafts(fronts: Comparison) -> DataFigure:
    results = fronts.table[["policy", "time_weight", "actors", "time_s", "gpu_seconds", "on_front"]]
    curves = {name: fronts.curves[name].set_index("time_s")["gpu_seconds"] for name in BOUNDS}
    bounds = pd.DataFrame(curves).reset_index()
    if len(results):
        least = np.interp(results["time_s"], bounds["time_s"], bounds["one_token"])
        results = results.assign(below_one_token=results["gpu_seconds"].to_numpy() < least)
    bounds = bounds.replace([np.inf, -np.inf], np.nan)
    table = stacked(policies=results, bounds=bounds)
    if results.empty:
        return message_figure(DRAFTS, NOTHING, table)
    fig = figure_of(table)
    for column, (name, line) in BOUNDS.items():
        fig.add_trace(bound_line(bounds, name, line, y=column))
    styles = policy_styles(list(dict.fromkeys(results["policy"])))
    drawn = results[results["on_front"]]
    for policy in styles:
        of_line, name = drawn[drawn["policy"] == policy], clean(policy)
        fig.add_trace(_line(of_line, name, [name] * len(of_line), *styles[policy], size=10, without=True))
    fig.update_xaxes(title="time (s)", range=[0, 1.08 * drawn["time_s"].max()])
    low = min(drawn["gpu_seconds"].min(), bounds["with_drafts"].min())  # NaN where no bound is finite: then the former
    fig.update_yaxes(
        title="cost (GPU-seconds, logarithmic)", type="log", dtick="D2",
        range=np.log10([0.9 * low, 1.15 * drawn["gpu_seconds"].max()]).tolist(),
    )  # fmt: skip
    step = int(fronts.table["step"].iloc[0])
    note = f"step {step}; virtual clock, {clean(fronts.times)}; each line is one policy at several time weights"
    return styled(fig, DRAFTS, note, height=520)


def _learning(front: Comparison) -> DataFigure:
    results, (curve,) = front.table[COLUMNS], front.curves.values()
    bound = curve.replace([np.inf, -np.inf], np.nan)
    table = stacked(results=results, bound=bound)
    if results.empty:
        return message_figure(LEARNING, NOTHING, table)
    fig = figure_of(table)
    fig.add_trace(bound_line(bound, "lower bound of any schedule", {"color": BOUND}))
    for way, (name, colour, symbol) in WAYS.items():
        rows = results[results["learning"] == way]
        of_line = rows[rows["on_front"]]
        heads = [f"{clean(policy)}, {name}" for policy in of_line["policy"]]
        fig.add_trace(_line(of_line, name, heads, colour, symbol, shape="hv"))
        off = rows[~rows["on_front"]]
        fig.add_scatter(
            x=off["time_s"], y=off["gpu_seconds"], mode="markers", showlegend=False, hovertext=off["policy"].map(clean),
            hovertemplate="%{hovertext}: %{x:.3g} s, %{y:,.4g} GPU-seconds<extra></extra>",
            marker={"symbol": symbol, "size": 6, "color": colour, "opacity": 0.35},
        )  # fmt: skip
    fig.update_xaxes(title="time of the step (s)")
    fig.update_yaxes(title="cost (GPU-seconds)", rangemode="tozero")
    step = int(front.table["step"].iloc[0])
    return styled(fig, LEARNING, f"step {step}; pale marks are beaten by another policy or time weight")


def _line(
    rows: pd.DataFrame,
    name: str,
    heads: Sequence[str],
    colour: str,
    symbol: str,
    *,
    size: int = 9,
    without: bool = False,
    shape: str = "linear",
) -> go.Scatter:
    """Return one front; ``heads`` are of hover texts, and ``without`` says there whether drafts are needed for it."""

    def lines(row: Any) -> list[tuple[str, str]]:
        known = [("time", number(row.time_s, "s")), ("cost", number(row.gpu_seconds, "GPU-seconds")),
                 ("actors", f"{row.actors:g}"), ("time weight", f"{row.time_weight:g}")]  # fmt: skip
        if without:
            known.append(("without drafts", "cannot cost so little in this time" if row.below_one_token else "may be as good"))
        return known

    return go.Scatter(
        x=rows["time_s"], y=rows["gpu_seconds"], mode="lines+markers", name=name, hoverinfo="text",
        hovertext=[hover(lines(row), head) for row, head in zip(rows.itertuples(), heads, strict=True)],
        line={"color": colour, "width": 1.5, "shape": shape}, marker={"symbol": symbol, "size": size, "color": colour},
    )  # fmt: skip
