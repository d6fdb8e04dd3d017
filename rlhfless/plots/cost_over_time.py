"""Plots what a run costs while it runs: cost so far, and the idle share of each step's allocated GPUs, over the run's time.

Input is a table of steps; the rows of a running step show how both grow within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from rlhfless.plots.clock import with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, VERMILLION
from rlhfless.plots.style import counted, hover, is_dark, message_figure, number, styled, titles, usd
from rlhfless.plots.training_curves import MOST_POINTS, ROUNDING

TITLE = "Cost so far and idle share"
MOST_MARKERS = 100
NO_META: Mapping[str, Any] = MappingProxyType({})


class _Data(NamedTuple):
    """Data of ``plot_cost_over_time``.

    Attributes:
        table: ``step, end_s, complete``; ``gpu_seconds, usd`` of the run until then, dollars NaN where a price is unknown;
            ``idle_share`` of the step's allocated GPU-seconds until then, NaN without any.
        start_s: when the first of these steps started.
        unit: of the cost: ``USD`` where every price is known, else ``GPU-seconds``.
    """

    table: pd.DataFrame
    start_s: float = 0.0
    unit: str = "GPU-seconds"

    @property
    def cost(self) -> pd.Series:
        """Return the cost so far in ``unit``."""
        return self.table["usd" if self.unit == "USD" else "gpu_seconds"]


def _data(steps: pd.DataFrame) -> _Data:
    """Return the data of ``plot_cost_over_time`` of at least one step; for the argument see there."""
    complete = steps["complete"].to_numpy(dtype=bool)
    earlier = {
        name: np.concatenate([[0.0], np.cumsum(np.where(complete, steps[name].to_numpy(dtype=float), 0.0))[:-1]])
        for name in ("gpu_seconds", "cost_usd")
    }
    share = (steps["idle_gpu_seconds"] / steps["gpu_seconds"].where(steps["gpu_seconds"] > 0)).to_numpy(dtype=float)
    table = pd.DataFrame(
        {
            "step": steps["step"].to_numpy(dtype=int),
            "end_s": steps["end_s"].to_numpy(dtype=float),
            "complete": complete,
            "gpu_seconds": earlier["gpu_seconds"] + steps["gpu_seconds"].to_numpy(dtype=float),
            "usd": earlier["cost_usd"] + steps["cost_usd"].to_numpy(dtype=float),
            "idle_share": np.where(np.abs(share) < ROUNDING, 0.0, share),
        }
    )
    unit = "USD" if (steps["cost_usd"] > 0).all() else "GPU-seconds"
    return _Data(table, float(steps["start_s"].iloc[0]), unit)


def plot_cost_over_time(steps: pd.DataFrame, meta: Mapping[str, Any] = NO_META) -> DataFigure:
    """Plot the cost so far and the idle share of each step over the run's time.

    Args:
        steps: rows of ``LiveRun.costs`` in order: ``step, start_s, end_s, gpu_seconds, idle_gpu_seconds, cost_usd, complete``,
            of each complete step one, then of a running step any number, each with its sums until ``end_s``. ``cost_usd`` is
            NaN, or 0, where a price is unknown; then all costs are in GPU-seconds.
        meta: of the run's trace: the subtitle says its clock and profile.

    Returns:
        A figure; without steps one that says so.
    """
    if steps.empty:
        return message_figure(TITLE, "Nothing has been paid for yet.")
    info = _data(steps)
    fig = DataFigure(_cost(info, meta))
    fig.table = info.table
    return fig


def growing_cost(steps: pd.DataFrame, meta: Mapping[str, Any] = NO_META) -> dict[str, Any]:
    """Return ``plot_cost_over_time`` of at least one step as plotly's JSON, with at most ``MOST_POINTS`` points on a line."""
    return _cost(_data(steps), meta)


def _cost(info: _Data, meta: Mapping[str, Any]) -> dict[str, Any]:
    drawn = np.unique(np.linspace(0, len(info.table) - 1, min(MOST_POINTS, len(info.table))).round().astype(int))
    table, cost = info.table.iloc[drawn], info.cost.iloc[drawn]
    points = table[["step", "complete", "end_s", "gpu_seconds", "usd", "idle_share"]].itertuples(index=False)
    texts = [_text(*(None if value != value else value for value in point)) for point in points]  # NaN is no key of a cache
    filled = table["complete"].to_numpy()
    so_far = pd.DataFrame({"end_s": [info.start_s, *table["end_s"]], "cost": [0.0, *cost]})
    mode = "lines+markers" if len(table) <= MOST_MARKERS else "lines"
    same: dict[str, Any] = {"mode": mode, "showlegend": False, "hoverinfo": "text"}
    data = [
        line(
            so_far, "end_s", "cost", name="cost so far", line={"color": BLUE}, hovertext=[hover([], "start"), *texts],
            marker={"symbol": ["circle-open", *np.where(filled, "circle", "circle-open").tolist()], "size": 7},
            xaxis="x", yaxis="y", **same,
        ),
        line(
            table, "end_s", "idle_share", name="idle share", line={"color": VERMILLION, "dash": "dash"}, hovertext=texts,
            marker={"symbol": np.where(filled, "triangle-up", "triangle-up-open").tolist(), "size": 8}, cliponaxis=False,
            xaxis="x2", yaxis="y2", **same,
        ),
    ]  # fmt: skip
    highest = info.table["idle_share"].max()
    top = 1.0 if np.isnan(highest) or highest <= 0 else min(1.05, 1.25 * highest)
    complete = int(info.table["complete"].sum())
    running = "" if info.table["complete"].all() else f", step {info.table['step'].iloc[-1]} so far (open markers)"
    spent = usd(info.cost.iloc[-1]) if info.unit == "USD" else number(info.cost.iloc[-1], "GPU-seconds", digits=4)
    below = with_clock(f"{spent}: {counted(complete, 'complete step')}{running}", meta)
    text, further = titles(TITLE, below)
    layout = _layout(info.unit, further, is_dark())
    return {
        "data": data,
        "layout": {
            **layout, "title": {**layout["title"], "text": text}, "yaxis2": {**layout["yaxis2"], "range": [0, float(top)]},
        },
    }  # fmt: skip


@lru_cache(maxsize=4 * MOST_POINTS)
def _text(
    step: int, complete: bool, end_s: float, gpu_seconds: float, usd_so_far: float | None, idle_share: float | None
) -> str:
    """Return the hover text of a point, which stays the same while later ones are added."""
    dollars = "" if usd_so_far is None else usd(usd_so_far)
    return hover(
        [
            ("cost so far", ", ".join(filter(None, [dollars, number(gpu_seconds, "GPU-seconds")]))),
            ("idle share of the step", "unknown" if idle_share is None else f"{idle_share:.1%}"),
            ("time", number(end_s, "s")),
        ],
        f"step {step}, {'complete' if complete else 'so far'}",
    )


@lru_cache(maxsize=16)
def _layout(unit: str, further: int, dark: bool) -> dict[str, Any]:
    """Return the layout; its title is replaced, and so is the range of the idle share.

    Args:
        further: pixels of the subtitle's lines after the first.
    """
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.55, 0.45])
    fig.update_yaxes(title=f"cost ({unit})", rangemode="tozero", row=1, col=1)
    fig.update_yaxes(title="idle share", tickformat="~p", range=[0, 1], row=2, col=1)
    fig.update_xaxes(title="time of the run (s)", row=2, col=1)
    styled(fig, TITLE, "<br>".join(["."] * (1 + further // 15)), height=420)
    return fig.layout.to_plotly_json()  # type: ignore[no-any-return]
