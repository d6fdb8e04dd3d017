"""Plots the prefill tokens of plans, before and after prompts are computed once for several responses.

Input are the results of deduplicating each plan's prefill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.plots.bars import bars, hatched
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, IDLE
from rlhfless.plots.style import clean, counted, hover, legend_below, message_figure, number, styled
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from solver.prefix_sharing.deduplicate import Deduplication

TITLE = "Prefill tokens before and after deduplication"


def plot_prefill(deduplications: Mapping[Any, Deduplication], once: int) -> DataFigure:
    """Plot the prompt tokens that the actors of each plan compute, before and after deduplication.

    Args:
        deduplications: name of a plan to its deduplication. once: tokens of all prompts, each once, which is the minimum.

    Returns:
        A figure, whose table has ``plan, actors, before_tokens, after_tokens, how``, ``makespan_s, gpu_seconds`` (after) and
        ``once_tokens``; without plans one that says so.
    """
    rows = [
        (str(name), len(d.plan.actors), d.tokens_before, d.tokens_after, d.how, d.plan.makespan_s, d.plan.gpu_seconds)
        for name, d in deduplications.items()
    ]
    columns = ["plan", "actors", "before_tokens", "after_tokens", "how", "makespan_s", "gpu_seconds"]
    table = pd.DataFrame(rows, columns=columns).assign(once_tokens=int(once))
    if table.empty:
        return message_figure(TITLE, "There are no plans to show.", table)
    names = [f"{clean(row.plan)}<br>{counted(row.actors, 'actor')}" for row in table.itertuples()]
    texts = [
        hover(
            [("before", number(row.before_tokens, "tokens")), ("after", number(row.after_tokens, "tokens")),
             ("how", clean(row.how)),
             ("plan after", f"{number(row.makespan_s, 's')}, {number(row.gpu_seconds, 'GPU-seconds')}")],
            clean(row.plan),
        )
        for row in table.itertuples()
    ]  # fmt: skip
    parts = {
        "before_tokens": {"name": "before: every response computes its whole prompt", "marker": hatched(IDLE, "/")},
        "after_tokens": {"name": "after: a shared prefix is computed once", "marker": hatched(BLUE)},
    }
    fig = figure_of(table)
    fig.add_traces(bars(table, names, parts, hovertext=texts, texttemplate="%{x:,}"))
    fig.add_vline(
        x=once,
        line={"color": BOUND, "dash": "dash", "width": 2},
        annotation_text=f"every prompt once: {once:,} tokens",
        annotation_position="top",
    )
    fig.update_yaxes(autorange="reversed")
    fig.update_xaxes(title="prompt tokens that are prefilled", rangemode="tozero")
    inner, above, below = 44 + 46 * len(table), 96, 110
    styled(fig, TITLE, height=inner + above + below, legend=legend_below(inner))
    fig.update_layout(margin={"t": above, "b": below})
    return fig
