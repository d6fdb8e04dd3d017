"""Plots where the time of every actor of a plan goes, next to a random split, with a slider over plans.

Inputs are plans, their workload and the planning model's latency; and a front with its bound, on which the plans are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.bars import bars, hatched
from rlhfless.plots.clock import clock_words
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.frames import start_at, with_frames
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, ORANGE, POLICY_STYLES, SKY
from rlhfless.plots.plane import Range, axis_range, bound_line, plans_line, this_plan
from rlhfless.plots.style import clean, counted, cut_axes, hover, message_figure, number
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from solver.generation.pareto_front import Front
    from solver.model.latency import LatencyModel
    from solver.model.plan import Plan
    from solver.model.workload import Workload

TITLE = "What each actor spends its time on"
PARTS = (
    ("other_s", ORANGE, "/", "start, weight sync, prefill, and waiting for free slots"),
    ("base_s", BLUE, "", "fixed time per iteration, for its longest response"),
    ("load_s", SKY, ".", "added time per response in the batch and per KV token"),
)
SIDES = ("plan", "random split")
STYLES = {"plan": POLICY_STYLES["solver"], "random split": POLICY_STYLES["random"]}


class _Data(NamedTuple):
    """Plans by label, with the times of their actors.

    Attributes:
        plans: ``label, side`` (``plan`` or ``random split``), ``actors, makespan_s, gpu_seconds``, and ``gap`` to the lower
            bound (NaN without one).
        bars: one row per actor: ``label, side, actor, responses, shortest, longest`` (tokens), ``other_s, base_s, load_s``,
            which add up to the actor's end.
        front: ``time_s, gpu_seconds, actors``. bound: ``time_s, gpu_seconds`` of the planning model, where finite.
        missing: why there is nothing to show, or the empty text.
    """

    plans: pd.DataFrame
    bars: pd.DataFrame
    front: pd.DataFrame
    bound: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return all tables below each other."""
        actors = self.bars.rename(columns={"shortest": "shortest_tokens", "longest": "longest_tokens"})
        return stacked(plans=self.plans, actors=actors, front=self.front, bound=self.bound)


def _data(
    plans: Mapping[Any, Plan],
    workload: Workload,
    latency: LatencyModel,
    splits: Mapping[Any, Plan] | None = None,
    front: Front | None = None,
) -> _Data:
    """Return the data of ``plot_plan_bars``."""
    model = latency.affine
    context = workload.context_tokens
    cases = [case.remaining_tokens for case in workload.cases()]
    loads = np.mean([model.per_response_s * n + model.per_kv_token_s * (context * n + n * (n - 1) / 2) for n in cases], axis=0)
    totals, bars = [], []
    for side, of_side in zip(SIDES, (plans, splits or {}), strict=True):
        for label, plan in of_side.items():
            gap = np.nan if plan.gap is None else plan.gap
            totals.append((str(label), side, len(plan.actors), plan.makespan_s, plan.gpu_seconds, gap))
            for i, actor in enumerate(plan.actors):
                responses = list(actor.responses)
                longest = float(np.mean([n[responses].max(initial=0) for n in cases]))
                base_s, load_s = model.base_s * longest, float(loads[responses].sum())
                lengths = workload.response_tokens[responses]
                ends = (lengths.min(), lengths.max()) if responses else (0, 0)
                other_s = max(0.0, actor.predicted_s - base_s - load_s)
                bars.append((str(label), side, i, len(responses), *ends, other_s, base_s, load_s))
    of_front = [(p.makespan_s, p.gpu_seconds, len(p.actors)) for p in (front.plans if front else ())]
    times, costs = (front.bound_makespan_s, front.bound_cost) if front else ([], [])
    bound = pd.DataFrame({"time_s": times, "gpu_seconds": costs}, dtype=float)
    return _Data(
        pd.DataFrame(totals, columns=["label", "side", "actors", "makespan_s", "gpu_seconds", "gap"]),
        pd.DataFrame(
            bars, columns=["label", "side", "actor", "responses", "shortest", "longest", "other_s", "base_s", "load_s"]
        ),
        pd.DataFrame(of_front, columns=["time_s", "gpu_seconds", "actors"]),
        bound[np.isfinite(bound["gpu_seconds"])].reset_index(drop=True),
        "" if plans else "There are no plans to show.",
    )


def plot_plan_bars(
    plans: Mapping[Any, Plan],
    workload: Workload,
    latency: LatencyModel,
    splits: Mapping[Any, Plan] | None = None,
    *,
    front: Front | None = None,
    of: str = "actors",
    start: Any = None,
) -> DataFigure:
    """Plot bars of a plan's actors, bars of a random split's actors next to them, and all plans in the time-cost plane.

    Args:
        plans: label (of the slider) to plan. workload, latency: what the plans were made for; the bars are those of the
            planning model, the affine fit.
        splits: the same labels to the plan to compare with. front: that of the same step, in GPU-seconds, with the bound
            curve of the planning model; beside it, ``plans`` may have any number of actors, and it is said how far each
            is above the best plan at most.
        of: what the labels are. start: the label that is shown first; the middle one when None.

    Returns:
        A figure with one frame per label; without plans it is a figure that says so.
    """
    info = _data(plans, workload, latency, splits, front)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    sides = [side for side in SIDES if (info.plans["side"] == side).any()]
    labels = [str(label) for label in plans]
    first = start_at(labels, start)
    widths, gap = ([0.34, 0.34, 0.32], 0.075) if len(sides) == 2 else ([0.55, 0.45], 0.12)
    fig = figure_of(info.to_frame(), rows=1, cols=len(widths), column_widths=widths, horizontal_spacing=gap)
    rows = int(info.plans["actors"].max())
    panels = [*(f"{side}: time of each actor" for side in sides), "time against cost"]

    def frame(i: int) -> list[Any]:
        return [bar for side in sides for bar in _bars(info, labels[i], side, rows)] + [
            _point(info, labels[i], side) for side in reversed(sides)
        ]

    for trace, col in zip(
        frame(first), [c for c in range(1, len(sides) + 1) for _ in PARTS] + [len(widths)] * len(sides), strict=True
    ):
        fig.add_trace(trace, row=1, col=col)
    on_front = len(info.front) > 0  # a line through the plans would cross the steps of the front
    if len(info.bound):
        fig.add_trace(bound_line(info.bound, "lower bound of any plan", {"shape": "vh"}), row=1, col=len(widths))
    if on_front:
        fig.add_trace(plans_line(info.front, "front: cheapest plan found within each time"), row=1, col=len(widths))
    for side in sides:
        of_side, style = info.plans[info.plans["side"] == side], STYLES[side]
        every = line(
            of_side, "makespan_s", "gpu_seconds", lambda row: f"{row.side}, {counted(row.actors, 'actor')}", name=side,
            mode="markers" if on_front else "lines+markers", line={"width": 1.2}, showlegend=False,
            marker={"color": style.colour, "symbol": style.symbol, "size": 6},
        )  # fmt: skip
        fig.add_trace(every, row=1, col=len(widths))
    shown = list(range(0, rows, -(-rows // 24)))
    for col in range(1, len(sides) + 1):
        fig.update_xaxes(title="time since the start of the step (s)", row=1, col=col)
        fig.update_yaxes(range=[rows - 0.4, -0.6], tickvals=shown, ticktext=[str(i) for i in shown], row=1, col=col)
    fig.update_yaxes(title="actor", row=1, col=1)
    across, up = _ranges(info)
    fig.update_xaxes(title="time (s)", range=list(across), row=1, col=len(widths))
    fig.update_yaxes(title="cost (GPU-seconds)", range=list(up), row=1, col=len(widths))
    clock = clock_words({"clock": "virtual", "profile": latency.name})
    inner = int(min(410, max(190, 30 + 15 * rows)))
    return with_frames(
        fig, TITLE, labels, first, frame, lambda i: _line(info, labels[i]), of=clean(of), panels=panels, barmode="stack",
        px=(inner, 120, 134 if on_front else 116), ranges=lambda i: _spans(info, labels[i]),
        subtitle="; ".join(filter(None, [clock, cut_axes(time=across[0], cost=up[0])])),
    )  # fmt: skip


def _bars(info: _Data, label: str, side: str, rows: int) -> list[dict[str, Any]]:
    """The parts of every actor's time. Every frame has as many bars; those of actors that the plan does not start are empty."""
    times = info.bars[(info.bars["label"] == label) & (info.bars["side"] == side)].set_index("actor")
    times = times.drop(columns=["label", "side"]).reindex(range(rows)).fillna(0)
    texts = [
        hover(
            [
                ("responses", f"{int(b.responses):,} of {int(b.shortest):,} to {int(b.longest):,} tokens"),
                *((name, number(getattr(b, part), "s")) for part, _, _, name in PARTS),
                ("ends at", number(b.other_s + b.base_s + b.load_s, "s")),
            ],
            f"actor {b.Index} of the {side}",
        )
        for b in times.itertuples()
    ]
    parts = {
        part: {"name": name, "legendgroup": part, "marker": hatched(colour, hatch, fgcolor="#555555", fgopacity=0.35)}
        for part, colour, hatch, name in PARTS
    }
    return bars(times, times.index, parts, width=0.66, showlegend=side == SIDES[0], hovertext=texts)


def _point(info: _Data, label: str, side: str) -> dict[str, Any]:
    row = info.plans[(info.plans["label"] == label) & (info.plans["side"] == side)]
    style = STYLES[side]
    return this_plan(row["makespan_s"], row["gpu_seconds"], style.colour, style.symbol, name=side)


def _spans(info: _Data, label: str) -> dict[str, Any]:
    """Layout of a frame's time axes: the same range for both sides, so that their bars can be compared."""
    of_plan = info.plans[info.plans["label"] == label]
    axis = {"range": [0, 1.04 * max(float(of_plan["makespan_s"].max()), 1e-9)]}
    return {"xaxis": axis, "xaxis2": axis} if len(of_plan) == 2 else {"xaxis": axis}


def _ranges(info: _Data) -> tuple[Range, Range]:
    """Return ranges of the plane that include every plan of the slider; the front and its bound extend beyond them."""
    time_s, cost = info.plans["makespan_s"], info.plans["gpu_seconds"]
    across = axis_range(time_s.min(), max(time_s.max(), 1e-9), 0.12, 0.12)
    near = info.bound["gpu_seconds"][info.bound["time_s"].between(*across)]
    return across, axis_range(min([cost.min(), *near.nsmallest(1)]), max(cost.max(), 1e-9), 0.12, 0.12)


def _line(info: _Data, label: str) -> str:
    """Describe the frame in words."""
    parts = [
        f"{row.side}: {counted(row.actors, 'actor')}, {number(row.makespan_s, 's')}, {number(row.gpu_seconds, 'GPU-seconds')}"
        + ("" if info.front.empty else _above_the_best(row.gap))
        for row in info.plans[info.plans["label"] == label].itertuples()
    ]
    return "; ".join(parts)


def _above_the_best(gap: float) -> str:
    """Say how far a plan with any number of actors is above the best one at most; nothing where that is unknown."""
    if np.isnan(gap):
        return ""
    above = gap / (1 - gap) if gap < 1 else np.inf
    return ", no plan is better" if above < 5e-5 else f", at most {above:.2%} above the best plan by what is minimised"
