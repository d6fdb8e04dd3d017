"""Figures 4a and 4b: the distribution of response lengths, and how their mean changes during training.

Computed from histories alone; no schedule is involved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.draw import COLOURS, DASHES, SYMBOLS, WIDE_LEGEND
from rlhfless.paper.lengths import MODELS
from rlhfless.paper.paper_figure import Caption, Numbers, PaperFigure
from rlhfless.paper.workloads import LengthHistory, Sources, modelled
from rlhfless.plots.style import styled

TITLE_4A = "Figure 4a: response lengths of data sets"
MODEL, SMOOTH = "length model", 20
TITLE_4B = "Figure 4b: mean response length while training"


@dataclass(frozen=True)
class Figure04Setting:
    """Setting: quantiles of the last visit's lengths; the length models draw this many responses."""

    quantiles: int = 101
    responses: int = 4096


def histories(setting: Figure04Setting, sources: Sources) -> list[LengthHistory]:
    """Return the available histories, real lengths first."""
    histories = [h for h in (sources.gsm8k(8), sources.math500(), sources.shipped()) if h is not None and h.measured]
    return histories + [modelled(model, 1, responses=setting.responses, epochs=1) for model in MODELS]


def numbers_4a(setting: Figure04Setting, sources: Sources) -> Numbers:
    """Return ``data_set, basis, max_response_tokens, share, tokens``: the length that a share of the responses does not
    exceed."""
    tables = []
    for history in histories(setting, sources):
        rows = history.rollouts
        lengths = rows["response_tokens"][rows["step"] == rows["step"].max()].to_numpy(dtype=float)
        share = np.linspace(0.0, 1.0, setting.quantiles)
        cell = {"data_set": history.name, "basis": history.basis, "max_response_tokens": history.max_response_tokens}
        tables.append(pd.DataFrame({"share": share, "tokens": np.quantile(lengths, share)}).assign(**cell))
    table = pd.concat(tables, ignore_index=True)
    return Numbers(table[["data_set", "basis", "max_response_tokens", "share", "tokens"]])


def plot_4a(setting: Figure04Setting, numbers: Numbers) -> go.Figure:
    """Plot cumulative distributions of lengths."""
    fig = go.Figure()
    for i, ((name, basis), subset) in enumerate(numbers.table.groupby(["data_set", "basis"], sort=False)):
        line = {"color": COLOURS[i % len(COLOURS)], "dash": "dot" if basis == "length model" else "solid", "width": 2.5}
        fig.add_scatter(x=subset["tokens"], y=subset["share"], mode="lines", name=f"{name} ({basis})", line=line)
    fig.update_xaxes(
        title="response length (tokens, logarithmic)", type="log", tickvals=[10, 20, 50, 100, 200, 500, 1000, 2000, 4000]
    )
    fig.update_yaxes(title="share of responses that are shorter", tickformat=".0%")
    return styled(
        fig, TITLE_4A, "solid: lengths that a model generated; dotted: stated length models", legend=WIDE_LEGEND, height=500
    )


def caption_4a(setting: Figure04Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    spread, tails = [], []
    for (name, basis), subset in numbers.table.groupby(["data_set", "basis"], sort=False):
        by = subset.set_index("share")["tokens"]
        spread.append(f"{name} ({basis}) {by.iloc[len(by) // 2]:.0f} / {np.interp(0.99, by.index, by):.0f}")
        tails.append(float(np.interp(0.99, by.index, by)) / float(by.iloc[len(by) // 2]))
    models = "; ".join(f"{m.name}: {m.basis}" for m in MODELS)
    return Caption(
        "The share of responses up to each length, one line per data set.",
        "The solid lines: GSM8K and MATH-500 (public logs) where they are at hand, arithmetic (this project's own run).",
        f"Lognormal lengths. {models}.",
        "Distributions per data set, only as a picture: no number is printed.",
        "Median and 99 % quantile in tokens: "
        + ", ".join(spread)
        + f". GPUs wait for few long responses: the longest 1 % are at least "
        f"{min(tails):.1f} to {max(tails):.1f} times as long as the median. Caps on the length hide how much longer.",
    )


def numbers_4b(setting: Figure04Setting, sources: Sources) -> Numbers:
    """Return ``data_set, basis, step, mean_tokens, smooth_tokens`` (mean of ``SMOOTH`` steps if a log has more than 100)."""
    tables = [log.assign(data_set=name, basis="log") for name, log in sources.mean_lengths().items()]
    shipped = sources.shipped()
    mean = shipped.rollouts.groupby("step")["response_tokens"].mean()
    subset = pd.DataFrame({"step": mean.index.astype(int), "mean_tokens": mean.to_numpy()})
    tables.append(subset.assign(data_set=shipped.name, basis=shipped.basis))
    for table in tables:
        steps = SMOOTH if len(table) > 100 else 1
        table["smooth_tokens"] = table["mean_tokens"].rolling(steps, min_periods=1).mean()
    return Numbers(pd.concat(tables, ignore_index=True)[["data_set", "basis", "step", "mean_tokens", "smooth_tokens"]])


def plot_4b(setting: Figure04Setting, numbers: Numbers) -> go.Figure:
    """Plot the mean length over each run."""
    fig = go.Figure()
    for i, ((name, basis), subset) in enumerate(numbers.table.groupby(["data_set", "basis"], sort=False)):
        fig.add_scatter(
            x=(subset["step"] + 1) / len(subset), y=subset["smooth_tokens"],
            mode="lines+markers" if len(subset) <= 100 else "lines",
            name=f"{name} ({basis}, {len(subset)} {'epochs' if basis == 'shipped run' else 'steps'})",
            line={"color": COLOURS[i], "dash": DASHES[i]}, marker={"symbol": SYMBOLS[i], "size": 7},
        )  # fmt: skip
    fig.update_xaxes(title="share of the run", tickformat=".0%")
    fig.update_yaxes(title="mean response length (tokens)", rangemode="tozero")
    note = f"every step is another batch of prompts; runs of more than 100 steps: mean of the last {SMOOTH}"
    return styled(fig, TITLE_4B, note, legend=WIDE_LEGEND)


def caption_4b(setting: Figure04Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    moved = []
    for (name, basis), subset in numbers.table.groupby(["data_set", "basis"], sort=False):
        third = max(1, len(subset) // 3)
        first, last = subset["mean_tokens"].iloc[:third].mean(), subset["mean_tokens"].iloc[-third:].mean()
        moved.append(f"{name} ({basis}) from {first:.0f} to {last:.0f}")
    real = sorted({f"{n} ({b})" for n, b in zip(numbers.table["data_set"], numbers.table["basis"], strict=True) if b != MODEL})
    return Caption(
        "The mean response length over the course of each run.",
        f"Mean lengths of {', '.join(real)}." if real else "Nothing: no log is at hand.",
        "Nothing." if MODEL not in set(numbers.table["basis"]) else "What the legend calls a length model.",
        "Mean length changes with training, only as a picture: no number is printed.",
        "Tokens, from the first to the last third of the run: " + "; ".join(moved) + ". The change and its direction "
        "depend on task and reward, so we claim no direction.",
    )


FAST = replace(Figure04Setting(), responses=1024)
FIGURE_4A = PaperFigure("4a", TITLE_4A, Figure04Setting(), FAST, numbers_4a, plot_4a, caption_4a)
FIGURE_4B = PaperFigure("4b", TITLE_4B, Figure04Setting(), FAST, numbers_4b, plot_4b, caption_4b)
