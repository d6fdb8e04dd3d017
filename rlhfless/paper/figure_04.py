"""Figures 4a and 4b: how long responses are, and how their mean length moves while training goes on.

Knows histories; nothing of schedules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.draw import COLOURS, DASHES, SYMBOLS, WIDE_LEGEND
from rlhfless.paper.lengths import MODELS
from rlhfless.paper.parts import Caption, Numbers, PaperFigure
from rlhfless.paper.workloads import History, Sources, modelled
from rlhfless.plots.style import styled

TITLE_4A = "Figure 4a: response lengths of data sets"
TITLE_4B = "Figure 4b: mean response length while training"


@dataclass(frozen=True)
class Setting:
    """Quantiles of the last visit's lengths; the models draw so many responses."""

    quantiles: int = 101
    responses: int = 4096


def histories(setting: Setting, sources: Sources) -> list[History]:
    """What is known, real lengths first."""
    known = [h for h in (sources.gsm8k(8), sources.math500(), sources.shipped()) if h is not None and h.measured]
    return known + [modelled(model, 1, responses=setting.responses, epochs=1) for model in MODELS]


def numbers_4a(setting: Setting, sources: Sources) -> Numbers:
    """``data_set, basis, response_limit, share, tokens``: the lengths below which a share of the responses stay."""
    tables = []
    for history in histories(setting, sources):
        rows = history.rollouts
        lengths = rows["response_tokens"][rows["step"] == rows["step"].max()].to_numpy(dtype=float)
        share = np.linspace(0.0, 1.0, setting.quantiles)
        cell = {"data_set": history.name, "basis": history.basis, "response_limit": history.response_limit}
        tables.append(pd.DataFrame({"share": share, "tokens": np.quantile(lengths, share)}).assign(**cell))
    table = pd.concat(tables, ignore_index=True)
    return Numbers(table[["data_set", "basis", "response_limit", "share", "tokens"]])


def plot_4a(setting: Setting, found: Numbers) -> go.Figure:
    """Cumulative distributions."""
    fig = go.Figure()
    for i, ((name, basis), own) in enumerate(found.table.groupby(["data_set", "basis"], sort=False)):
        line = {"color": COLOURS[i % len(COLOURS)], "dash": "dot" if basis == "length model" else "solid", "width": 2.5}
        fig.add_scatter(x=own["tokens"], y=own["share"], mode="lines", name=f"{name} ({basis})", line=line)
    fig.update_xaxes(title="response length (tokens, logarithmic)", type="log", dtick="D2")
    fig.update_yaxes(title="share of responses that are shorter", tickformat=".0%")
    return styled(
        fig, TITLE_4A, "solid: lengths that a model generated; dotted: stated length models", legend=WIDE_LEGEND, height=500
    )


def caption_4a(setting: Setting, found: Numbers) -> Caption:
    """See ``Caption``."""
    spread = []
    for (name, basis), own in found.table.groupby(["data_set", "basis"], sort=False):
        by = own.set_index("share")["tokens"]
        spread.append(f"{name} ({basis}) {by.iloc[len(by) // 2]:.0f} / {np.interp(0.99, by.index, by):.0f}")
    models = "; ".join(f"{m.name}: {m.basis}" for m in MODELS)
    return Caption(
        "GSM8K and MATH-500 (public logs), arithmetic (this project's own run), where they are shown as lines without dots.",
        f"Lognormal lengths. {models}.",
        "Distributions per data set, as a picture only: no number is printed.",
        "Median and 99 % quantile in tokens: " + ", ".join(spread) + ". What schedules live from is there in all of them: a "
        "tail of a few long responses, behind which GPUs wait.",
    )


def numbers_4b(setting: Setting, sources: Sources) -> Numbers:
    """``data_set, basis, step, mean_tokens``."""
    tables = []
    log = sources.gsm8k_steps()
    if log is not None:
        tables.append(log.assign(data_set="GSM8K", basis="log"))
    shipped = sources.shipped()
    mean = shipped.rollouts.groupby("step")["response_tokens"].mean()
    own = pd.DataFrame({"step": mean.index.astype(int), "mean_tokens": mean.to_numpy()})
    tables.append(own.assign(data_set=shipped.name, basis=shipped.basis))
    return Numbers(pd.concat(tables, ignore_index=True)[["data_set", "basis", "step", "mean_tokens"]])


def plot_4b(setting: Setting, found: Numbers) -> go.Figure:
    """Mean length by step."""
    fig = go.Figure()
    for i, ((name, basis), own) in enumerate(found.table.groupby(["data_set", "basis"], sort=False)):
        fig.add_scatter(
            x=own["step"], y=own["mean_tokens"], mode="lines+markers", name=f"{name} ({basis})",
            line={"color": COLOURS[i], "dash": DASHES[i]}, marker={"symbol": SYMBOLS[i], "size": 7},
        )  # fmt: skip
    fig.update_xaxes(title="training step (of the arithmetic run: epoch)")
    fig.update_yaxes(title="mean response length (tokens)", rangemode="tozero")
    return styled(fig, TITLE_4B, "every step of a log is another batch of prompts", legend=WIDE_LEGEND)


def caption_4b(setting: Setting, found: Numbers) -> Caption:
    """See ``Caption``."""
    moved = []
    for (name, basis), own in found.table.groupby(["data_set", "basis"], sort=False):
        third = max(1, len(own) // 3)
        first, last = own["mean_tokens"].iloc[:third].mean(), own["mean_tokens"].iloc[-third:].mean()
        moved.append(f"{name} ({basis}) from {first:.0f} to {last:.0f} tokens (first and last third of the steps)")
    return Caption(
        "Everything that is called a log or a run.",
        "Nothing, unless the legend says 'length model'.",
        "Mean length moves with training, as a picture only: no number is printed.",
        "; ".join(moved) + ". How far and where to depends on task and reward, so no direction is claimed.",
    )


FAST = replace(Setting(), responses=1024)
FIGURE_4A = PaperFigure("4a", TITLE_4A, Setting(), FAST, numbers_4a, plot_4a, caption_4a)
FIGURE_4B = PaperFigure("4b", TITLE_4B, Setting(), FAST, numbers_4b, plot_4b, caption_4b)
