"""Plots time, cost and value of plans over scenarios of lengths, with the true outcome marked, with a slider.

Inputs are evaluations of several plans over the same scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from rlhfless.plots.palette import BLUE, GREEN, ORANGE, POLICY_STYLES, PURPLE, VERMILLION
from rlhfless.plots.slider import SLIDER_PX, caption, slider, start_at
from rlhfless.plots.style import clean, hover, legend_below, message_figure, number, styled
from rlhfless.plots.tables import stacked

if TYPE_CHECKING:
    from solver.model.objective import Objective
    from solver.timing.evaluate import Evaluation

TITLE = "Time and cost of plans over scenarios of lengths"
COLOURS = (BLUE, GREEN, PURPLE, ORANGE, VERMILLION)
MAX_SCENARIOS = 400  # drawn of each box; means and worst means are over all
PANELS = (("time_s", "time (s)"), ("gpu_seconds", "cost (GPU-seconds)"), ("value", "objective value (weighted time and cost)"))


class OutcomesInfo(NamedTuple):
    """Data of ``plot_outcomes``: plans over scenarios, by label of the slider.

    Attributes:
        table: ``label, plan``, and of each of ``time_s, gpu_seconds, value`` the mean, the mean of the worst quarter
            (``..._worst``) and that of the true lengths (``..._true``). The last is NaN when they are unknown.
        samples: (label, plan) to (3, S) times, GPU-seconds and values of the scenarios.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    samples: dict[tuple[str, str], NDArray[np.float64]]
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the table and every scenario of every plan below each other."""
        drawn = [
            pd.DataFrame(values.T, columns=[name for name, _ in PANELS]).assign(label=label, plan=plan)
            for (label, plan), values in self.samples.items()
        ]
        return stacked(plans=self.table, scenarios=pd.concat(drawn) if drawn else pd.DataFrame())


def outcomes_info(
    outcomes: Mapping[Any, Mapping[str, Evaluation]],
    objective: Objective,
    norms: Mapping[Any, tuple[float, float]],
    truths: Mapping[Any, Mapping[str, Evaluation]] | None = None,
) -> OutcomesInfo:
    """Return the data of ``plot_outcomes``; for the arguments see there."""
    rows, samples = [], {}
    for label, of_plans in outcomes.items():
        for plan, outcome in of_plans.items():
            drawn = _measures(outcome, objective, norms[label])
            samples[str(label), str(plan)] = drawn
            worst = np.sort(drawn, axis=1)[:, -max(1, drawn.shape[1] // 4) :].mean(axis=1)
            true = (truths or {}).get(label, {}).get(plan)
            exact = np.full(3, np.nan) if true is None else _measures(true, objective, norms[label]).mean(axis=1)
            rows.append((str(label), str(plan), *drawn.mean(axis=1), *worst, *exact))
    names = [f"{name}{end}" for end in ("", "_worst", "_true") for name, _ in PANELS]
    table = pd.DataFrame(rows, columns=["label", "plan", *names])
    return OutcomesInfo(table, samples, "" if rows else "There are no plans to show.")


def _measures(outcome: Evaluation, objective: Objective, norms: tuple[float, float]) -> NDArray[np.float64]:
    """Return (3, S) times, GPU-seconds, values."""
    times, costs = outcome.makespans_s, outcome.gpu_seconds_of
    w = objective.time_weight
    return np.stack([times, costs, w * times / norms[0] + (1 - w) * costs / norms[1]])


def plot_outcomes(
    outcomes: Mapping[Any, Mapping[str, Evaluation]],
    objective: Objective,
    norms: Mapping[Any, tuple[float, float]],
    truths: Mapping[Any, Mapping[str, Evaluation]] | None = None,
    *,
    of: str = "scenarios",
    start: Any = None,
) -> go.Figure:
    """Plot boxes of time, cost and weighted value of several plans over the same scenarios; the true lengths are marked.

    Args:
        outcomes: label of the slider to (name of a plan to its results over the scenarios). Boxes reach from the quarter to
            three quarters of the scenarios, the dashed line in them is the mean.
        objective: its time weight gives the value; norms: label to the time and the GPU-seconds that count as 1.
        truths: label to (name to the plan's result with the true lengths).
        of: what the labels are. start: the label that is shown first; the middle one when None.

    Returns:
        A figure with one frame per label; without plans it is a figure that says so.
    """
    info = outcomes_info(outcomes, objective, norms, truths)
    if info.missing:
        return message_figure(TITLE, info.missing)
    labels = list(dict.fromkeys(info.table["label"]))
    names = list(dict.fromkeys(info.table["plan"]))
    first = start_at(labels, None if start is None else str(start))
    fig = make_subplots(rows=1, cols=3, horizontal_spacing=0.04, shared_yaxes=True)
    for col in range(3):
        for trace in _frame(info, labels[first], names, col):
            fig.add_trace(trace, row=1, col=col + 1)
        every = np.concatenate([s[col] for s in info.samples.values()])
        ends = np.append(every, info.table[f"{PANELS[col][0]}_true"].dropna())
        room = 0.05 * max(ends.max() - ends.min(), 1e-9)
        fig.update_xaxes(title=PANELS[col][1], range=[ends.min() - room, ends.max() + room], row=1, col=col + 1)
    heads = [(fig.layout[axis].domain[0], text) for axis, text in (("xaxis", "time"), ("xaxis2", "cost"), ("xaxis3", "value"))]
    fig.frames = [
        go.Frame(
            data=[trace for col in range(3) for trace in _frame(info, label, names, col)],
            traces=list(range(len(fig.data))),
            name=label,
            layout=caption(_line(info, label), heads),
        )
        for label in labels
    ]
    fig.update_yaxes(
        autorange="reversed", type="category", categoryorder="array", categoryarray=[clean(name) for name in names]
    )
    note = (
        "boxes: the middle half of the scenarios, with median (solid) and mean (dashed); whiskers: the others except outliers"
    )
    inner, above, below = int(min(332, 42 + 46 * len(names))), 138, 96 + SLIDER_PX
    styled(
        fig, TITLE, note, height=inner + above + below, sliders=[slider(labels, first, f"{clean(of)}: ")],
        **caption(_line(info, labels[first]), heads), legend=legend_below(inner),
    )  # fmt: skip
    fig.update_layout(margin={"t": above, "b": below}, sliders=[{"pad": {"t": below - SLIDER_PX}}], boxgap=0.3)
    return fig


def _frame(info: OutcomesInfo, label: str, names: list[str], col: int) -> list[Any]:
    """Return one frame: a box for every plan, and a marker at its result with the true lengths."""
    measure = PANELS[col][0]
    table = info.table[info.table["label"] == label].set_index("plan")
    traces: list[Any] = []
    for i, name in enumerate(names):
        drawn = info.samples.get((label, name), np.zeros((3, 0)))[col]
        if len(drawn) > MAX_SCENARIOS:
            drawn = np.sort(drawn)[np.linspace(0, len(drawn) - 1, MAX_SCENARIOS).astype(int)]
        colour = POLICY_STYLES["random"].colour if name == "random split" else COLOURS[i % len(COLOURS)]
        traces.append(
            go.Box(
                x=drawn, y=[clean(name)] * len(drawn), orientation="h", boxmean=True, boxpoints=False, name=clean(name),
                marker={"color": colour}, line={"width": 1.5}, showlegend=False, hoverinfo="x",
            )
        )  # fmt: skip
    with_truth = table[table[f"{measure}_true"].notna()]
    texts = [
        hover([("true lengths", number(row[f"{measure}_true"])), ("mean over scenarios", number(row[measure])),
               ("mean of the worst quarter", number(row[f"{measure}_worst"]))], clean(name))
        for name, row in with_truth.iterrows()
    ]  # fmt: skip
    traces.append(
        go.Scatter(
            x=with_truth[f"{measure}_true"], y=[clean(name) for name in with_truth.index], mode="markers", hovertext=texts,
            hoverinfo="text", name="with the true lengths", showlegend=col == 0,
            marker={"symbol": "diamond", "size": 11, "color": VERMILLION, "line": {"width": 1, "color": "#444444"}},
        )
    )  # fmt: skip
    return traces


def _line(info: OutcomesInfo, label: str) -> str:
    """Name the best plan in words."""
    table = info.table[info.table["label"] == label]

    def best(column: str) -> str:
        lowest = table[column].min()
        ties = table[table[column] <= lowest + 1e-9 * abs(lowest)]["plan"]
        return f"{' = '.join(map(clean, ties))} ({number(lowest)})"

    parts = [f"best mean value: {best('value')}", f"best worst quarter: {best('value_worst')}"]
    if table["value_true"].notna().any():
        parts.append(f"best with the true lengths: {best('value_true')}")
    return "; ".join(parts)
