"""Plots a training run by step: rewards, response length, actors, idle share, mismatch, cost against the static schedule.

Input is a run: a trainer, its folder or trace, or a table with one row per step. Only the table of a ``LiveRun`` has the cost
under the static schedule.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from rlhfless.errors import InputError
from rlhfless.plots.clock import clock_of_results, clock_words
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import NO_TRACE
from rlhfless.plots.learning import plot_learning
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION
from rlhfless.plots.style import counted, is_dark, message_figure, number, styled, titles, whole_steps
from rlhfless.trace import Trace, read_trace, step_table
from solver.model.errors import as_given

TITLE = "Progress of the run"
CURVES = (
    ("reward_mean", "mean reward", BLUE, "circle", "solid"),
    ("eval_accuracy", "held-out accuracy", PURPLE, "diamond-open", "solid"),
    ("eval_reward_mean", "held-out reward", PURPLE, "circle-open", "dot"),
    ("response_tokens_mean", "mean length (tokens)", ORANGE, "square", "solid"),
    ("actors", "actors", GREEN, "diamond", "dot"),
    ("idle_share", "idle share of the GPU-seconds", VERMILLION, "triangle-up", "dash"),
    ("learn_mismatch_mean", "mismatch of engine and learner (nats per token)", BLUE, "x", "dash"),
    ("against_static", "GPU-seconds of generation, static = 1", SKY, "star", "solid"),
)
SHARES = {
    "idle_share": ("idle_gpu_seconds", "gpu_seconds"),
    "against_static": ("generation_gpu_seconds", "static_gpu_seconds"),
}
"""Curves that are shares, by name: columns of the part and of the whole."""

MOST_NAMED = 12  # columns in a message
MOST_POINTS = 200  # on a curve
ROUNDING = 1e-9  # shares below it are sums that were rounded, and an axis of 1e-17 says nothing


def _table_of(run: Any) -> pd.DataFrame:
    """Return one row per step of what ``plot_curves`` takes."""
    if run is None:
        raise InputError(f"plot_curves: {NO_TRACE}; plot_curves(trainer) draws its steps")
    if isinstance(run, str | Path):
        run = pd.read_json(run, lines=True) if Path(run).suffix == ".jsonl" else read_trace(run)
    table = step_table(run) if isinstance(run, Trace) else getattr(run, "table", run)
    if not isinstance(table, pd.DataFrame):
        raise InputError(
            f"plot_curves got {as_given(run)}; a Trainer, the folder of a run, its Trace, or a table of its steps is needed"
        )
    return table


def _known(steps: pd.DataFrame) -> pd.DataFrame:
    """Return ``step`` and the curves that a table of steps has.

    Raises:
        InputError: it has none.
    """
    _refuse_other_tables(steps)
    table = steps.copy()
    for name, (part, whole) in SHARES.items():
        if {part, whole} <= set(table):
            share = table[part].astype(float) / table[whole].astype(float).where(table[whole] > 0)
            table[name] = share.where(share.isna() | (share.abs() > ROUNDING), 0.0)
    curves = [name for name, *_ in CURVES if name in table and table[name].notna().any()]
    return table[["step", *curves]].astype(float).reset_index(drop=True)


def _refuse_other_tables(steps: pd.DataFrame) -> None:
    """Refuse a table that has nothing to draw (an InputError)."""
    known = [name for name, *_ in CURVES] + [name for pair in SHARES.values() for name in pair]
    if "step" not in steps or not set(known) & set(steps):
        has = ", ".join(map(str, steps.columns[:MOST_NAMED])) + (", ..." if len(steps.columns) > MOST_NAMED else "")
        raise InputError(f"the table has the columns {has}; plot_curves draws step with any of {', '.join(known)}")


def plot_curves(run: pd.DataFrame | Trace | str | Path | Any) -> DataFigure:
    """Plot one curve per number, stacked, over the steps; unknown numbers have no curve.

    Args:
        run: a ``Trainer``, also after training (``plot_curves(trainer)``), the folder of a run, its ``Trace``, its
            ``metrics.jsonl``, or a table with one row per step, such as ``Trainer.table`` and ``LiveRun.table``; or a list
            of runs of several seeds, as in ``data/learning/curves.json``: of these, means over seeds and held-out accuracies.

    Returns:
        A figure, with at most ``MOST_POINTS`` points on a curve, whose table has ``step`` and the known columns of ``CURVES``;
        that of several seeds has the parts ``steps``, ``means`` and ``accuracies``. Without steps one that says so.

    Raises:
        InputError: it is no run, or the table has none of these columns.
        TraceError: the folder holds no trace, or one of several runs.
    """
    if isinstance(run, list | tuple):
        return plot_learning(run)
    table = _table_of(run)
    if table.empty:
        return message_figure(TITLE, "No step is complete yet.", table)
    known = _known(table)
    fig = DataFigure(_curves(known))
    fig.table = known
    return fig


def growing_curves(steps: pd.DataFrame) -> dict[str, Any]:
    """Return ``plot_curves`` of at least one step as plotly's JSON. Plotly makes the layout once for every set of curves."""
    return _curves(_known(steps))


def _curves(table: pd.DataFrame) -> dict[str, Any]:
    """Return the curves of a table of ``_known``. Where shares of GPU-seconds are drawn, the subtitle says their clock."""
    shown = [curve for curve in CURVES if curve[0] in table]
    drawn = np.unique(np.linspace(0, len(table) - 1, min(MOST_POINTS, len(table))).round().astype(int))
    points = table.iloc[drawn]
    below = "" if set(SHARES).isdisjoint(table) else clock_words(clock_of_results(table))
    layout = {**_layout(tuple(name for name, *_ in shown), bool(below), is_dark())}
    layout["title"] = {**layout["title"], "text": titles(f"{TITLE}: {counted(len(table), 'step')}", below)[0]}
    data, annotations = [], []
    for row, (name, title, colour, symbol, dash) in enumerate(shown, start=1):
        x, y = (f"{letter}{row if row > 1 else ''}" for letter in "xy")
        data.append(
            line(
                points, "step", name, name=title, line={"color": colour, "dash": dash}, marker={"symbol": symbol, "size": 7},
                showlegend=False, xaxis=x, yaxis=y,
                hovertemplate=f"<b>step %{{x}}</b><br>{title}: %{{y:.4g}}<extra></extra>",
            )
        )  # fmt: skip
        annotations.append(
            {
                "text": f"{title}: {number(table[name].dropna().iloc[-1])}", "x": 0, "xref": f"{x} domain", "xanchor": "left",
                "y": 1, "yref": f"{y} domain", "yanchor": "bottom", "showarrow": False, "font": {"size": 11},
            }
        )  # fmt: skip
        for axis, changes in (
            (x.replace("x", "xaxis"), whole_steps(table["step"].tolist())),
            (y.replace("y", "yaxis"), {} if table[name].any() else {"range": [0, 1]}),
        ):
            layout[axis] = {**layout[axis], **changes}
    return {"data": data, "layout": {**layout, "annotations": annotations}}


@lru_cache(maxsize=16)
def _layout(names: tuple[str, ...], subtitle: bool, dark: bool) -> dict[str, Any]:
    """Return the layout of these curves; title, annotations, and what depends on the values are replaced."""
    fig = make_subplots(rows=max(1, len(names)), cols=1, shared_xaxes=True, vertical_spacing=0.05)
    for row, name in enumerate(names, start=1):
        fig.update_yaxes(rangemode="tozero" if name != "reward_mean" else "normal", nticks=4, row=row, col=1)
    fig.update_xaxes(title="step", row=len(names) or 1, col=1)
    styled(fig, TITLE, "." * subtitle, height=112 + 16 * subtitle + 92 * len(names), above=16)
    return fig.layout.to_plotly_json()  # type: ignore[no-any-return]
