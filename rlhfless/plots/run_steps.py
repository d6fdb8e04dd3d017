"""Plots runs step by step, with a line per run: mean length, time, GPU-seconds and actors; or what a plan of each step needs.

Input is a table with one row per run and step, or per step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines
from rlhfless.plots.palette import BLUE, VERMILLION, line_looks
from rlhfless.plots.style import (
    MINUS,
    clean,
    counted,
    hover,
    legend_below,
    message_figure,
    number,
    styled,
    whole_counts,
    whole_steps,
)
from rlhfless.plots.tables import figure_of
from rlhfless.trace import Trace, step_metrics

STEPS, PLANNED = "Several runs, step by step", "Planned number of actors per step"
NUMBERS = {"mean_tokens": "mean length (tokens)", "time_s": "time (s)", "gpu_seconds": "GPU-seconds", "actors": "actors"}
"""Columns that are drawn, each in a panel of its own, and what they are."""
OVER = {"step": "step", "mean_tokens": "mean response length of the step (tokens)"}
"""What the horizontal axis may be."""
MARKED = 60  # steps, up to which every one has a marker
PANEL_PX, ABOVE_PX, BELOW_PX, LEGEND_PX = 165, 82, 70, 24


def steps_of_runs(traces: Mapping[str, Trace]) -> pd.DataFrame:
    """Return ``run, step`` and ``NUMBERS`` of traces by name; of a trace with several runs, each has its own name behind."""
    tables = []
    for name, trace in traces.items():
        rows = step_metrics(trace).rename(columns={"response_tokens_mean": "mean_tokens"})
        rows["run"] = f"{name}, " + rows["run"] if rows["run"].nunique() > 1 else name
        tables.append(rows[["run", "step", *NUMBERS]].astype(dict.fromkeys(NUMBERS, float)))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["run", "step", *NUMBERS])


def plot_run_steps(table: pd.DataFrame, over: str = "step", note: str = "") -> DataFigure:
    """Plot a line per run through its steps, in a panel for every number that is known.

    Args:
        table: ``run, step`` and any of ``NUMBERS``. over: of ``OVER``. note: clean, at the end of the subtitle.

    Raises:
        InputError: the table lacks a column, or ``over`` is another one.
    """
    if over not in OVER:
        raise InputError(f"plot_steps: over is {over!r}; one of {', '.join(OVER)} is needed")
    if lacking := [column for column in ("run", "step", over) if column not in table]:
        raise InputError(
            f"plot_steps: the table has no column {lacking[0]!r}; run, step and any of {', '.join(NUMBERS)} are needed"
        )
    columns = [column for column in NUMBERS if column in table and column != over and table[column].notna().any()]
    table = table[list(dict.fromkeys(["run", "step", over, *columns]))].dropna(subset=[over])
    if table.empty or not columns:
        return message_figure(STEPS, "No number of a step is known.", table)
    table = pd.concat(
        [rows.sort_values(over, kind="stable") for _, rows in table.groupby("run", sort=False)], ignore_index=True
    )
    names = table["run"].unique().tolist()
    looks = line_looks(names)
    fig = _panels(table, columns, over, lambda run, _: looks[run])
    inner, below = PANEL_PX * len(columns), BELOW_PX + LEGEND_PX * ((len(names) + 1) // 2)
    counts = f"{counted(len(names), 'run')}, {counted(table['step'].nunique(), 'step')}"
    return styled(
        fig, STEPS, "; ".join(filter(None, [counts, note])), height=ABOVE_PX + inner + below, legend=legend_below(inner),
        margin={"t": ABOVE_PX, "b": below},
    )  # fmt: skip


def plot_planned_steps(table: pd.DataFrame) -> DataFigure:
    """Plot mean response length (above) and planned actors (below) by step, of ``analysis.plan_every_step``."""
    if table.empty:
        return message_figure(PLANNED, "There are no steps.", table)
    colours = {"mean_tokens": BLUE, "actors": VERMILLION}
    fig = _panels(table.assign(run=""), list(colours), "step", lambda _, column: {"line": {"color": colours[column]}})
    fig.table = table
    fewest, highest = int(table["actors"].min()), int(table["actors"].max())
    subtitle = f"{fewest} to {highest} actors" if fewest < highest else f"{counted(fewest, 'actor')} in every step"
    tokens, actors = table["mean_tokens"], table["actors"]
    if tokens.nunique() > 1 and actors.nunique() > 1:
        correlation = float(tokens.rank().corr(actors.rank()))  # Spearman's
        subtitle += f"; rank correlation between actors and mean length {_rounded(correlation)}"
    return styled(fig, PLANNED, subtitle, height=430, showlegend=False)


def _panels(
    table: pd.DataFrame, columns: Sequence[str], over: str, look: Callable[[Any, str], dict[str, Any]]
) -> DataFigure:  # fmt: skip
    """Return a panel per column, with a line per run; ``look`` has line and marker of a run in a column's panel."""
    fig = figure_of(table, rows=len(columns), cols=1, shared_xaxes=True, vertical_spacing=0.18 / len(columns))
    steps = sorted(table["step"].unique().tolist())
    mode = "lines+markers" if len(steps) <= MARKED else "lines"
    for row, column in enumerate(columns, start=1):
        shape = "hv" if column == "actors" and over == "step" else "linear"

        def style(run: Any, _: pd.DataFrame, column: str = column, shape: str = shape) -> dict[str, Any]:
            own, name = look(run, column), clean(run, 40)
            return {"name": name, "legendgroup": name, **own, "line": {**own["line"], "shape": shape}}

        fig.add_traces(lines(table, over, column, "run", style, _hover, mode=mode, showlegend=row == 1), rows=row, cols=1)
        counts = whole_counts(float(table[column].max())) if column == "actors" else {}
        fig.update_yaxes(title=NUMBERS[column], **{"rangemode": "tozero", **counts}, row=row, col=1)
    if over == "step":
        fig.update_xaxes(**whole_steps(steps))
    fig.update_xaxes(title=OVER[over], row=len(columns), col=1)
    return fig


def _hover(row: Any) -> str:
    known = [(name, number(getattr(row, column))) for column, name in NUMBERS.items() if hasattr(row, column)]
    return hover(known, ", ".join(filter(None, [clean(row.run, 40), f"step {row.step}"])))


def _rounded(share: float) -> str:
    """Return two digits, without a sign where they are 0."""
    return f"{round(share, 2) + 0.0:.2f}".replace("-", MINUS)
