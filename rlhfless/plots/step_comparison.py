"""Plots what plans of the same step take: the period as a multiple of the lower bound, split by what GPUs do.

Input is step plans by label, of the same graph, cluster and costs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from rlhfless.analysis.step_plans import compare_step_plans
from rlhfless.plots.bars import bars, hatched
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, IDLE, ORANGE, OUTLINE
from rlhfless.plots.step_plan_data import NONE, by_label
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from rlhfless.plots.step_plan_data import Plans

TITLE = "Seconds per step, beside the lower bound"
PARTS = {"calls": (BLUE, ""), "reallocation": (ORANGE, "/"), "idle": (IDLE, "")}
NAMES = {"calls": "model calls", "reallocation": "sending weights", "idle": "idle"}
LITTLE = 1e-9  # share of a step that is rounding
BAR_PX = 34


def plot_step_comparison(plans: Plans) -> DataFigure:
    """Plot the period of each plan as a multiple of the lower bound, split into calls, reallocation and idle GPU-seconds.

    Args:
        plans: of the same graph, cluster and costs, by label; at least one has a proven bound.

    Returns:
        A figure, whose table has the columns of ``compare_step_plans``, and ``calls, reallocation, idle``: the GPU-seconds of a
        period by what they are for, as multiples of all GPUs times the bound. They add up to ``period_s / bound_s``. Without
        plans or bound one that says so.
    """
    labelled = by_label(plans)
    table = compare_step_plans(labelled)
    bound_gpu_s = table["bound_s"] * [plan.gpus for plan in labelled.values()]
    table = table.assign(**{part: table[f"{part}_gpu_s"] / bound_gpu_s for part in PARTS})
    if table.empty:
        return message_figure(TITLE, NONE, table)
    unproven = table.loc[table["bound_s"].isna(), "plan"]
    if len(unproven):
        return message_figure(TITLE, f"No lower bound is proven for {clean(unproven.iloc[0])}.", table)
    names = [clean(plan, 30) for plan in table["plan"]]
    parts = {
        part: {
            "name": NAMES[part], "marker": {**hatched(colour, hatch, size=6), "line": {"color": OUTLINE, "width": 0.5}},
            "hovertext": [hover(_lines(row, part), clean(row["plan"])) for _, row in table.iterrows()],
        }
        for part, (colour, hatch) in PARTS.items()
    }  # fmt: skip
    fig = figure_of(table)
    fig.add_traces(bars(table, names, parts, width=0.62))
    multiples = table["period_s"] / table["bound_s"]
    for name, multiple, period_s in zip(names, multiples, table["period_s"], strict=True):
        fig.add_annotation(
            x=multiple,
            y=name,
            xanchor="left",
            xshift=5,
            showarrow=False,
            text=f"<b>{multiple:.2f}</b> ({number(period_s, 's')})",
        )
    fig.add_vline(x=1.0, line={"color": BOUND, "dash": "dash", "width": 1.5})
    fig.update_xaxes(title="time of a step / lower bound", range=[0, 1.45 * max(1.0, float(multiples.max()))])
    fig.update_yaxes(autorange="reversed", showgrid=False)
    fig.update_layout(barmode="stack")
    below = {"orientation": "h", "x": 0, "xanchor": "left", "y": -54 / (BAR_PX * len(table)), "yanchor": "top"}
    return styled(fig, _title(table), _note(table), height=180 + BAR_PX * len(table), legend=below, margin={"b": 92, "t": 82})


def _lines(row: pd.Series, part: str) -> list[tuple[str, str]]:
    share = row[part] * row["bound_s"] / row["period_s"] if row["period_s"] else math.nan
    return [
        ("seconds per step", number(row["period_s"], "s")),
        (NAMES[part], f"{number(row[f'{part}_gpu_s'] if share > LITTLE else 0.0, 'GPU-seconds')}, {share:.1%}"),
        ("lower bound", number(row["bound_s"], "s")),
    ]


def _title(table: pd.DataFrame) -> str:
    best = table.loc[table["period_s"].idxmin()]
    name = clean(best["plan"], 30)
    if len(table) == 1:
        return f"A step takes {best['period_s'] / best['bound_s']:.2f} times the lower bound"
    return f"Fastest: {name}, {best['period_s'] / best['bound_s']:.2f} times the lower bound"


def _note(table: pd.DataFrame) -> str:
    bounds = table["bound_s"].unique()
    known = f" no plan takes less than {number(bounds[0], 's')} per step" if len(bounds) == 1 else " the lower bound"
    over = clean(", ".join(table.loc[table["status"] == "infeasible", "plan"]))
    return f"dashed:{known}" + (f"<br>does not fit into memory: {over}" if over else "")
