"""Plots learning curves over several seeds: reward, held-out accuracy with intervals, lengths, and actors per plan.

Input are runs as ``tests/benchmarks/learning_curves.py`` records them: numbers per step, and accuracies before and after. Each
seed is drawn thin, and the seeds' mean over each epoch thick. Steps of one epoch have different prompts, and lengths differ
more between prompts than they drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import line, lines
from rlhfless.plots.palette import BLUE, GREEN, ORANGE, PURPLE, VERMILLION
from rlhfless.plots.style import clean, counted, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of, stacked

TITLE = "Learning curves"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
ROWS = (("reward_mean", "reward, accuracy"), ("response_tokens_mean", "tokens per response"), ("actors", "actors of the plan"))


class _Data(NamedTuple):
    """Data of ``plot_learning``: one row per run and step, and one per run and evaluation.

    Attributes:
        steps: ``algorithm, seed, step, epoch, reward_mean, response_tokens_mean, actors``.
        means: the same over seeds and the steps of an epoch, by ``algorithm`` and ``epoch``, with ``seeds`` that got so far.
            ``step`` is the mean of an epoch's.
        accuracies: ``algorithm, seed, after_steps, accuracy, low, high, problems`` on held-out problems.
        missing: why there is nothing to show, or the empty text.
    """

    steps: pd.DataFrame
    means: pd.DataFrame
    accuracies: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return steps, means and accuracies below each other."""
        return stacked(steps=self.steps, means=self.means, accuracies=self.accuracies)


def _data(runs: Sequence[Mapping[str, Any]]) -> _Data:
    """Return the data of ``plot_learning``."""
    names = [name for name, _ in ROWS]
    rows = [
        {
            "algorithm": run["algorithm"],
            "seed": run["seed"],
            "step": int(step["step"]),
            "epoch": int(step["epoch"]),
            **{name: float(step[name]) for name in names},
        }
        for run in runs
        for step in run["steps"]
    ]
    columns = ["algorithm", "seed", "step", "epoch", *names]
    steps = pd.DataFrame(rows, columns=columns)
    asked = ["algorithm", "seed", "after_steps", "accuracy", "low", "high", "problems"]
    points = [
        {
            "algorithm": run["algorithm"],
            "seed": run["seed"],
            "after_steps": after,
            **{name: run[when][name] for name in asked[3:]},
        }
        for run in runs
        for when, after in (("start", 0), ("end", len(run["steps"])))
        if run.get(when)
    ]
    accuracies = pd.DataFrame(points, columns=asked)
    if steps.empty:
        return _Data(steps, steps, accuracies, "There are no steps to show.")
    groups = steps.groupby(["algorithm", "epoch"], sort=False)
    means = groups[["step", *names]].mean().assign(seeds=groups["seed"].nunique()).reset_index()
    return _Data(steps, means, accuracies)


def plot_learning(runs: Sequence[Mapping[str, Any]]) -> DataFigure:
    """Plot mean reward by step with held-out accuracy at both ends, mean length, and actors; one colour per algorithm.

    Args:
        runs: each with ``algorithm``, ``seed``, ``steps`` (of ``step``, ``epoch``, ``reward_mean``, ``response_tokens_mean``,
            ``actors``), and with ``start`` and ``end`` (``accuracy, low, high, problems``) where accuracy was measured.

    Returns:
        A figure; without steps one that says so.
    """
    info = _data(runs)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame(), rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.46, 0.27, 0.27])
    algorithms = list(dict.fromkeys(info.steps["algorithm"]))
    for colour, algorithm in zip(COLOURS, algorithms, strict=False):
        _add_algorithm(fig, info, algorithm, colour)
    for row, (_, title) in enumerate(ROWS, start=1):
        fig.update_yaxes(title=title, rangemode="tozero", row=row, col=1)
    fig.update_xaxes(title="steps", row=3, col=1)
    notes = []
    for algorithm in algorithms:
        measured = info.accuracies[info.accuracies["algorithm"] == algorithm]
        first, last = measured[measured["after_steps"] == 0]["accuracy"], measured[measured["after_steps"] > 0]["accuracy"]
        accuracy_text = f", held-out accuracy {first.mean():.1%} to {last.mean():.1%}" if len(first) and len(last) else ""
        seeds = info.steps[info.steps["algorithm"] == algorithm]["seed"].nunique()
        notes.append(f"{clean(algorithm.upper())}: {counted(seeds, 'seed')}{accuracy_text}")
    note = "; ".join(notes)
    if len(info.accuracies):
        note += (
            "<br>marks: accuracy on held-out problems with 95 % intervals; thin lines: seeds; thick lines: means over seeds "
            "and epochs"
        )
    return styled(fig, TITLE, note, height=620)


def _add_algorithm(fig: go.Figure, info: _Data, algorithm: str, colour: str) -> None:
    """Add an algorithm: its seeds thin, their means thick, and its accuracies as marks."""
    name = clean(algorithm.upper())
    steps, means, measured = (
        table[table["algorithm"] == algorithm] for table in (info.steps, info.means, info.accuracies)
    )  # fmt: skip
    steps, means = (table.assign(after=table["step"] + 1) for table in (steps, means))

    def of_seed(seed: Any, _: pd.DataFrame) -> dict[str, Any]:
        return {"name": f"{name}, seed {seed}", "line": {"color": colour, "width": 0.8}, "opacity": 0.35}

    def of_mean(row: Any) -> str:
        numbers = [("mean reward", number(row.reward_mean)), ("mean length", number(row.response_tokens_mean, "tokens"))]
        numbers += [("actors", number(row.actors)), ("seeds", str(row.seeds))]
        return hover(numbers, f"{name}, epoch {row.epoch}")

    def of_accuracy(row: Any) -> str:
        accuracy = ("accuracy", f"{row.accuracy:.1%} ({row.low:.1%} to {row.high:.1%})")
        return hover(
            [accuracy, ("of", counted(row.problems, "problem"))],
            f"{name}, seed {row.seed}, after {counted(row.after_steps, 'step')}",
        )

    thick = {"mode": "lines", "line": {"color": colour, "width": 2.5}, "name": name, "legendgroup": name}
    for row, (column, _) in enumerate(ROWS, start=1):
        thin = lines(steps, "after", column, "seed", of_seed, mode="lines", showlegend=False, hoverinfo="skip")
        mean = line(means, "after", column, of_mean, showlegend=row == 1, **thick)
        fig.add_traces([*thin, mean], rows=row, cols=1)
    if len(measured):
        bars = {
            "array": measured["high"] - measured["accuracy"], "arrayminus": measured["accuracy"] - measured["low"],
            "thickness": 1.2, "width": 3,
        }  # fmt: skip
        marks = line(
            measured, "after_steps", "accuracy", of_accuracy, mode="markers", error_y=bars, name=f"{name}, held out",
            marker={"color": colour, "size": 8, "symbol": "diamond-open", "line": {"width": 2}},
        )  # fmt: skip
        fig.add_trace(marks, row=1, col=1)
