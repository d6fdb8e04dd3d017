"""Plots the time of a step by the cut that is made: the share of the batch at which, and the number of actors that continue.

Input is the result of ``choose_cut``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import VERMILLION
from rlhfless.plots.style import counted, hover, message_figure, styled
from rlhfless.plots.tables import figure_of
from solver.stage_fusion.cut import CutPlan

TITLE = "Time of a step, by when actors are released and how many continue"
SCALE = ((0.0, "rgba(0,114,178,1.0)"), (1.0, "rgba(0,114,178,0.08)"))
"""The fastest step is the darkest."""


class _Data(NamedTuple):
    """Data of ``plot_cut_surface``.

    Attributes:
        table: one row per cut with preparation in the chosen place: ``share, keep, time_s, exact``. ``time_s`` is that of the
            whole step where it was followed (``exact``), else a lower bound on it; NaN where the kept actors have no room.
        chosen: share and actors of the chosen cut; None: no cut.
        uncut_s: time of the step without a cut.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    chosen: tuple[float, int] | None
    uncut_s: float
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the cuts."""
        return self.table


def _data(cut: CutPlan) -> _Data:
    """Return the data of ``plot_cut_surface``."""
    rows = []
    for one in cut.candidates:
        if one.share and one.place == cut.place:
            exact = not np.isnan(one.time_s)
            time_s = one.time_s if exact else one.time_bound_s
            rows.append((one.share, one.keep, time_s if np.isfinite(time_s) else np.nan, exact))
    table = pd.DataFrame(rows, columns=["share", "keep", "time_s", "exact"])
    chosen = (cut.share, cut.keep) if cut.share else None
    return _Data(table, chosen, cut.uncut.time_s, "" if rows else "No release was tried, so there is nothing to compare.")


def plot_cut_surface(cut: CutPlan) -> DataFigure:
    """Plot the time of the whole step over the share of the batch at which actors are cut and the number that continue.

    Returns:
        A figure with the chosen cut marked; where no cut was looked at one that says so.

    Example:
        >>> from rlhfless.plots import plot_cut_surface
        >>> from solver.stage_fusion.cut import choose_cut
        >>> figure = plot_cut_surface(choose_cut(plan, problem, work, followed=None))
    """
    info = _data(cut)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    times, exact = (info.table.pivot(index="keep", columns="share", values=name) for name in ("time_s", "exact"))
    texts = [
        [
            hover(
                [("step", "no room" if np.isnan(times.loc[keep, share]) else
                  f"{'' if exact.loc[keep, share] else 'at least '}{times.loc[keep, share]:.2f} s")],
                f"{counted(keep, 'actor')} continue with the last {share:.0%} of the responses",
            )
            for share in times.columns
        ]
        for keep in times.index
    ]  # fmt: skip
    shares, keeps = [float(share) for share in times.columns], [int(keep) for keep in times.index]
    fig = figure_of(info.to_frame())
    fig.add_trace(
        go.Heatmap(
            x=shares, y=keeps, z=times.to_numpy(), colorscale=SCALE, hovertext=texts,
            hovertemplate="%{hovertext}<extra></extra>", colorbar={"title": "step (s)"}, xgap=2, ygap=2,
        )
    )  # fmt: skip
    if info.chosen is not None:
        fig.add_scatter(
            x=[info.chosen[0]], y=[info.chosen[1]], mode="markers", name="chosen", showlegend=False,
            marker={"symbol": "star", "size": 16, "color": VERMILLION, "line": {"color": "white", "width": 1}},
            hovertemplate="chosen<extra></extra>",
        )  # fmt: skip
    fig.update_xaxes(
        title="responses that are unfinished when the others are released", type="category", tickmode="array", tickvals=shares,
        ticktext=[f"{share:.0%}" for share in shares],
    )  # fmt: skip
    fig.update_yaxes(title="actors that continue", type="category")
    bounds = "" if info.table["exact"].all() else " Where a time was not simulated to its end, it is a lower bound."
    choice = "No release is chosen." if info.chosen is None else "The star is chosen."
    return styled(fig, TITLE, f"Without a release the step takes {info.uncut_s:.2f} s. {choice}{bounds}", height=380)
