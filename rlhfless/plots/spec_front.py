"""Plots time-cost fronts of policies with and without drafts, and the lower bounds with and without drafts.

Input is what ``rlhfless.simulate.draft_fronts`` returns: results of one step at several time weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, GREY, policy_styles
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from rlhfless.simulate import Comparison

TITLE = "Time and cost with and without speculative decoding"
BOUNDS = {
    "one_token": ("lower bound without drafts", GREY, "dash"),
    "with_drafts": ("lower bound with these drafts", BLUE, "dot"),
}


class _Data(NamedTuple):
    """Data of ``plot_spec_front``.

    Attributes:
        table: one row per policy and time weight: ``policy, time_weight, actors, time_s, gpu_seconds, on_front,
            below_one_token`` (whether it is below what one token per pass allows in its time).
        bounds: ``time_s, one_token, with_drafts``; NaN where no policy is that fast.
        step: that was simulated. times: which profile its times are of.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    bounds: pd.DataFrame
    step: int
    times: str
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return policies and bounds below each other."""
        return stacked(policies=self.table, bounds=self.bounds)


def _data(fronts: Comparison) -> _Data:
    """Return the data of ``plot_spec_front``.

    Args:
        fronts: of ``rlhfless.simulate.draft_fronts``.
    """
    table = fronts.table[["policy", "time_weight", "actors", "time_s", "gpu_seconds", "on_front"]]
    curves = {name: fronts.curves[name].set_index("time_s")["gpu_seconds"] for name in BOUNDS}
    bounds = pd.DataFrame(curves).reset_index()
    step = int(fronts.table["step"].iloc[0]) if len(table) else 0
    if len(table):
        least = np.interp(table["time_s"], bounds["time_s"], bounds["one_token"])
        table = table.assign(below_one_token=table["gpu_seconds"].to_numpy() < least)
    missing = "" if len(table) else "There are no results: no policy has run the step."
    return _Data(table, bounds.replace([np.inf, -np.inf], np.nan), step, fronts.times, missing)


def plot_spec_front(fronts: Comparison) -> DataFigure:
    """Plot the fronts of policies in the time-cost plane, above the two lower bounds; further to the lower left is better.

    Args:
        fronts: of ``rlhfless.simulate.draft_fronts``.

    Returns:
        A figure; without a result one that says so.
    """
    info = _data(fronts)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    for bound, (name, colour, dash) in BOUNDS.items():
        fig.add_scatter(
            x=info.bounds["time_s"], y=info.bounds[bound], mode="lines", name=name,
            line={"color": colour, "width": 2, "dash": dash},
            hovertemplate="in %{x:.3g} s at least %{y:,.4g} GPU-seconds<extra></extra>",
        )  # fmt: skip
    styles = policy_styles(list(dict.fromkeys(info.table["policy"])))
    for policy, rows in info.table.groupby("policy", sort=False):
        style, shown = styles[policy], rows[rows["on_front"]]
        name = clean(policy)
        texts = [
            hover(
                [("time", number(row.time_s, "s")), ("cost", number(row.gpu_seconds, "GPU-seconds")),
                 ("actors", str(row.actors)), ("time weight", f"{row.time_weight:g}"),
                 ("without drafts", "cannot cost so little in this time" if row.below_one_token else "may be as good")],
                name,
            )
            for row in shown.itertuples()
        ]  # fmt: skip
        fig.add_scatter(
            x=shown["time_s"], y=shown["gpu_seconds"], mode="lines+markers", name=name, hovertext=texts, hoverinfo="text",
            line={"color": style.colour, "width": 1.5}, marker={"symbol": style.symbol, "size": 10, "color": style.colour},
        )  # fmt: skip
    drawn = info.table[info.table["on_front"]]
    fig.update_xaxes(title="time (s)", range=[0, 1.08 * drawn["time_s"].max()])
    low = min(drawn["gpu_seconds"].min(), info.bounds["with_drafts"].min())  # NaN where no bound is finite: then the former
    fig.update_yaxes(
        title="cost (GPU-seconds, logarithmic)", type="log", dtick="D2",
        range=np.log10([0.9 * low, 1.15 * drawn["gpu_seconds"].max()]).tolist(),
    )  # fmt: skip
    note = f"step {info.step}; virtual clock, {clean(info.times)}; each line is one policy at several time weights"
    return styled(fig, TITLE, note, height=520)
