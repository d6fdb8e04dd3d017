"""Figure 14: accuracy of predictions from earlier epochs, and the cost of a poor predictor.

Computed from histories, predictors and the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper import figure_10, figure_13, figure_16
from rlhfless.paper.comparison import compare, label_of, totals
from rlhfless.paper.draw import WIDE_LEGEND, bar_of, style_of
from rlhfless.paper.lengths import GPQA, GSM8K, LIVECODEBENCH
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.wording import NAIVE_LEARNER, lower, reached, reached_by, spread
from rlhfless.paper.workloads import LengthHistory, Sources, about_logs, modelled
from rlhfless.plots.palette import ORANGE
from rlhfless.plots.style import styled
from rlhfless.predict import EwmaPredictor, Predictor, SyntheticPredictor, history_quality
from rlhfless.simulate import logged_steps

TITLE = "Figure 14: predictors, and what a poor one costs"
PAPER_WITHIN = {"within_50": 0.7, "within_100": 0.9}
ABOUT = 0.1  # "about 70 %"
PAPER_POOR = (0.44, 1.22, 0.289)  # accuracy; speedup; cost saved
QUALITIES = {"within_50": "changes by at most<br>50 tokens", "within_100": "changes by at most<br>100 tokens",
             "rank_correlation": "rank correlation<br>with the truth"}  # fmt: skip
PREDICTORS = {"poor": "44 % accurate", "last": "last epoch", "mean": "true means"}


@dataclass(frozen=True)
class Figure14Setting:
    """Setting: PPO, GSM8K, Qwen2.5-3B: the setting of the paper's stability facts, and in addition the values of real logs.

    Attributes:
        policies: those that predict; more_policies: those that use no predictions, the oracle among them.
    """

    policies: tuple[str, ...] = ("random", "rlhfless", "solver", "solver+replan")
    more_policies: tuple[str, ...] = ("static-generation", "rlhfuse", "oracle+replan")
    predictors: tuple[str, ...] = tuple(PREDICTORS)
    responses: int = 512
    epochs: int = 3
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def histories(setting: Figure14Setting, sources: Sources) -> list[tuple[LengthHistory, str, bool]]:
    """Return every history that a figure uses, with its algorithm, and whether this figure runs policies on it."""
    ppo, gpqa, code = (
        modelled(model, 1, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)
        for model in (GSM8K, GPQA, LIVECODEBENCH)
    )
    numbers = [(ppo, "PPO", True), (sources.gsm8k(4), "GRPO", True), (gpqa, "PPO", False), (code, "PPO", False)]
    math = sources.math500()
    return [*numbers, *([(math, "GRPO", False)] if math is not None else []), (sources.shipped(), "GRPO", False)]


def elsewhere(sources: Sources) -> list[tuple[str, str, LengthHistory]]:
    """Return figures, algorithm and lengths of the histories that only other figures use, in their full settings."""
    ten, sixteen = figure_10.Figure10Setting(), figure_16.Figure16Setting()
    return [
        ("10, 15", "GRPO", figure_10.history_of("GPQA", "GRPO", ten, sources)),
        ("10", "GRPO", figure_10.history_of("LiveCodeBench", "GRPO", ten, sources)),
        ("13", "PPO", figure_13.history_of(figure_13.Figure13Setting())),
        *(("16", "GRPO", figure_16.history_of(sixteen, limit)) for limit in sixteen.token_limits),
    ]


def predictor_named(name: str, history: LengthHistory, seed: int) -> Predictor:
    """Return a predictor of ``PREDICTORS``; two of them use the true lengths."""
    if name == "last":
        return EwmaPredictor(1)
    return SyntheticPredictor(history.rollouts, PAPER_POOR[0] if name == "poor" else 1.0, seed)


def quality(history: LengthHistory) -> dict[str, float]:
    """Compare the last visit with the one before: the change of prompts' mean lengths, and the rank correlation."""
    rows = history.rollouts
    last = history.last(1)[0]
    now = rows[rows["step"] == last].groupby("prompt_id")["response_tokens"].mean()
    before = rows[(rows["step"] < last) & rows["prompt_id"].isin(now.index)]
    latest = before.groupby("prompt_id")["step"].transform("max") == before["step"]
    earlier = before[latest].groupby("prompt_id")["response_tokens"].mean()
    change = (now - earlier).abs().dropna()
    logged = next(logged_steps(rows, max_response_tokens=history.max_response_tokens, steps=[last]))
    ranks = history_quality(logged.predicted.response_tokens, logged.truth.response_tokens)
    return {
        "within_50": float(np.mean(change <= 50)), "within_100": float(np.mean(change <= 100)),
        "rank_correlation": ranks.rank_correlation, "mean_abs_error_tokens": ranks.mean_abs_error_tokens,
    }  # fmt: skip


def numbers(setting: Figure14Setting, sources: Sources) -> Numbers:
    """Return ``panel, figures, algorithm, data_set, basis, predictor, policy, scope, measure, value``; ``panel`` is
    ``quality``, ``elsewhere`` or ``worth``. ``elsewhere`` is the quality for lengths that only the named figures use; ``worth``
    is for whole steps, and generation alone."""
    rows, planning = [], []
    steady = [("quality", "14", algorithm, history) for history, algorithm, _ in histories(setting, sources)]
    steady += [("elsewhere", *entry) for entry in elsewhere(sources)]
    for panel, figures, algorithm, history in steady:
        cell = {"algorithm": algorithm, "data_set": history.name, "basis": history.basis}
        rows += [
            {"panel": panel, "figures": figures, **cell, "predictor": "last", "policy": "", "scope": "", "measure": measure,
             "value": value}
            for measure, value in quality(history).items()
        ]  # fmt: skip
    for history, algorithm, run in histories(setting, sources):
        cell = {"algorithm": algorithm, "data_set": history.name, "basis": history.basis}
        for name in setting.predictors if run else ():
            predictor = predictor_named(name, history, setting.seed)
            chosen = ["static", *setting.policies, *(setting.more_policies if name == "last" else ())]
            outcome = compare(history, setting.machine, algorithm, chosen, predictor=predictor, seed=setting.seed)
            planning.append(outcome.planning.assign(predictor=name, **cell))
            sums = totals(outcome)
            sums = sums[~sums["policy"].isin(["static", "bound"])]
            rows += [
                {"panel": "worth", "figures": "14", **cell, "predictor": name, "policy": row["policy"], "scope": row["scope"],
                 "measure": measure, "value": row[measure]}
                for row in sums.to_dict("records")
                for measure in ("speedup", "cost_saved", "share", "most_speedup", "most_speedup_on_all", "most_cost_saved")
            ]  # fmt: skip
    return Numbers(pd.DataFrame(rows), pd.concat(planning, ignore_index=True))


def steadiness(numbers: Numbers) -> pd.DataFrame:
    """Return the measures of ``quality`` by algorithm, data set and basis."""
    table = numbers.table[numbers.table["panel"] == "quality"]
    return table.pivot_table(index=["algorithm", "data_set", "basis"], columns="measure", values="value", sort=False)


def _steady(numbers: Numbers) -> list[str]:
    """Describe in words how steady the lengths of each data set are."""
    rows = steadiness(numbers).iterrows()
    return [f"{name} ({basis}) {r['within_50']:.0%} / {r['within_100']:.0%}" for (_, name, basis), r in rows]


def steady_elsewhere(numbers: Numbers) -> str:
    """Describe in words how steady the lengths are that only other figures use."""
    table = numbers.table[numbers.table["panel"] == "elsewhere"]
    by = table.pivot_table(index=["figures", "algorithm", "data_set"], columns="measure", values="value", sort=False)
    return "; ".join(
        f"{name}, {algorithm} (figure{'s' if ',' in figures else ''} {figures}) {r['within_50']:.0%} / {r['within_100']:.0%}"
        for (figures, algorithm, name), r in by.iterrows()
    )


def gains(numbers: Numbers, policy: str, predictor: str, scope: str = "step") -> pd.DataFrame:
    """Return ``speedup, cost_saved, share`` of a policy with a predictor, and the maxima, by algorithm, data set and basis."""
    table = numbers.table
    table = table[(table["panel"] == "worth") & (table["scope"] == scope)]
    table = table[(table["policy"] == policy) & (table["predictor"] == predictor)]
    return table.pivot_table(index=["algorithm", "data_set", "basis"], columns="measure", values="value", sort=False)


def _poor(numbers: Numbers) -> str:
    """Describe in words speed and saving of the rule with the poor predictor."""
    rows = gains(numbers, "rlhfless", "poor").iterrows()
    return ", ".join(f"{r['speedup']:.2f}x and {r['cost_saved']:.0%} ({a}, {basis})" for (a, _, basis), r in rows)


def plot(setting: Figure14Setting, numbers: Numbers) -> go.Figure:
    """Plot the steadiness of prompts (above) and the share of the headroom with each predictor, a panel per history (below)."""
    steady = steadiness(numbers)
    runs = list(gains(numbers, "rlhfless", "last").index)
    heads = ["how steady prompts are from epoch to epoch", *(f"share of the headroom: {a}, {n} ({b})" for a, n, b in runs)]
    fig = make_subplots(
        rows=2, cols=2, subplot_titles=heads, horizontal_spacing=0.07, vertical_spacing=0.13, shared_yaxes=True,
        specs=[[{"colspan": 2}, None], [{}, {}]],
    )  # fmt: skip
    for i, ((algorithm, name, basis), by) in enumerate(steady.iterrows()):
        fig.add_bar(
            x=list(QUALITIES.values()), y=[by[m] for m in QUALITIES], name=f"{algorithm}, {name} ({basis})",
            marker=bar_of(i), row=1, col=1,
        )  # fmt: skip
    for x, value in enumerate(PAPER_WITHIN.values()):
        line = {"color": ORANGE, "width": 2.5, "dash": "dot"}
        fig.add_shape(type="line", x0=x - 0.42, x1=x + 0.42, y0=value, y1=value, line=line, row=1, col=1)
        fig.add_annotation(
            x=x - 0.42, y=value, text=f"paper: about {value:.0%}", showarrow=False, xanchor="left", yanchor="bottom",
            font={"size": 11, "color": "#9A6A00"}, row=1, col=1,
        )  # fmt: skip
    for col, key in enumerate(runs, start=1):
        for policy in (*setting.policies, *setting.more_policies):
            in_setting, style = policy in setting.policies, style_of(policy)
            y = [float(gains(numbers, policy, p if in_setting else "last").loc[key, "share"]) for p in setting.predictors]
            fig.add_scatter(
                x=[PREDICTORS[p] for p in setting.predictors], y=y, name=label_of(policy),
                mode="lines+markers" if in_setting else "lines",
                legendgroup=policy, showlegend=col == 1, line={"color": style.colour, "dash": "solid" if in_setting else "dot"},
                marker={"size": 9, "symbol": style.symbol}, row=2, col=col,
            )  # fmt: skip
    fig.update_yaxes(tickformat=".0%")
    note = "below: whole steps, 0 % is naive static, 100 % the bound for a learner of its size; dotted: needs no prediction, "
    note += "or knows the truth"
    return styled(fig, TITLE, note, barmode="group", legend={**WIDE_LEGEND, "y": -0.08}, height=840, margin={"t": 100})


def caption(setting: Figure14Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    texts = []
    for key in gains(numbers, "rlhfless", "last").index:
        shares = [f"{gains(numbers, 'rlhfless', p).loc[key, 'share']:.0%} ({PREDICTORS[p]})" for p in setting.predictors]
        texts.append(f"{key[0]}, {key[1]} ({key[2]}) {', '.join(shares)}")
    alone = [
        f"{r['speedup']:.2f}x and {r['cost_saved']:.0%} ({a}, {n} ({b}))"
        for (a, n, b), r in gains(numbers, "rlhfless", "poor", "generation").iterrows()
    ]
    logs = sorted({f"{n} ({b})" for _, n, b in steadiness(numbers).index if b != "length model"})
    return Caption(
        "Above: how steady response lengths are from epoch to epoch. Below: the share of the headroom with each predictor.",
        f"Steadiness of {', '.join(logs)}.",
        f"Length models: GSM8K's was fitted to the printed 70 % and 90 %, so it is no evidence for them. "
        f"{setting.machine.about}.{about_logs(numbers.table['basis'])}",
        "About 70 % of prompts change by at most 50 tokens between epochs, 90 % by at most 100 (PPO, GSM8K). With a "
        "predictor that is right for 44 %, the system is still 1.22x faster and 28.9 % cheaper.",
        f"Prompts that change by at most 50 / 100 tokens: {', '.join(_steady(numbers))}; in the length models of other "
        "figures: " + steady_elsewhere(numbers) + ". Share of the headroom of the paper's "
        "rule: " + "; ".join(texts) + f". Generation alone: with 44 % right, speedup and saved cost are {', '.join(alone)}. "
        "The paper does not define '44 % accurate'. Here that share of the prompts is predicted exactly, and the others get "
        "each other's lengths.",
    )  # fmt: skip


def rows(numbers: Numbers) -> list[Row]:
    """Return the printed numbers beside ours; see ``Row``."""
    steady = steadiness(numbers)
    poor, last = (gains(numbers, "rlhfless", p) for p in ("poor", "last"))
    random = gains(numbers, "random", "last")
    measured = steady[steady.index.get_level_values("basis") != "length model"]
    possible = poor.set_axis([f"on {a}, {n} ({b})" for a, n, b in poor.index])
    speed = reached_by(PAPER_POOR[1], possible["most_speedup"], possible["most_speedup_on_all"])
    cost = reached(PAPER_POOR[2], possible["most_cost_saved"], "any learner")
    fitted = "Our model of PPO's lengths was fitted to these numbers, so only the other data sets are evidence"
    return [
        Row(
            "speedup and saved cost of a step with a predictor that is right for 44 %", "1.22x and 28.9 %", _poor(numbers),
            f"with {NAIVE_LEARNER}: {spread(poor['most_speedup'], '.2f')}x; with a learner on all GPUs: "
            f"{spread(poor['most_speedup_on_all'], '.2f')}x; with either: {spread(poor['most_cost_saved'], '.0%')} cheaper",
            f"The speed is {lower(speed)}. The cost is {lower(cost)}. Share of the headroom in time and cost together: the "
            f"rule {spread(poor['share'], '.0%')}, with the last epoch's lengths "
            f"{spread(last['share'], '.0%')}, right-sized random {spread(random['share'], '.0%')}. With the last epoch's "
            f"lengths the rule reaches {spread(last['speedup'], '.2f')}x and saves {spread(last['cost_saved'], '.0%')}. "
            f"A right-sized random split reaches {spread(random['speedup'], '.2f')}x and saves "
            f"{spread(random['cost_saved'], '.0%')}.",
        ),
        Row(
            "prompts whose length changes by at most 50 / 100 tokens between epochs", "about 70 % / 90 %",
            "; ".join(_steady(numbers)), "no bound: a property of lengths",
            f"{fitted}{'. Real lengths change more or less, depending on the data set.' if len(measured) else '.'} "
            f"Length models that only other figures use: {steady_elsewhere(numbers)}.",
        ),
    ]  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    steady, poor = steadiness(numbers), gains(numbers, "rlhfless", "poor")
    subset = steady[steady.index.get_level_values("data_set") == "GSM8K"]
    return [
        Claim.of(
            "about 70 % of prompts change by at most 50 tokens between epochs, 90 % by at most 100",
            (subset[list(PAPER_WITHIN)] >= pd.Series(PAPER_WITHIN) - ABOUT).all(axis=1),
            f"decided by GSM8K: {'; '.join(_steady(numbers))}",
        ),
        Claim.of(
            "faster and cheaper even with a predictor that is right for 44 %",
            [*(poor["speedup"] > 1), *(poor["cost_saved"] > 0)], _poor(numbers),
        ),
    ]  # fmt: skip


FAST = replace(
    Figure14Setting(), policies=("random", "rlhfless", "solver"), more_policies=("static-generation", "rlhfuse", "oracle"),
    predictors=("poor", "last"), epochs=2, responses=256,
)  # fmt: skip
FIGURE = PaperFigure("14", TITLE, Figure14Setting(), FAST, numbers, plot, caption, rows, claims)
