"""Plots the prefill tokens of plans, before and after prompts are computed once for several responses.

Input are the results of deduplicating each plan's prefill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, BOUND, IDLE
from rlhfless.plots.style import clean, counted, hover, legend_below, message_figure, number, styled
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from solver.prefix_sharing.deduplicate import Deduplication

TITLE = "Prefill tokens before and after deduplication"


class _Data(NamedTuple):
    """Data of ``plot_prefill``: plans by name.

    Attributes:
        table: ``plan, actors, before, after`` (tokens), ``how, makespan_s, gpu_seconds`` (after).
        once: tokens of all prompts, each computed once.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    once: int
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``table`` with the tokens of all prompts, ``once_tokens``."""
        return self.table.rename(columns={"before": "before_tokens", "after": "after_tokens"}).assign(once_tokens=self.once)


def _data(deduplications: Mapping[Any, Deduplication], once: int) -> _Data:
    """Return the data of ``plot_prefill``."""
    rows = [
        (str(name), len(d.plan.actors), d.tokens_before, d.tokens_after, d.how, d.plan.makespan_s, d.plan.gpu_seconds)
        for name, d in deduplications.items()
    ]
    columns = ["plan", "actors", "before", "after", "how", "makespan_s", "gpu_seconds"]
    return _Data(pd.DataFrame(rows, columns=columns), int(once), "" if rows else "There are no plans to show.")


def plot_prefill(deduplications: Mapping[Any, Deduplication], once: int) -> DataFigure:
    """Plot the prompt tokens that the actors of each plan compute, before and after deduplication.

    Args:
        deduplications: name of a plan to its deduplication. once: tokens of all prompts, each once, which is the minimum.

    Returns:
        A figure; without plans one that says so.
    """
    info = _data(deduplications, once)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    table = info.table
    names = [f"{clean(row.plan)}<br>{counted(row.actors, 'actor')}" for row in table.itertuples()]
    texts = [
        hover(
            [("before", number(row.before, "tokens")), ("after", number(row.after, "tokens")), ("how", clean(row.how)),
             ("plan after", f"{number(row.makespan_s, 's')}, {number(row.gpu_seconds, 'GPU-seconds')}")],
            clean(row.plan),
        )
        for row in table.itertuples()
    ]  # fmt: skip
    fig = figure_of(info.to_frame())
    for column, name, colour, hatch in (
        ("before", "before: every response computes its whole prompt", IDLE, "/"),
        ("after", "after: a shared prefix is computed once", BLUE, ""),
    ):
        fig.add_bar(
            x=table[column], y=names, orientation="h", name=name, hovertext=texts, hoverinfo="text", text=table[column],
            texttemplate="%{x:,}",
            marker={"color": colour, "pattern": {"shape": hatch, "size": 5, "fgopacity": 0.4}},
        )  # fmt: skip
    fig.add_vline(
        x=info.once,
        line={"color": BOUND, "dash": "dash", "width": 2},
        annotation_text=f"every prompt once: {info.once:,} tokens",
        annotation_position="top",
    )
    fig.update_yaxes(autorange="reversed")
    fig.update_xaxes(title="prompt tokens that are prefilled", rangemode="tozero")
    inner, above, below = 44 + 46 * len(table), 96, 110
    styled(fig, TITLE, height=inner + above + below, legend=legend_below(inner))
    fig.update_layout(margin={"t": above, "b": below})
    return fig
