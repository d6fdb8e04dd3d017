"""Plots the time of a step by the cut that is made: the share of the batch at which, and the number of actors that continue.

Input is the result of ``choose_cut``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.heatmap import heatmap
from rlhfless.plots.lines import line
from rlhfless.plots.palette import VERMILLION
from rlhfless.plots.style import counted, hover, message_figure, styled
from rlhfless.plots.tables import figure_of
from solver.step.cut import CutPlan

TITLE = "Time of a step, by when actors are released and how many continue"
SCALE = ((0.0, "rgba(0,114,178,1.0)"), (1.0, "rgba(0,114,178,0.08)"))
"""The fastest step is the darkest."""


def plot_cut_surface(cut: CutPlan) -> DataFigure:
    """Plot the time of the whole step over the share of the batch at which actors are cut and the number that continue.

    Returns:
        A figure with the chosen cut marked, whose table has ``share, keep, time_s, exact`` (else ``time_s`` is a lower bound);
        where no cut was looked at one that says so.

    Example:
        >>> from rlhfless.plots import plot_cut_surface
        >>> from solver.step.cut import choose_cut
        >>> figure = plot_cut_surface(choose_cut(plan, problem, work, followed=None))
    """
    table = _times(cut)
    if table.empty:
        return message_figure(TITLE, "No release was tried, so there is nothing to compare.", table)

    def text(row: Any) -> str:
        time = "no room" if np.isnan(row.time_s) else f"{'' if row.exact else 'at least '}{row.time_s:.2f} s"
        return hover([("step", time)], f"{counted(row.keep, 'actor')} continue with the last {row.share:.0%} of the responses")

    fig = figure_of(table)
    gaps = {"colorbar": {"title": "step (s)"}, "xgap": 2, "ygap": 2}
    fig.add_trace(heatmap(table, "share", "keep", "time_s", text, colorscale=SCALE, **gaps))
    shares = sorted(table["share"].unique().tolist())
    if cut.share:
        chosen = table[(table["share"] == cut.share) & (table["keep"] == cut.keep)]
        star = {"symbol": "star", "size": 16, "color": VERMILLION, "line": {"color": "white", "width": 1}}
        words: dict[str, Any] = {"name": "chosen", "showlegend": False, "hovertemplate": "chosen<extra></extra>"}
        fig.add_trace(line(chosen, "share", "keep", mode="markers", marker=star, **words))
    fig.update_xaxes(
        title="responses that are unfinished when the others are released", type="category", tickmode="array", tickvals=shares,
        ticktext=[f"{share:.0%}" for share in shares],
    )  # fmt: skip
    fig.update_yaxes(title="actors that continue", type="category")
    bounds = "" if table["exact"].all() else " Where a time was not simulated to its end, it is a lower bound."
    choice = "The star is chosen." if cut.share else "No release is chosen."
    return styled(fig, TITLE, f"Without a release the step takes {cut.uncut.time_s:.2f} s. {choice}{bounds}", height=380)


def _times(cut: CutPlan) -> pd.DataFrame:
    """Return a row per cut with preparation in the chosen place: ``share, keep, time_s, exact``.

    ``time_s`` is that of the whole step where it was followed (``exact``), else a lower bound on it; NaN where the kept actors
    have no room.
    """
    rows = []
    for one in cut.candidates:
        if one.share and one.place == cut.place:
            exact = not np.isnan(one.time_s)
            time_s = one.time_s if exact else one.time_bound_s
            rows.append((one.share, one.keep, time_s if np.isfinite(time_s) else np.nan, exact))
    return pd.DataFrame(rows, columns=["share", "keep", "time_s", "exact"])
