"""Plots one step as a whole: which GPUs generate, which were released, and which then prepare and learn.

Input is a trace. A lane is the GPUs of one actor or server; cuts are lines.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rlhfless.plots.clock import with_clock
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.given_trace import trace_of
from rlhfless.plots.palette import IDLE, OUTLINE, PHASE_STYLES, VERMILLION, PhaseStyle
from rlhfless.plots.style import clean, hover, message_figure, styled
from rlhfless.plots.tables import figure_of
from rlhfless.plots.tracks import bars_by_style
from rlhfless.trace import Trace
from rlhfless.trace.tracks import tracks

TITLE = "Generation, preparation and learning of a step"
RELEASED = "released"
LOOKS: dict[str, PhaseStyle] = {
    "generation": PHASE_STYLES["decode"], RELEASED: PhaseStyle(IDLE, ""), "start": PHASE_STYLES["start"],
    "prepare": PHASE_STYLES["prepare"], "learn": PHASE_STYLES["learn"],
}  # fmt: skip
STYLES = {
    what: {
        "name": what,
        "marker": {
            "color": look.colour, "line": {"color": OUTLINE, "width": 0.5},
            "pattern": {"shape": look.hatch, "size": 5, "solidity": 0.25},
        },
    }
    for what, look in LOOKS.items()
}  # fmt: skip
LANE_PX = 26
NO_GPU = "no GPU"
GENERATING = ("decode", "prefill")


class _Data(NamedTuple):
    """Data of ``plot_step_fusion``.

    Attributes:
        spans: one row per interval of a lane: ``lane, holder, what, start_s, end_s``. ``what`` is ``generation``, ``start``,
            ``prepare``, ``learn``, or ``released``: nobody has the GPUs until the step ends or someone takes them.
        cuts: ``holder, time_s`` of every cut.
        step: number of the step. time_s: its length.
        missing: why there is nothing to show, or the empty text.
    """

    spans: pd.DataFrame
    cuts: pd.DataFrame
    step: int
    time_s: float
    missing: str = ""


def _data(trace: Trace, step: int | None = None) -> _Data:
    """Return the data of ``plot_step_fusion``, with the same arguments."""
    columns = ["lane", "holder", "what", "start_s", "end_s"]
    none = pd.DataFrame(columns=columns), pd.DataFrame(columns=["holder", "time_s"])
    if trace.allocations.empty:
        return _Data(*none, 0, 0.0, "The trace has no allocations, so it does not say who held which GPUs.")
    chosen = int(trace.allocations["step"].max()) if step is None else step
    rows = tracks(trace, step=chosen, tables=("allocations", "spans"))
    held = rows[rows["table"] == "allocations"]
    if held.empty:
        return _Data(*none, chosen, 0.0, f"The trace has no step {chosen}.")
    start_s, end_s = float(held["start_s"].min()), float(held["end_s"].max())
    held = held.assign(lane=[_lane(ids) for ids in trace.allocations["gpu_ids"].loc[held["label"]]])
    found: list[tuple[str, str, str, float, float]] = []
    for lane, of_lane in held.groupby("lane", sort=False):
        ordered = of_lane.sort_values("start_s")
        nexts = [*ordered["start_s"].tolist()[1:], end_s]
        for row, next_s in zip(ordered.itertuples(index=False), nexts, strict=True):
            if row.category in GENERATING:
                found.append((str(lane), row.track, "generation", row.start_s, row.end_s))
            if next_s > row.end_s + 1e-9 and lane != NO_GPU:
                found.append((str(lane), row.track, RELEASED, row.end_s, next_s))
    lane_of = dict(zip(held["track"], held["lane"], strict=True))
    generating = set(held.loc[held["category"].isin(GENERATING), "track"])
    for span in rows[rows["table"] == "spans"].itertuples(index=False):
        if span.track in lane_of and span.category in STYLES and not (span.track in generating and span.category == "start"):
            found.append((lane_of[span.track], span.track, span.category, span.start_s, span.end_s))
    table = pd.DataFrame(found, columns=columns)
    table[["start_s", "end_s"]] -= start_s
    return _Data(table, _cuts(trace, chosen, start_s), chosen, end_s - start_s)


def _first_gpu(lane: str) -> float:
    """Return the first GPU of a lane, by which lanes are ordered; that without GPUs comes last."""
    return math.inf if lane == NO_GPU else int(lane.split()[1].split("-")[0])


def _lane(gpu_ids: list[int]) -> str:
    if not gpu_ids:
        return NO_GPU
    return f"GPU {gpu_ids[0]}" if len(gpu_ids) == 1 else f"GPUs {min(gpu_ids)}-{max(gpu_ids)}"


def _cuts(trace: Trace, step: int, start_s: float) -> pd.DataFrame:
    events = trace.events[(trace.events["step"] == step) & (trace.events["name"] == "cut")]
    return pd.DataFrame({"holder": events["holder"], "time_s": events["time_s"] - start_s}).reset_index(drop=True)


def plot_step_fusion(trace: Trace | str | Path, step: int | None = None) -> DataFigure:
    """Plot who has which GPUs during a step: generation, preparation, learning, and GPUs that were released.

    Args:
        trace: any trace, or the folder of one. step: its number; the last one when None.

    Returns:
        A figure; without allocations one that says so.

    Raises:
        InputError: it is no trace.
        TraceError: the folder holds none.
    """
    trace = trace_of(trace, "plot_step_fusion")
    info = _data(trace, step)
    if info.missing:
        return message_figure(TITLE, info.missing, info.spans)
    fig = figure_of(info.spans)
    texts = [
        hover([("time", f"{row.start_s:.2f} to {row.end_s:.2f} s"), ("holder", clean(row.holder))], f"{row.what}, {row.lane}")
        for row in info.spans.itertuples(index=False)
    ]
    for drawn in bars_by_style(info.spans.assign(hover=texts), STYLES, "what", at="lane"):
        fig.add_trace(drawn)
    for time_s in sorted(set(info.cuts["time_s"].round(9))):
        fig.add_vline(x=time_s, line={"color": VERMILLION, "dash": "dash", "width": 1.5})
    lanes = sorted(info.spans["lane"].unique(), key=_first_gpu)
    fig.update_yaxes(categoryorder="array", categoryarray=lanes[::-1])
    fig.update_xaxes(title="time since the start of the step (s)")
    fig.update_layout(barmode="overlay", bargap=0.25)
    cuts = f"Dashed: {len(info.cuts)} actors are cut. " if len(info.cuts) else ""
    note = f"Step {info.step} takes {info.time_s:.2f} s. {cuts}Pale: released GPUs."
    return styled(fig, TITLE, with_clock(note.removesuffix("."), trace.meta) + ".", height=150 + LANE_PX * len(lanes))
