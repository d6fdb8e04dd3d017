"""Plots the steps of a run: busy and idle GPU-seconds, time, and number of actors; or several runs step by step.

The numbers come from ``trace.metrics.step_metrics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.plots.bars import bars
from rlhfless.plots.clock import clocks_words, with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import trace_of, traces_of
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BUSY, GREEN, IDLE, OCCUPANCY_SCALE, ORANGE, OUTLINE
from rlhfless.plots.run_steps import plot_planned_steps, plot_run_steps, steps_of_runs
from rlhfless.plots.style import clean, counted, hover, message_figure, number, styled, usd, whole_counts
from rlhfless.plots.tables import figure_of
from rlhfless.trace import Trace, step_metrics
from rlhfless.trace.metrics.step_metrics import total_usd

TITLE = "Cost, time and actors of every step"


def plot_steps(
    steps: Trace | pd.DataFrame | str | Path | Mapping[str, Trace | str | Path], run: str | None = None, *, over: str = "step"
) -> DataFigure:  # fmt: skip
    """Plot GPU-seconds (busy, in empty slots, and idle), time and number of actors of every step; or compare runs step by step.

    Args:
        steps: any trace, or the folder of one. Or several by name, such as ``comparison.traces``, each a line through mean
            lengths, times, GPU-seconds and actors, as far as they are known. Or a table with a row per ``run`` and ``step``
            that has any of ``mean_tokens, time_s, gpu_seconds, actors``. Or a table of ``analysis.plan_every_step``, of which
            mean lengths and planned actors are drawn.
        run: of the one trace; its first one when None.
        over: the horizontal axis of several runs: ``step``, or ``mean_tokens``, the mean length of a step's responses.

    Returns:
        A figure, whose table has ``step, time_s, gpu_seconds, busy_gpu_seconds, idle_gpu_seconds, slot_idle_gpu_seconds,
        cost_usd, actors, run``, or is the given one; of several traces ``run, step`` and the numbers that are drawn. For a
        trace without allocations one that says so.

    Raises:
        InputError: it is none of these, or ``over`` is another column.
        TraceError: the folder holds no trace.
    """
    if isinstance(steps, Mapping):
        traces = traces_of(steps, "plot_steps")
        return plot_run_steps(steps_of_runs(traces), over, clocks_words(traces))
    if isinstance(steps, pd.DataFrame):
        return plot_planned_steps(steps) if "run" not in steps and over == "step" else plot_run_steps(steps, over)
    if over != "step":
        raise InputError(
            f"plot_steps: over is {over!r} of one run; name it, as in plot_steps({{'mine': trace}}, over={over!r})"
        )
    steps = trace_of(steps, "plot_steps")
    run = (steps.runs or [""])[0] if run is None else run
    table = _of_run(steps, run)
    if table.empty:
        missing = "The trace has no allocations, so cost, idle time and actors are unknown."
        return message_figure(TITLE, missing, table.assign(run=run))
    fig = figure_of(
        table.assign(run=run), rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.5, 0.27, 0.23]
    )
    texts = [
        hover(
            [
                ("cost", ", ".join(filter(None, [number(row.gpu_seconds, "GPU-seconds"), usd(row.cost_usd)]))),
                ("busy", number(row.busy_gpu_seconds, "GPU-seconds")),
                ("idle", number(row.idle_gpu_seconds, "GPU-seconds")),
                ("empty slots (not part of idle)", number(row.slot_idle_gpu_seconds, "GPU-seconds")),
                ("time", number(row.time_s, "s")),
                ("actors", number(row.actors)),
            ],
            f"step {row.step}",
        )
        for row in table.itertuples()
    ]
    empty = table["slot_idle_gpu_seconds"].fillna(0.0)
    drawn = table.assign(in_use=table["busy_gpu_seconds"] - empty, empty=empty)
    outline = {"line": {"color": OUTLINE, "width": 1}}
    parts: dict[str, dict[str, Any]] = {
        "in_use": {"name": "busy, slots in use" if empty.any() else "busy", "marker": {"color": BUSY}},
        "empty": {"name": "empty slots", "marker": {"color": OCCUPANCY_SCALE[0][1], **outline}},
        "idle_gpu_seconds": {
            "name": "idle", "marker": {"color": IDLE, **outline, "pattern": {"shape": "/", "fgcolor": "#8A8A8A", "size": 5}},
        },
    }  # fmt: skip
    if not empty.any():
        del parts["empty"]
    fig.add_traces(bars(drawn, table["step"], parts, upright=True, width=0.7, hovertext=texts), rows=1, cols=1)
    marks: dict[str, Any] = {"mode": "lines+markers" if len(table) <= 100 else "lines", "hovertext": texts, "hoverinfo": "text"}
    time = line(table, "step", "time_s", name="time", line={"color": ORANGE}, marker={"size": 8}, **marks)
    dotted: dict[str, Any] = {"line": {"color": GREEN, "dash": "dot"}, "marker": {"symbol": "square", "size": 8}}
    actors = line(table, "step", "actors", name="actors", **dotted, **marks)
    fig.add_traces([time, actors], rows=[2, 3], cols=[1, 1])
    for row, title in enumerate(("GPU-seconds", "time (s)", "actors"), start=1):
        fig.update_yaxes(title=title, rangemode="tozero", row=row, col=1)
    fig.update_yaxes(**whole_counts(float(table["actors"].max())), row=3, col=1)
    first, last = table["step"].min(), table["step"].max()
    middle, half = (first + last) / 2, max(2.5, (last - first) / 2 + 0.6)
    ticks = {"tickvals": table["step"].tolist()} if len(table) <= 24 else {"tickformat": "d"}
    fig.update_xaxes(range=[middle - half, middle + half], **ticks)
    fig.update_xaxes(title="step", row=3, col=1)
    total = table[["gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds", "time_s"]].sum()
    idle, empty = (total[name] / max(total["gpu_seconds"], 1e-12) for name in ("idle_gpu_seconds", "slot_idle_gpu_seconds"))
    wastes = f"{idle:.1%} idle" + (f", {empty:.1%} in empty slots of batches" if empty > 0 else "")
    sums = [number(total["time_s"], "s"), f"{number(total['gpu_seconds'], 'GPU-seconds')} ({wastes})", usd(total_usd(table))]
    note = f"run {clean(run)}, {counted(len(table), 'step')}: {', '.join(filter(None, sums))}"
    return styled(fig, TITLE, with_clock(note, steps.meta), height=520, barmode="stack")


def _of_run(trace: Trace, run: str) -> pd.DataFrame:
    """Return a row per step of one run of a trace that has allocations."""
    metrics = step_metrics(trace)
    metrics = metrics[(metrics["run"] == run) & metrics["gpu_seconds"].notna()]
    return pd.DataFrame(
        {
            "step": metrics["step"].astype(int),
            "time_s": metrics["time_s"],
            "gpu_seconds": metrics["gpu_seconds"],
            "busy_gpu_seconds": metrics["gpu_seconds"] - metrics["idle_gpu_seconds"],
            "idle_gpu_seconds": metrics["idle_gpu_seconds"],
            "slot_idle_gpu_seconds": metrics["slot_idle_gpu_seconds"],
            "cost_usd": metrics["cost_usd"],
            "actors": metrics["actors"].astype(float),
        }
    ).reset_index(drop=True)
