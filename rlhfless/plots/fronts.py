"""Plots time-cost fronts of one step above their lower bounds: with and without drafts, or learned from in two ways.

Input is a comparison with curves, of ``rlhfless.simulate.draft_fronts`` or ``fusion_front``: a step at several time weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines
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

    def style(policy: Any, _: pd.DataFrame) -> dict[str, Any]:
        return {"name": clean(policy), **_look(*styles[policy], size=10)}

    def text(row: Any) -> str:
        without = "cannot cost so little in this time" if row.below_one_token else "may be as good"
        return hover([*_numbers(row), ("without drafts", without)], clean(row.policy))

    fig.add_traces(lines(drawn, "time_s", "gpu_seconds", "policy", style, text))
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
    words = "%{hovertext}: %{x:.3g} s, %{y:,.4g} GPU-seconds<extra></extra>"
    beaten: dict[str, Any] = {"mode": "markers", "hovertemplate": words, "showlegend": False}

    def style(way: Any, _: pd.DataFrame) -> dict[str, Any]:
        name, colour, symbol = WAYS[way]
        return {"name": name, **_look(colour, symbol, size=9, shape="hv")}

    def pale(way: Any, rows: pd.DataFrame) -> dict[str, Any]:
        _, colour, symbol = WAYS[way]
        marker = {"symbol": symbol, "size": 6, "color": colour, "opacity": 0.35}
        return {"marker": marker, "hovertext": rows["policy"].map(clean)}

    def text(row: Any) -> str:
        return hover(_numbers(row), f"{clean(row.policy)}, {WAYS[row.learning][0]}")

    x, y, by = "time_s", "gpu_seconds", "learning"
    for way in WAYS:
        rows = results[results["learning"] == way]
        off = lines(rows[~rows["on_front"]], x, y, by, pale, **beaten)
        fig.add_traces([*lines(rows[rows["on_front"]], x, y, by, style, text), *off])
    fig.update_xaxes(title="time of the step (s)")
    fig.update_yaxes(title="cost (GPU-seconds)", rangemode="tozero")
    step = int(front.table["step"].iloc[0])
    return styled(fig, LEARNING, f"step {step}; pale marks are beaten by another policy or time weight")


def _look(colour: str, symbol: str, *, size: int, shape: str = "linear") -> dict[str, Any]:
    """Return line and marker of a front."""
    return {
        "line": {"color": colour, "width": 1.5, "shape": shape}, "marker": {"symbol": symbol, "size": size, "color": colour},
    }  # fmt: skip


def _numbers(row: Any) -> list[tuple[str, str]]:
    """Return what hover texts say of every plan."""
    return [("time", number(row.time_s, "s")), ("cost", number(row.gpu_seconds, "GPU-seconds")),
            ("actors", f"{row.actors:g}"), ("time weight", f"{row.time_weight:g}")]  # fmt: skip
