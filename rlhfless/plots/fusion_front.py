"""Plots time-cost fronts of a step that is learned from after generation, and while others decode, above the lower bound.

Input is what ``rlhfless.simulate.fusion_front`` returns: results of one step at several time weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, VERMILLION
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from rlhfless.simulate import Comparison

TITLE = "Time and cost of a step that learns after generation, or during it"
COLUMNS = ["policy", "learning", "time_weight", "actors", "time_s", "gpu_seconds", "bound_gpu_seconds", "on_front"]
STYLES = {
    "batch": ("learns after generation", BLUE, "circle"),
    "stream": ("learns while others decode", VERMILLION, "diamond"),
}


class _Data(NamedTuple):
    """Data of ``plot_fusion_front``.

    Attributes:
        table: one row per policy, way to learn and time weight: ``COLUMNS``.
        bound: ``time_s, gpu_seconds``; NaN where no policy is that fast.
        step: of the log.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    bound: pd.DataFrame
    step: int
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return results and bound below each other."""
        return stacked(results=self.table, bound=self.bound)


def _data(front: Comparison) -> _Data:
    """Return the data of ``plot_fusion_front``.

    Args:
        front: of ``rlhfless.simulate.fusion_front``.
    """
    missing = "" if len(front.table) else "There are no results: no policy has run the step."
    (curve,) = front.curves.values()
    step = 0 if missing else int(front.table["step"].iloc[0])
    return _Data(front.table[COLUMNS], curve.replace([np.inf, -np.inf], np.nan), step, missing)


def plot_fusion_front(front: Comparison) -> DataFigure:
    """Plot the front of each way to learn in the time-cost plane, above the lower bound; further to the lower left is better.

    Args:
        front: of ``rlhfless.simulate.fusion_front``.

    Returns:
        A figure; without a result one that says so.
    """
    info = _data(front)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    fig.add_scatter(
        x=info.bound["time_s"], y=info.bound["gpu_seconds"], mode="lines", name="lower bound of any schedule",
        line={"color": BOUND, "width": 2, "dash": "dash"},
        hovertemplate="in %{x:.3g} s at least %{y:,.4g} GPU-seconds<extra></extra>",
    )  # fmt: skip
    for learning, (name, colour, symbol) in STYLES.items():
        rows = info.table[info.table["learning"] == learning]
        shown = rows[rows["on_front"]]
        texts = [
            hover(
                [("time", number(row.time_s, "s")), ("cost", number(row.gpu_seconds, "GPU-seconds")),
                 ("actors", f"{row.actors:g}"), ("time weight", f"{row.time_weight:g}")],
                f"{clean(row.policy)}, {name}",
            )
            for row in shown.itertuples()
        ]  # fmt: skip
        fig.add_scatter(
            x=shown["time_s"], y=shown["gpu_seconds"], mode="lines+markers", name=name, hovertext=texts,
            hovertemplate="%{hovertext}<extra></extra>", line={"color": colour, "shape": "hv", "width": 1.5},
            marker={"symbol": symbol, "size": 9, "color": colour},
        )  # fmt: skip
        off = rows[~rows["on_front"]]
        fig.add_scatter(
            x=off["time_s"], y=off["gpu_seconds"], mode="markers", showlegend=False, hovertext=off["policy"].map(clean),
            hovertemplate="%{hovertext}: %{x:.3g} s, %{y:,.4g} GPU-seconds<extra></extra>",
            marker={"symbol": symbol, "size": 6, "color": colour, "opacity": 0.35},
        )  # fmt: skip
    fig.update_xaxes(title="time of the step (s)")
    fig.update_yaxes(title="cost (GPU-seconds)", rangemode="tozero")
    return styled(fig, TITLE, f"step {info.step}; pale marks are beaten by another policy or time weight")
