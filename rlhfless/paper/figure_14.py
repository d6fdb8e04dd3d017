"""Figure 14: how good predictions from earlier epochs are, and what a poor predictor costs.

Knows histories, predictors and the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import compare, label_of, totals
from rlhfless.paper.draw import COLOURS, WIDE_LEGEND, style_of
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.parts import Caption, Numbers, PaperFigure
from rlhfless.paper.workloads import History, Sources, modelled
from rlhfless.plots.palette import ORANGE
from rlhfless.plots.style import styled
from rlhfless.predict import DialledPredictor, EwmaPredictor, Predictor, history_quality
from rlhfless.simulate import logged_steps

TITLE = "Figure 14: predictors, and what a poor one costs"
PAPER_WITHIN = {"within_50": 0.7, "within_100": 0.9}
PAPER_POOR = (0.44, 1.22, 0.289)  # accuracy; speedup; cost saved
QUALITIES = {"within_50": "changes by at most<br>50 tokens", "within_100": "changes by at most<br>100 tokens",
             "rank_correlation": "rank correlation<br>with the truth"}  # fmt: skip
PREDICTORS = {"last": "last epoch", "poor": "44 % accurate", "mean": "true mean of each prompt"}


@dataclass(frozen=True)
class Setting:
    """PPO, GSM8K, Qwen2.5-3B: the setting of the paper's stability facts; beside it what real logs say."""

    policies: tuple[str, ...] = ("static", "random", "rlhfless", "solver", "solver+replan")
    responses: int = 512
    epochs: int = 3
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def histories(setting: Setting, sources: Sources) -> list[tuple[History, str]]:
    """Histories with the algorithm that they are run with."""
    ppo = modelled(GSM8K, 1, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)
    found: list[tuple[History, str]] = [(ppo, "PPO"), (sources.gsm8k(4), "GRPO")]
    return [*found, (sources.shipped(), "GRPO")]


def predictor_named(name: str, history: History, seed: int) -> Predictor:
    """A predictor of ``PREDICTORS``; two of them know the truth."""
    if name == "last":
        return EwmaPredictor(1)
    return DialledPredictor(history.rollouts, PAPER_POOR[0] if name == "poor" else 1.0, seed)


def quality(history: History) -> dict[str, float]:
    """Of the last visit against the one before: how far prompts' mean lengths moved, and how well the last one ranks."""
    rows = history.rollouts
    last = history.last(1)[0]
    now = rows[rows["step"] == last].groupby("prompt_id")["response_tokens"].mean()
    before = rows[(rows["step"] < last) & rows["prompt_id"].isin(now.index)]
    latest = before.groupby("prompt_id")["step"].transform("max") == before["step"]
    earlier = before[latest].groupby("prompt_id")["response_tokens"].mean()
    change = (now - earlier).abs().dropna()
    logged = next(logged_steps(rows, response_limit=history.response_limit, steps=[last]))
    ranks = history_quality(logged.predicted.response_tokens, logged.truth.response_tokens)
    return {
        "within_50": float(np.mean(change <= 50)), "within_100": float(np.mean(change <= 100)),
        "rank_correlation": ranks.rank_correlation, "mean_abs_error_tokens": ranks.mean_abs_error_tokens,
    }  # fmt: skip


def numbers(setting: Setting, sources: Sources) -> Numbers:
    """``panel`` (``quality`` or ``worth``), ``algorithm, data_set, basis, predictor, policy, measure, value``; whole steps."""
    rows, planning = [], []
    for history, algorithm in histories(setting, sources):
        cell = {"algorithm": algorithm, "data_set": history.name, "basis": history.basis}
        for measure, value in quality(history).items():
            rows.append({"panel": "quality", **cell, "predictor": "last", "policy": "", "measure": measure, "value": value})
        if history.basis == "shipped run":
            continue  # its lengths are no paper's; it is here for the quality alone
        for name in PREDICTORS:
            predictor = predictor_named(name, history, setting.seed)
            outcome = compare(history, setting.machine, algorithm, setting.policies, predictor=predictor, seed=setting.seed)
            planning.append(outcome.planning.assign(predictor=name, **cell))
            whole = totals(outcome)
            whole = whole[(whole["scope"] == "step") & ~whole["policy"].isin(["static", "bound"])]
            rows += [
                {
                    "panel": "worth",
                    **cell,
                    "predictor": name,
                    "policy": one["policy"],
                    "measure": measure,
                    "value": one[measure],
                }
                for one in whole.to_dict("records")
                for measure in ("speedup", "cost_saved", "share")
            ]
    return Numbers(pd.DataFrame(rows), pd.concat(planning, ignore_index=True))


def plot(setting: Setting, found: Numbers) -> go.Figure:
    """Quality on the left; on the right the share of the possible with each predictor."""
    table = found.table
    heads = ["how steady prompts are", "share of the possible, by predictor"]
    fig = make_subplots(rows=1, cols=2, subplot_titles=heads, horizontal_spacing=0.1)
    left = table[table["panel"] == "quality"]
    for i, ((algorithm, name, basis), own) in enumerate(left.groupby(["algorithm", "data_set", "basis"], sort=False)):
        by = own.set_index("measure")["value"]
        fig.add_bar(
            x=list(QUALITIES.values()), y=[by[m] for m in QUALITIES], name=f"{algorithm}, {name} ({basis})",
            marker={"color": COLOURS[i]}, row=1, col=1,
        )  # fmt: skip
    for x, value in enumerate(PAPER_WITHIN.values()):
        fig.add_scatter(
            x=[list(QUALITIES.values())[x]], y=[value], mode="markers", name="printed in the paper: 70 %, 90 %",
            showlegend=x == 0, marker={"symbol": "star", "size": 14, "color": ORANGE, "line": {"width": 1, "color": "#444444"}},
            row=1, col=1,
        )  # fmt: skip
    right = table[(table["panel"] == "worth") & (table["measure"] == "share")]
    for (algorithm, name, basis, policy), own in right.groupby(["algorithm", "data_set", "basis", "policy"], sort=False):
        style = style_of(policy)
        by = own.set_index("predictor")["value"]
        fig.add_scatter(
            x=[PREDICTORS[p] for p in PREDICTORS], y=[by[p] for p in PREDICTORS], mode="lines+markers",
            name=f"{label_of(policy)}; {algorithm}, {name} ({basis})",
            line={"dash": "solid" if algorithm == "GRPO" else "dot", "color": style.colour},
            marker={"size": 9, "symbol": style.symbol}, row=1, col=2,
        )  # fmt: skip
    fig.update_yaxes(tickformat=".0%", row=1, col=1)
    fig.update_yaxes(tickformat=".0%", row=1, col=2)
    return styled(
        fig, TITLE, "0 %: naive static; 100 %: the bound", barmode="group", legend={**WIDE_LEGEND, "y": -0.18}, height=620,
        margin={"t": 100},
    )  # fmt: skip


def caption(setting: Setting, found: Numbers) -> Caption:
    """See ``Caption``."""
    table = found.table
    by = table[table["panel"] == "quality"].pivot_table(
        index=["algorithm", "data_set", "basis"], columns="measure", values="value", sort=False
    )
    steady = [f"{a}, {n} ({b}) {r['within_50']:.0%} / {r['within_100']:.0%}" for (a, n, b), r in by.iterrows()]
    poor = table[(table["panel"] == "worth") & (table["policy"] == "rlhfless")].pivot_table(
        index=["algorithm", "data_set", "basis", "predictor"], columns="measure", values="value", sort=False
    )
    worth = [
        f"{a}, {n} ({b}), {PREDICTORS[p]}: {r['speedup']:.2f}x, {r['cost_saved']:.0%}, {r['share']:.0%} of the possible"
        for (a, n, b, p), r in poor.iterrows()
    ]
    return Caption(
        "Steadiness on what is called log or run.",
        "The length model of GSM8K was fitted to the printed 70 % and 90 %, so it confirms nothing. "
        "" + setting.machine.about + ".",
        "About 70 % of prompts change by at most 50 tokens between epochs, 90 % by at most 100 (PPO, GSM8K); with a "
        "predictor that is right for 44 % still 1.22x faster and 28.9 % cheaper.",
        "Prompts that change by at most 50 / 100 tokens: " + ", ".join(steady) + ". The paper's rule against naive static: "
        + "; ".join(worth) + ". A poor predictor costs little where most of the gain needs no prediction at all. We take '44 % "
        "accurate' as: that share of the prompts is predicted exactly, the others get each other's lengths.",
    )  # fmt: skip


FAST = replace(Setting(), policies=("static", "random", "rlhfless", "solver"), epochs=2, responses=256)
FIGURE = PaperFigure("14", TITLE, Setting(), FAST, numbers, plot, caption)
