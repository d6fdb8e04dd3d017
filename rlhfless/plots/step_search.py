"""Plots how searches for a step plan progress: the shortest period so far by the number of plans that were judged.

Input is step plans by label, of the same graph, cluster and costs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.analysis.step_plans import compare_step_plans
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines
from rlhfless.plots.palette import BOUND, policy_styles
from rlhfless.plots.step_plan_data import by_label
from rlhfless.plots.style import clean, legend_below, message_figure, number, styled
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from rlhfless.plots.step_plan_data import Plans

TITLE = "Shortest step found by each search"


def plot_step_search(plans: Plans) -> DataFigure:
    """Plot the shortest period that each search had found by the number of plans that it had judged, above the lower bound.

    Args:
        plans: of the same graph, cluster and costs, by label. Plans without a history (rules) are left out.

    Returns:
        A figure, whose table has a row per improvement: ``plan, evaluated`` (plans whose times were computed), ``period_s``;
        without a history one that says so.
    """
    labelled = by_label(plans)
    rows = [(label, *line) for label, plan in labelled.items() for line in plan.history]
    history = pd.DataFrame(rows, columns=["plan", "evaluated", "period_s"])
    if history.empty:
        return message_figure(TITLE, "No plan has a history: none was searched for.", history)
    styles = policy_styles(history["plan"].unique().tolist())

    def style(plan: str, _: pd.DataFrame) -> dict[str, Any]:
        colour, symbol = styles[plan]
        return {
            "name": clean(plan, 30), "line": {"shape": "hv", "color": colour, "width": 2},
            "marker": {"symbol": symbol, "size": 8, "color": colour},
            "hovertemplate": f"<b>{clean(plan)}</b><br>%{{x:,}} plans computed<br>%{{y:.4g}} s per step<extra></extra>",
        }  # fmt: skip

    fig = figure_of(history)
    fig.add_traces(lines(history, "evaluated", "period_s", "plan", style))
    bounds = compare_step_plans(labelled)["bound_s"].unique()  # several where plans are of different problems
    bound_s = float(bounds[0]) if len(bounds) == 1 else math.nan
    known = bound_s == bound_s
    if known:
        fig.add_hline(y=bound_s, line={"color": BOUND, "dash": "dash", "width": 1.5})
    fig.update_xaxes(title="plans whose times were computed", type="log", dtick="D2")
    least, most = history["period_s"].min(), history["period_s"].max()
    least = min(least, bound_s) if known else least
    room = 0.06 * max(most - least, 0.02 * most)
    fig.update_yaxes(title="seconds per step", range=[least - room, most + room])
    ends = "a line ends where its search improved last"
    bound = f"<br>dashed: lower bound, {number(bound_s, 's', 4)}" if known else ""
    inner, above, below = 238, 82, 110
    legend, margin = legend_below(inner), {"t": above, "b": below}
    return styled(fig, TITLE, ends + bound, height=inner + above + below, legend=legend, showlegend=True, margin=margin)
