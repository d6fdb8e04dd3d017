"""Plots how searches for a step plan progress: the shortest period so far by the number of plans that were judged.

Input is step plans by label, of the same graph, cluster and costs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rlhfless.analysis.step_plans import compare_step_plans
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BOUND, policy_styles
from rlhfless.plots.step_plan_data import by_label
from rlhfless.plots.style import clean, legend_below, message_figure, number, styled
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from rlhfless.plots.step_plan_data import Plans

TITLE = "Shortest step found by each search"


class _Data(NamedTuple):
    """Data of ``plot_step_search``.

    Attributes:
        history: one row per improvement: ``plan, evaluated, period_s``. ``evaluated`` counts plans whose times were computed.
        bound_s: no plan has a shorter period; NaN where none is proven, or where plans are of different problems.
        missing: why there is nothing to show, or the empty text.
    """

    history: pd.DataFrame
    bound_s: float
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the improvements."""
        return self.history


def _data(plans: Plans) -> _Data:
    """Return the data of ``plot_step_search``."""
    labelled = by_label(plans)
    rows = [(label, *line) for label, plan in labelled.items() for line in plan.history]
    history = pd.DataFrame(rows, columns=["plan", "evaluated", "period_s"])
    bounds = compare_step_plans(labelled)["bound_s"].unique()
    bound_s = float(bounds[0]) if len(bounds) == 1 else math.nan
    return _Data(history, bound_s, "" if rows else "No plan has a history: none was searched for.")


def plot_step_search(plans: Plans) -> DataFigure:
    """Plot the shortest period that each search had found by the number of plans that it had judged, above the lower bound.

    Args:
        plans: of the same graph, cluster and costs, by label. Plans without a history (rules) are left out.

    Returns:
        A figure; without a history one that says so.
    """
    info = _data(plans)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    names = list(dict.fromkeys(info.history["plan"]))
    styles = policy_styles(names)
    for name in names:
        rows = info.history[info.history["plan"] == name]
        fig.add_scatter(
            x=rows["evaluated"], y=rows["period_s"], mode="lines+markers", name=clean(name, 30),
            line={"shape": "hv", "color": styles[name].colour, "width": 2},
            marker={"symbol": styles[name].symbol, "size": 8, "color": styles[name].colour},
            hovertemplate=f"<b>{clean(name)}</b><br>%{{x:,}} plans computed<br>%{{y:.4g}} s per step<extra></extra>",
        )  # fmt: skip
    known = info.bound_s == info.bound_s
    if known:
        fig.add_hline(y=info.bound_s, line={"color": BOUND, "dash": "dash", "width": 1.5})
    fig.update_xaxes(title="plans whose times were computed", type="log", dtick="D2")
    least, most = info.history["period_s"].min(), info.history["period_s"].max()
    least = min(least, info.bound_s) if known else least
    room = 0.06 * max(most - least, 0.02 * most)
    fig.update_yaxes(title="seconds per step", range=[least - room, most + room])
    ends = "a line ends where its search improved last"
    bound = f"<br>dashed: lower bound, {number(info.bound_s, 's', 4)}" if known else ""
    inner, above, below = 238, 82, 110
    legend, margin = legend_below(inner), {"t": above, "b": below}
    return styled(fig, TITLE, ends + bound, height=inner + above + below, legend=legend, showlegend=True, margin=margin)
