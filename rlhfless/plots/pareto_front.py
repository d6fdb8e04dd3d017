"""Plots a front of plans with the plans' predicted and true outcomes and the lower bounds, with a slider over weights.

Inputs are a front, plans with their evaluation under true lengths, and a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.frames import start_at, with_frames
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, VERMILLION
from rlhfless.plots.plane import BELOW, bound_line, plans_line, this_plan
from rlhfless.plots.style import clean, counted, hover, message_figure, number
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from solver.generation.pareto_front import Front
    from solver.model.plan import Plan
    from solver.timing.evaluate import Evaluation

TITLE = "Best plans for time and cost, by predicted and by true lengths"
CURVE_POINTS = 160


class _Data(NamedTuple):
    """Data of ``plot_front``: a front in one unit of cost.

    Attributes:
        plans: ``label, actors, time_s, cost``, and ``true_time_s, true_cost`` (NaN when unknown).
        front: ``time_s, cost, actors``. bound: ``time_s, cost`` of the planning model; true_bound: the same for the true
            lengths; both begin at their first finite value.
        epsilon: of the front. unit: of cost, in words.
        missing: why there is nothing to show, or the empty text.
    """

    plans: pd.DataFrame
    front: pd.DataFrame
    bound: pd.DataFrame
    true_bound: pd.DataFrame
    epsilon: float
    unit: str
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return all tables below each other; costs are named by their unit, such as ``cost_usd``."""
        cost = "cost_usd" if self.unit == "USD" else "gpu_seconds"
        tables = {"plans": self.plans, "front": self.front, "bound": self.bound, "least": self.true_bound}
        names = {"cost": cost, "true_cost": f"true_{cost}"}
        return stacked(**{name: table.rename(columns=names) for name, table in tables.items()})


def _data(
    front: Front,
    plans: Mapping[Any, Plan],
    outcomes: Mapping[Any, Evaluation] | None = None,
    true_bound: Callable[[float], float] | None = None,
) -> _Data:
    """Return the data of ``plot_front``; for the arguments see there."""
    usd = front.cost == "usd"
    rows = []
    for label, plan in plans.items():
        outcome = (outcomes or {}).get(label)
        taken = (np.nan, np.nan) if outcome is None else (outcome.makespan_s, outcome.cost_usd if usd else outcome.gpu_seconds)
        rows.append((str(label), len(plan.actors), plan.makespan_s, front.cost_of(plan), *taken))
    table = pd.DataFrame(rows, columns=["label", "actors", "time_s", "cost", "true_time_s", "true_cost"])
    of_front = [(p.makespan_s, front.cost_of(p), len(p.actors)) for p in front.plans]
    bound = pd.DataFrame({"time_s": front.bound_makespan_s, "cost": front.bound_cost}, dtype=float)
    times = [*bound["time_s"], *table["true_time_s"].dropna()]
    grid = np.geomspace(max(0.5 * min(times), 1e-9), max(times), CURVE_POINTS) if times and true_bound else np.zeros(0)
    curve = pd.DataFrame({"time_s": grid, "cost": [true_bound(float(t)) for t in grid] if true_bound else []}, dtype=float)
    bound, curve = _finite(bound), _finite(curve)
    return _Data(
        table,
        pd.DataFrame(of_front, columns=["time_s", "cost", "actors"]),
        bound,
        curve,
        front.epsilon,
        "USD" if usd else "GPU-seconds",
        "" if plans else "There are no plans to show.",
    )


def _finite(curve: pd.DataFrame) -> pd.DataFrame:
    """Return the finite part of a falling curve, from the last time at which it is infinite: just after that it is at least as
    high as at the first finite point."""
    finite = np.flatnonzero(np.isfinite(curve["cost"]))
    if not len(finite):
        return curve.iloc[:0]
    first = int(finite[0])
    wall = pd.DataFrame({"time_s": [curve["time_s"].iloc[max(first - 1, 0)]], "cost": [curve["cost"].iloc[first]]})
    return pd.concat([wall, curve.iloc[first:]], ignore_index=True)


def plot_front(
    front: Front,
    plans: Mapping[Any, Plan],
    outcomes: Mapping[Any, Evaluation] | None = None,
    true_bound: Callable[[float], float] | None = None,
    *,
    of: str = "time weight (1: time only, 0: cost only)",
    start: Any = None,
    usd_per_gpu_hour: float = 0.0,
) -> DataFigure:
    """Plot the front with its bound; on it the slider's plan, and that plan's outcome with the true lengths.

    Args:
        front: plans that no other plan beats, by predicted lengths. plans: label of the slider to plan.
        outcomes: the same labels to the plan's time and cost with the true lengths.
        true_bound: the least cost, in the front's unit, of any policy at a time, for the true lengths.
        of: what the labels are. start: the label that is shown first; the middle one when None.
        usd_per_gpu_hour: with a price, an axis on the right shows GPU-seconds in dollars.

    Returns:
        A figure with one frame per label; without plans it is a figure that says so.
    """
    info = _data(front, plans, outcomes, true_bound)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    labels = [str(label) for label in plans]
    first = start_at(labels, start)
    fig = figure_of(info.to_frame())
    for trace in _frame(info, first):
        fig.add_trace(trace)
    low, high = _ranges(info)
    for bound, name, look, below in (
        (info.true_bound, "lower bound of any schedule, true lengths", {"width": 1, "dash": "solid"}, BELOW),
        (info.bound, "lower bound of any plan, predicted lengths", {}, {}),
    ):
        if len(bound):
            wall = bound["time_s"].iloc[0]  # nothing is faster, whatever it costs
            before = pd.DataFrame({"time_s": [0.0, wall], "cost": 2 * high})
            curve = pd.concat([before, bound], ignore_index=True)
            fig.add_trace(bound_line(curve, name, {"shape": "vh", **look}, y="cost", unit=info.unit, **below))
    fig.add_trace(plans_line(info.front, "best plans for the predicted lengths", y="cost", unit=info.unit))
    fig.update_xaxes(title="time (s)", range=[0.0, max(info.plans[["time_s", "true_time_s"]].max().max(), 1e-9) * 1.08])
    fig.update_yaxes(title=f"cost ({info.unit})", range=[low, high])
    if usd_per_gpu_hour > 0 and info.unit == "GPU-seconds":
        fig.add_scatter(x=[None], y=[None], yaxis="y2", showlegend=False, hoverinfo="skip")
        rate = 1000 * usd_per_gpu_hour / 3600
        side = {"overlaying": "y", "side": "right", "range": [low * rate, high * rate], "showgrid": False, "tickmode": "auto"}
        fig.update_layout(yaxis2={**side, "title": f"cost of 1,000 such steps (USD, at {usd_per_gpu_hour:g} USD per GPU-hour)"})
    return with_frames(
        fig, TITLE, labels, first, lambda i: _frame(info, i), lambda i: _line(info, i), of=clean(of), px=(326, 104, 112),
        margin={"r": 90 if usd_per_gpu_hour > 0 else 24},
    )  # fmt: skip


def _frame(info: _Data, i: int) -> list[dict[str, Any]]:
    """Return one frame: the line from prediction to outcome, the outcome, the prediction."""
    row = info.plans.iloc[i]
    has_truth = bool(np.isfinite(row["true_time_s"]))
    ends = pd.DataFrame({"time_s": [row["time_s"], row["true_time_s"]], "cost": [row["cost"], row["true_cost"]]})
    texts = [
        hover(
            [("time", number(end.time_s, "s")), ("cost", number(end.cost, info.unit))],
            f"{what}: {counted(int(row['actors']), 'actor')}",
        )
        for what, end in zip(("predicted", "with the true lengths"), ends.itertuples(), strict=True)
    ]
    between = ends.iloc[: 2 if has_truth else 0]
    predicted, true = ends.iloc[:1], between.iloc[1:]
    return [
        line(
            between, "time_s", "cost", mode="lines", line={"color": VERMILLION, "width": 1.5}, showlegend=False,
            hoverinfo="skip",
        ),
        this_plan(
            predicted["time_s"], predicted["cost"], VERMILLION, size=16, name="this plan, predicted", hoverinfo="text",
            hovertext=texts[:1],
        ),
        this_plan(
            true["time_s"], true["cost"], BLUE, "diamond", 13, name="this plan, with the true lengths", hoverinfo="text",
            hovertext=texts[1:],
        ),
    ]  # fmt: skip


def _line(info: _Data, i: int) -> str:
    """Describe the frame in words."""
    row = info.plans.iloc[i]
    text = f"{counted(int(row['actors']), 'actor')}: predicted {number(row['time_s'], 's')}, {number(row['cost'], info.unit)}"
    if np.isfinite(row["true_time_s"]):
        text += f"; with the true lengths {number(row['true_time_s'], 's')}, {number(row['true_cost'], info.unit)}"
    return text


def _ranges(info: _Data) -> tuple[float, float]:
    """Range of the cost axis that includes every plan of the slider and the bounds below."""
    high = float(np.nanmax(info.plans[["cost", "true_cost"]].to_numpy(dtype=float)))
    return 0.0, max(high, float(info.front["cost"].max() if len(info.front) else 0.0), 1e-12) * 1.08
