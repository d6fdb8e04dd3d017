"""Figures 14 to 16: predictors and what a poor one costs, the paper's three parameters, and up to 160 GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.facets import FROM_ZERO, PERCENT, Look, Panel, facets, for_each, looks_of
from rlhfless.paper.figure import NAIVE_LEARNER, NO_BOUND, STATED, Finding, Numbers, PaperFigure, Text, spread, verdict
from rlhfless.paper.figures_10_to_13 import SHARE, SHARE_NOTE, cell_lengths, drifting_lengths
from rlhfless.paper.lengths import GPQA, GSM8K, LIVECODEBENCH, LengthModel
from rlhfless.paper.machine import LLAMA_70B_H100, QWEN_3B_L40S, Machine
from rlhfless.paper.runs import LOOKS, SCOPES, Outcome, Runs, compare, tabulated, totals
from rlhfless.paper.variants import FixedActors
from rlhfless.paper.workloads import GSM8K_LENGTHS, LengthHistory, Sources, modelled
from rlhfless.plots.palette import VERMILLION
from rlhfless.predict import EwmaPredictor, Predictor, SyntheticPredictor, history_quality
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.scheduling.rlhfless import RLHFless
from rlhfless.simulate import logged_steps

# Figure 14: accuracy of predictions from earlier epochs, and the cost of a poor predictor

TITLE_14 = "Figure 14: predictors, and what a poor one costs"
PRINTED_WITHIN = {"within_50": 0.7, "within_100": 0.9}
ABOUT = 0.1  # "about 70 %"
PRINTED_POOR = (0.44, 1.22, 0.289)  # accuracy; speedup; cost saved
QUALITIES = {"within_50": "changes by at most<br>50 tokens", "within_100": "changes by at most<br>100 tokens",
             "rank_correlation": "rank correlation<br>with the truth"}  # fmt: skip
PREDICTORS = {"poor": "44 % accurate", "last": "last epoch", "mean": "true means"}
WORTH = ("speedup", "cost_saved", "share", "most_speedup", "most_speedup_on_all", "most_cost_saved")


def histories_of_14(sources: Sources, responses: int, epochs: int, seed: int) -> list[tuple[LengthHistory, str, bool]]:
    """Return every history of the figure, with its algorithm, and whether policies run on it."""
    ppo, gpqa, code = (
        modelled(model, 1, responses=responses, epochs=epochs, seed=seed) for model in (GSM8K, GPQA, LIVECODEBENCH)
    )
    known = [(ppo, "PPO", True), (sources.gsm8k(4), "GRPO", True), (gpqa, "PPO", False), (code, "PPO", False)]
    math = sources.math500()
    return [*known, *([(math, "GRPO", False)] if math is not None else []), (sources.shipped(), "GRPO", False)]


def elsewhere(sources: Sources) -> list[tuple[str, str, LengthHistory]]:
    """Return figures, algorithm and lengths of the histories that only other figures use, in their full settings."""
    return [
        ("10, 15", "GRPO", cell_lengths("GPQA", "GRPO", sources)),
        ("10", "GRPO", cell_lengths("LiveCodeBench", "GRPO", sources)),
        ("13", "PPO", drifting_lengths()),
        *(("16", "GRPO", lengths_up_to(limit)) for limit in TOKEN_LIMITS),
    ]


def predictor_named(name: str, history: LengthHistory, seed: int) -> Predictor:
    """Return a predictor of ``PREDICTORS``; two of them use the true lengths."""
    if name == "last":
        return EwmaPredictor(1)
    return SyntheticPredictor(history.rollouts, PRINTED_POOR[0] if name == "poor" else 1.0, seed)


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


def predictions(
    runs: Runs, policies: Sequence[str] = ("random", "rlhfless", "solver", "solver+replan"),
    more_policies: Sequence[str] = ("static-generation", "rlhfuse", "oracle+replan"),
    predictors: Sequence[str] = tuple(PREDICTORS),
    responses: int = 512, epochs: int = 3, machine: Machine = QWEN_3B_L40S, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``panel, figures, algorithm, data_set, basis, predictor, policy, scope, measure, value``; ``panel`` is
    ``quality``, ``elsewhere`` or ``worth``. ``elsewhere`` is the quality for lengths that only the named figures use; ``worth``
    is for whole steps, and generation alone.

    Args:
        policies: those that predict. more_policies: those that use no predictions, the oracle among them.
    """
    rows = []
    histories = histories_of_14(runs.sources, responses, epochs, seed)
    steady = [("quality", "14", algorithm, history) for history, algorithm, _ in histories]
    steady += [("elsewhere", *entry) for entry in elsewhere(runs.sources)]
    for panel, figures, algorithm, history in steady:
        cell = {"algorithm": algorithm, "data_set": history.name, "basis": history.basis}
        rows += [
            {"panel": panel, "figures": figures, **cell, "predictor": "last", "policy": "", "scope": "", "measure": measure,
             "value": value}
            for measure, value in quality(history).items()
        ]  # fmt: skip

    def outcomes() -> Iterator[tuple[dict[str, object], Outcome]]:
        for history, algorithm, run in histories:
            cell = {"algorithm": algorithm, "data_set": history.name, "basis": history.basis}
            for name in predictors if run else ():
                chosen = ["static", *policies, *(more_policies if name == "last" else ())]
                predictor = predictor_named(name, history, seed)
                outcome = compare(runs, history, machine, algorithm, chosen, predictor=predictor, seed=seed)
                yield {"panel": "worth", "figures": "14", **cell, "predictor": name}, outcome

    worth, planning = tabulated(outcomes(), _worth)
    return Numbers(pd.concat([pd.DataFrame(rows), worth], ignore_index=True), planning)


def _worth(outcome: Outcome) -> pd.DataFrame:
    """Return ``policy, scope, measure, value`` of ``WORTH``."""
    sums = totals(outcome)
    values = sums[~sums["policy"].isin(["static", "bound"])].set_index(["policy", "scope"])[list(WORTH)]
    return values.rename_axis("measure", axis="columns").stack().rename("value").reset_index()


def _wide(rows: pd.DataFrame, *index: str) -> pd.DataFrame:
    return rows.pivot_table(index=list(index), columns="measure", values="value", sort=False)


def steadiness(numbers: Numbers, panel: str = "quality") -> pd.DataFrame:
    """Return the measures of ``quality`` by algorithm, data set and basis; of ``elsewhere`` also by figures."""
    keys = ("figures",) * (panel == "elsewhere") + ("algorithm", "data_set", "basis")
    return _wide(numbers.table[numbers.table["panel"] == panel], *keys)


def gains(numbers: Numbers, policy: str, predictor: str, scope: str = "step") -> pd.DataFrame:
    """Return ``WORTH`` of a policy with a predictor, by algorithm, data set and basis."""
    table = numbers.table
    table = table[(table["panel"] == "worth") & (table["scope"] == scope)]
    return _wide(table[(table["policy"] == policy) & (table["predictor"] == predictor)], "algorithm", "data_set", "basis")


def plot_predictions(numbers: Numbers) -> go.Figure:
    """Plot the steadiness of prompts (above) and the share of the headroom with each predictor, a panel per history (below)."""
    table = numbers.table.assign(
        of=numbers.table["algorithm"] + ", " + numbers.table["data_set"] + " (" + numbers.table["basis"] + ")",
        measured=numbers.table["measure"].map(QUALITIES), predicted=numbers.table["predictor"].map(PREDICTORS),
    )  # fmt: skip
    whole = table[(table["panel"] == "worth") & (table["scope"] == "step") & (table["measure"] == "share")]
    of_last = whole["predictor"] == "last"
    fixed = whole[of_last & ~whole["policy"].isin(whole[~of_last]["policy"])]  # needs no prediction, or knows the truth
    repeated = [fixed.assign(predicted=PREDICTORS[name]) for name in whole["predictor"].unique() if name != "last"]
    table = pd.concat([table[table["panel"] == "quality"], whole, *repeated], ignore_index=True)
    bars = Panel({"panel": "quality", "measure": tuple(QUALITIES)}, "measured", "value", "of", "bars",
                 title="how steady prompts are from epoch to epoch", yaxis=PERCENT,
                 printed=[(value, f"paper: about {value:.0%} within {name[7:]} tokens")
                           for name, value in PRINTED_WITHIN.items()])  # fmt: skip
    worth = Panel({"panel": "worth"}, "predicted", "value", kind="lines", yaxis=PERCENT,
                  xaxis={"categoryorder": "array", "categoryarray": list(PREDICTORS.values())})  # fmt: skip
    below = for_each(worth, "of", {of: f"{SHARE}: {of}" for of in whole["of"].unique()})
    looks = looks_of(list(table[table["panel"] == "quality"]["of"].unique()))
    looks |= {name: look._replace(dash="dot") if name in set(fixed["policy"]) else look for name, look in LOOKS.items()}
    note = f"below: whole steps, {SHARE_NOTE}; dotted: needs no prediction, or knows the truth"
    return facets(table, TITLE_14, note, [[bars], below], looks, heights=[260, 300], same_y=True)


def find_predictions(numbers: Numbers) -> list[Finding]:
    """Return the findings of Figure 14."""
    steady, other = steadiness(numbers), steadiness(numbers, "elsewhere")
    poor, last, random = (
        gains(numbers, "rlhfless", "poor"),
        gains(numbers, "rlhfless", "last"),
        gains(numbers, "random", "last"),
    )
    within = [
        f"{name} ({basis}) {row['within_50']:.0%} / {row['within_100']:.0%}" for (_, name, basis), row in steady.iterrows()
    ]
    models = [f"{name} (figure {figures}) {row['within_50']:.0%} / {row['within_100']:.0%}"
              for (figures, _, name, _), row in other.iterrows()]  # fmt: skip
    ours = ", ".join(
        f"{row['speedup']:.2f}x and {row['cost_saved']:.0%} ({a}, {basis})" for (a, _, basis), row in poor.iterrows()
    )
    shares = ", ".join(f"{name} {spread(of['share'], '.0%')}" for name, of in (
        ("the rule", poor), ("with the last epoch's lengths", last), ("right-sized random", random)))  # fmt: skip
    gsm8k = steady[steady.index.get_level_values("data_set") == "GSM8K"]
    return [
        Finding(
            "speedup and saved cost of a step with a predictor that is right for 44 %", "1.22x and 28.9 %", ours,
            f"with {NAIVE_LEARNER}: {spread(poor['most_speedup'], '.2f')}x; with a learner on all GPUs: "
            f"{spread(poor['most_speedup_on_all'], '.2f')}x; with either: {spread(poor['most_cost_saved'], '.0%')} cheaper",
            verdict([*(poor["speedup"] >= PRINTED_POOR[1]), *(poor["cost_saved"] >= PRINTED_POOR[2])]),
        ),
        Finding(
            "faster and cheaper even with a predictor that is right for 44 %", STATED, ours, f"{SHARE}: {shares}",
            verdict([*(poor["speedup"] > 1), *(poor["cost_saved"] > 0)]),
        ),
        Finding(
            "prompts whose length changes by at most 50 / 100 tokens between epochs", "about 70 % / 90 %",
            f"decided by GSM8K: {'; '.join(within)}. Length models that only other figures use: {'; '.join(models)}",
            "no bound: a property of lengths",
            verdict((gsm8k[list(PRINTED_WITHIN)] >= pd.Series(PRINTED_WITHIN) - ABOUT).all(axis=1)),
        ),
    ]  # fmt: skip


FIGURE_14 = PaperFigure(
    "14", TITLE_14,
    Text(
        "Above: how steady response lengths are from epoch to epoch. Below: the share of the headroom with each predictor.",
        f"{GSM8K_LENGTHS} The model of GSM8K was fitted to the printed 70 % and 90 %, so it is no evidence for them. "
        f"{QWEN_3B_L40S.about}.",
        "The paper does not define '44 % accurate'. Here that share of the prompts is predicted exactly, and the others get "
        "each other's lengths. Real lengths change more or less than the paper's, depending on the data set.",
    ),
    predictions, plot_predictions, find_predictions,
    {"policies": ("random", "rlhfless", "solver"), "more_policies": ("static-generation", "rlhfuse", "oracle"),
     "predictors": ("poor", "last"), "epochs": 2, "responses": 256},
)  # fmt: skip

# Figure 15: the predictor's window, tau of the local cut, lambda of the scaling

TITLE_15 = "Figure 15: window, tau and lambda of RLHFless"
PANELS = {"window": "EWMA window (epochs)", "tau": "tau, on 3 actors", "lambda": "lambda"}
SAME = 0.01  # costs that differ by less count as the same
MARGINAL = 0.05  # costs that differ by less differ marginally
COMPARED = ("static", "static-generation", "elastic", "random", "rlhfuse", "solver+replan", "oracle")
REFERENCES = (*COMPARED, "bound")
SHORT = {
    "static-generation": "naive, released", "elastic": "elastic", "random": "random", "rlhfuse": "RLHFuse",
    "rlhfless": "RLHFless", "solver+replan": "ours", "oracle": "oracle",
}  # fmt: skip
CHOSEN = {"window": 1, "tau": 0.7, "lambda": 0.7}
"""The paper's choices."""


def parameters(
    runs: Runs, windows: Sequence[int] = (1, 2, 3, 4), taus: Sequence[float] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    lambdas: Sequence[float] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), actors: int = 3, responses: int = 512, epochs: int = 3,
    max_steps: int = 12, machine: Machine = QWEN_3B_L40S, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``panel, scope, data_set, basis, algorithm, policy, parameter, time_s, gpu_s, bound_gpu_s, share, moves``: sums
    over whole steps and over generation alone. ``policy`` is the paper's rule with this parameter, or one of ``REFERENCES``,
    which have none. ``bound_gpu_s`` is the least that any policy takes in that time, ``share`` is the share of the headroom,
    measured from the naive system.

    Windows are over 15 epochs of the shipped run, tau is on the paper's fixed 3 actors; tau = 1 is no cut.
    """
    rows: list[dict[str, object]] = []

    def add(panel: str, outcome: Outcome, values: Mapping[str, float]) -> None:
        """Add rows of the policies that ``values`` names; a reference's value is NaN."""
        moves, sums, history = outcome.steps.groupby("policy")["moves"].sum(), totals(outcome), outcome.grid.history
        for of in sums[sums["policy"].isin(list(values))].to_dict("records"):
            name = of["policy"]
            rows.append(
                {
                    "panel": panel, "scope": of["scope"], "data_set": history.name, "basis": history.basis,
                    "algorithm": outcome.algorithm, "policy": name if name in REFERENCES else "rlhfless",
                    "parameter": values[name], "time_s": of["time_s"], "gpu_s": of["gpu_s"], "bound_gpu_s": of["bound_gpu_s"],
                    "share": of["share"], "moves": int(moves.get(name, 0)),
                }
            )  # fmt: skip

    references = dict.fromkeys(REFERENCES, float("nan"))
    for window in windows:
        chosen = window == CHOSEN["window"]
        outcome = compare(
            runs, runs.sources.shipped(), machine, "GRPO", [*(COMPARED if chosen else ("static",)), "rlhfless"],
            predictor=EwmaPredictor(window), max_steps=max_steps, seed=seed,
        )  # fmt: skip
        add("window", outcome, {"rlhfless": window, **(references if chosen else {})})
    ppo = modelled(GSM8K, 1, responses=responses, epochs=epochs, seed=seed)
    gpqa = modelled(GPQA, 4, responses=responses, epochs=2, seed=seed)
    for history, algorithm in ((ppo, "PPO"), (runs.sources.gsm8k(4), "GRPO"), (gpqa, "GRPO")):
        cuts, weights = {f"tau {tau:g}": tau for tau in taus}, {f"lambda {weight:g}": weight for weight in lambdas}
        policies: list[str | SchedulingPolicy] = [*COMPARED, *(FixedActors(actors, tau, name) for name, tau in cuts.items())]
        policies += [RLHFless(scale_weight=weight, name=name) for name, weight in weights.items()]
        outcome = compare(runs, history, machine, algorithm, policies, seed=seed)
        add("tau", outcome, cuts | references)
        add("lambda", outcome, weights | references)
    return Numbers(pd.DataFrame(rows))


def curves(numbers: Numbers, panel: str, scope: str = "generation", policy: str = "rlhfless") -> dict[str, pd.DataFrame]:
    """Return the rows of a panel, sorted by parameter, for each history by its label."""
    table = numbers.table
    part = table[(table["panel"] == panel) & (table["policy"] == policy) & (table["scope"] == scope)]
    grouped = part.groupby(["algorithm", "data_set", "basis"], sort=False)
    return {f"{a}, {d} ({b})": of.sort_values("parameter", ignore_index=True) for (a, d, b), of in grouped}


def plot_parameters(numbers: Numbers) -> go.Figure:
    """Plot by parameter: time and cost relative to the paper's choice, and the share of the headroom; below, that share of all
    comparators."""
    parts = []
    for panel in PANELS:
        for scope in SCOPES:
            random = curves(numbers, panel, scope, "random")
            for label, of in curves(numbers, panel, scope).items():
                at = of[of["parameter"] == CHOSEN[panel]].iloc[0]
                relative = of.assign(time=of["time_s"] / at["time_s"], cost=of["gpu_s"] / at["gpu_s"], of=label)
                sized = of.iloc[[0, -1]].assign(share=float(random[label]["share"].iloc[0]), of=f"{label}: right-sized random")
                compared = [
                    curves(numbers, panel, scope, policy)[label].assign(of=label, place=short, panel="compared")
                    for policy, short in SHORT.items() if policy != "rlhfless" and panel != "tau"
                ]  # fmt: skip
                own = at.to_frame().T.assign(of=label, place=SHORT["rlhfless"], panel="compared")
                parts += [relative, sized, *compared, *([own] if panel != "tau" else [])]
    table = pd.concat(parts, ignore_index=True)
    table["share"] = table["share"].astype(float)
    labels = [label for label in dict.fromkeys(table["of"]) if not label.endswith("random")]
    looks = looks_of(labels)
    looks |= {f"{label}: right-sized random": looks[label]._replace(label=f"{label}: right-sized random", symbol="", dash="dot")
              for label in labels}  # fmt: skip
    rows = (("time", "generation", "time", {"range": [0.9, 1.1]}), ("cost", "generation", "GPU-seconds", {"range": [0.9, 1.1]}),
            ("share", "generation", "share, generation", PERCENT),
            ("share", "step", "share, whole steps", PERCENT))  # fmt: skip
    panels = [
        [Panel({"panel": panel, "scope": scope}, "parameter", what, "of", "lines", at=(CHOSEN[panel],),
               title=head if what == "time" else "", y_title=title if panel == "window" else "",
               yaxis=axis if what == "share" or panel == "window" else {})  # windows hardly differ, and should look like it
         for panel, head in PANELS.items()] for what, scope, title, axis in rows
    ]  # fmt: skip
    panels.append([
        Panel({"panel": "compared", "scope": scope}, "place", "share", "of", title=f"{name}: {SHARE}", yaxis=PERCENT,
              xaxis={"categoryorder": "array", "categoryarray": list(SHORT.values())})
        for scope, name in (("generation", "generation alone"), ("step", "whole steps"))
    ])  # fmt: skip
    note = (
        f"time and GPU-seconds: generation alone, relative to the paper's choice (vertical line); {SHARE_NOTE}; last row: all "
    )
    return facets(table, TITLE_15, f"{note}policies with the paper's choices", panels, looks, heights=[170], between=74)


def saved(of: pd.DataFrame, less: float, more: float) -> float:
    """Return the share of the cost at the parameter ``more`` that is saved at ``less``."""
    cost = of.set_index("parameter")["gpu_s"]
    return float(1 - cost[less] / cost[more])


def ranks_of_choice(of: pd.DataFrame, choice: float) -> tuple[int, int]:
    """Return the rank of a parameter among all by time and by cost, 1 being the best; equal values share the better rank."""
    at = of[of["parameter"] == choice].iloc[0]
    return tuple(int((of[what] < at[what] * (1 - 1e-9)).sum()) + 1 for what in ("time_s", "gpu_s"))  # type: ignore[return-value]


def find_parameters(numbers: Numbers) -> list[Finding]:
    """Return the findings of Figure 15, which are about generation alone."""
    taus, weights, windows = (curves(numbers, panel) for panel in ("tau", "lambda", "window"))
    more = {label: saved(of, 0.3, 0.5) for label, of in taus.items()}
    orders, changes, faster, slopes = [], [], [], []
    for label, of in taus.items():
        cut = of[of["parameter"] < 1]
        orders += [of["time_s"].iloc[0] > of["time_s"].iloc[-1], cut["gpu_s"].iloc[0] < cut["gpu_s"].iloc[-1]]
        cost, time = (cut[what].iloc[0] / cut[what].iloc[-1] - 1 for what in ("gpu_s", "time_s"))
        changes.append(f"{label}: cost {cost:+.1%}, time {time:+.1%}")
    for label, of in weights.items():
        time, cost = (of[what].iloc[-1] / of[what].iloc[0] - 1 for what in ("time_s", "gpu_s"))
        faster.append(of["time_s"].iloc[-1] < of["time_s"].iloc[0])
        slopes.append(f"{label}: {time:+.0%} time, {cost:+.0%} cost")
    places = {label: ranks_of_choice(of, CHOSEN["lambda"]) for label, of in weights.items()}
    (of_window,) = windows.values()
    wide = float(of_window["gpu_s"].max() / of_window["gpu_s"].min() - 1)

    def possible(panel: str, parameter: float, name: str) -> str:
        at = [of[of["parameter"] == parameter].iloc[0] for of in curves(numbers, panel).values()]
        room = pd.Series([1 - row["bound_gpu_s"] / row["gpu_s"] for row in at])
        return f"any policy in the time of {name}: {spread(room, '.0%')} less cost"

    def shares(panel: str) -> str:
        rule = pd.concat(curves(numbers, panel).values())["share"]
        random = pd.concat(curves(numbers, panel, policy="random").values())["share"]
        return f"{SHARE}: {spread(rule, '.0%')} (right-sized random {spread(random, '.0%')})"

    return [
        Finding("a smaller tau is cheaper and slower", STATED, f"from tau = 0.9 to 0.3: {'; '.join(changes)}", shares("tau"),
                verdict(orders)),
        Finding(
            "tau from which a smaller one saves no further cost", "tau <= 0.5",
            "going from tau = 0.5 to 0.3 saves another "
            + ", ".join(f"{value:+.1%} ({label})" for label, value in more.items()),
            possible("tau", 0.5, "tau = 0.5"), verdict(value < SAME for value in more.values()),
        ),
        Finding("a larger lambda is faster", STATED, f"from the smallest to the largest: {'; '.join(slopes)}", shares("lambda"),
                verdict(faster)),
        Finding(
            "lambda = 0.7 among 0.3 to 0.9", "second-shortest time, second-lowest cost",
            ", ".join(f"place {t} by time, {c} by cost of {len(weights[label])} ({label})" for label, (t, c) in places.items()),
            possible("lambda", 0.7, "lambda = 0.7"), verdict(place == (2, 2) for place in places.values()),
        ),
        Finding("predicting from 1 to 4 past epochs", "marginal differences", f"cost differs by {wide:.1%} at most",
                possible("window", 1, "a window of 1"), verdict([wide < MARGINAL])),
    ]  # fmt: skip


FIGURE_15 = PaperFigure(
    "15", TITLE_15,
    Text(
        "Time, cost and share of the headroom by window, tau and lambda; below, that share of all policies.",
        f"{GSM8K_LENGTHS} Lengths of GPQA are a stated model; windows are of this project's own recorded run of 15 epochs. "
        f"{QWEN_3B_L40S.about}.",
        "The parameters act on generation, so the findings are about generation alone. The number of actors is a whole "
        "number, so neighbouring values of lambda often give the same plan, and only then can one of many values be second "
        "in both time and cost. Elastic naive has a larger learner than the bound, so it can be above 100 % of whole steps.",
    ),
    parameters, plot_parameters, find_parameters,
    {"taus": (0.3, 0.5, 0.7, 0.9, 1.0), "lambdas": (0.3, 0.5, 0.7, 0.9), "windows": (1, 4), "epochs": 2, "responses": 256,
     "max_steps": 4},
)  # fmt: skip

# Figure 16: generation and planning on up to 20 nodes of 8 H100, and the mean gain over all cells

TITLE_16 = "Figure 16: up to 160 H100, Llama2-70B"
PRINTED_MEAN_SPEEDUP, PRINTED_MEAN_SAVED, PRINTED_PLANNING_S = 1.23, 0.387, 0.030
NAIVE = {"static": "3 actors", "static-all": "all actors that fit"}
SHORT_16 = {
    "static": "naive, 3", "static-generation": "naive, 3, released", "static-all": "naive, all", "random": "random",
    "rlhfuse-all": "RLHFuse", "rlhfless": "RLHFless", "solver+replan": "ours", "oracle": "oracle", "bound": "bound",
}  # fmt: skip
POLICIES_16 = tuple(name for name in SHORT_16 if name != "bound")
TOKEN_LIMITS = (2048, 4096, 8192)
PLANNED = ("random", "rlhfless", "solver+replan")
GAINS = ["speedup", "cost_saved", "share", "most_speedup", "most_speedup_on_all", "most_cost_saved"]


def lengths_up_to(
    limit: int, samples_per_prompt: int = 4, responses: int = 512, epochs: int = 3, seed: int = 0
) -> LengthHistory:
    """Return responses whose typical length is a quarter of the limit."""
    basis = "stated: median at a quarter of the limit, standard deviations 0.5 over prompts and 0.3 within one"
    model = LengthModel(f"up to {limit:,} tokens", limit / 4, 0.5, 0.3, 500.0, basis, max_response_tokens=limit)
    return modelled(model, samples_per_prompt, responses=responses, epochs=epochs, seed=seed)


def large_clusters(
    runs: Runs, nodes: Sequence[int] = (4, 12, 20), token_limits: Sequence[int] = TOKEN_LIMITS,
    policies: Sequence[str] = POLICIES_16, responses: int = 512,
    samples_per_prompt: int = 4, epochs: int = 3, machine: Machine = LLAMA_70B_H100, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``max_response_tokens, nodes, naive`` (the base of the comparison) and the columns of ``totals``.

    The setting is GRPO with 2 GPUs per actor. Nodes are from 4 on, as the weights, gradients and optimizer of 70B parameters
    (16 bytes each) need 14 GPUs and more. KV memory is short, so an actor admits responses by the memory that they use now
    (``preempt``) instead of by their limit. The first epoch has no history and is not evaluated.
    """

    def outcomes() -> Iterator[tuple[dict[str, object], Outcome]]:
        for limit, count in product(token_limits, nodes):
            history = lengths_up_to(limit, samples_per_prompt, responses, epochs, seed)
            of_size = replace(machine, nodes=count, admission="preempt")
            outcome = compare(runs, history, of_size, "GRPO", policies, seed=seed, timed=True)
            yield {"max_response_tokens": limit, "nodes": count}, outcome

    return Numbers(*tabulated(outcomes(), against_each_naive))


def against_each_naive(outcome: Outcome) -> pd.DataFrame:
    """Return ``naive`` and the columns of ``totals``, against each naive system."""
    tables = {naive: totals(outcome, naive=naive) for naive in NAIVE}
    return pd.concat(tables, names=["naive"]).reset_index("naive").reset_index(drop=True)


def mean_gain(numbers: Numbers, naive: str, scope: str = "step") -> pd.DataFrame:
    """Return ``GAINS`` by policy: means over all cells against ``naive``."""
    table = numbers.table
    table = table[(table["naive"] == naive) & (table["scope"] == scope)]
    return table.groupby("policy", sort=False)[GAINS].mean()


def planning_share(numbers: Numbers, policy: str) -> float:
    """Return the largest share of planning's CPU time in a step, over all cells."""
    assert numbers.measured is not None
    keys = ["max_response_tokens", "nodes"]
    planning = numbers.measured[numbers.measured["policy"] == policy].groupby(keys)["cpu_s"].sum()
    table = numbers.table[(numbers.table["policy"] == policy) & (numbers.table["scope"] == "step")]
    return float((planning / table.groupby(keys)["time_s"].first()).max())


def plot_large(numbers: Numbers) -> go.Figure:
    """Plot (a) time by nodes and planning time by nodes, (b) mean gain against both naive systems."""
    assert numbers.measured is not None
    table = numbers.table
    time = table[(table["naive"] == "static") & (table["scope"] == "generation")]
    time = time[time["policy"].isin(["rlhfless", "solver+replan", "bound"])].assign(part="time")
    time["hue"] = [
        f"up to {n:,} tokens: {SHORT_16[p]}" for n, p in zip(time["max_response_tokens"], time["policy"], strict=True)
    ]
    cpu = numbers.measured[numbers.measured["policy"].isin(PLANNED)].groupby(["policy", "nodes"], sort=False)["cpu_s"].max()
    cpu = cpu.mul(1e3).rename("cpu_ms").reset_index().assign(part="planning", hue=lambda of: of["policy"])
    mean = [
        mean_gain(numbers, naive).reset_index().assign(part="mean", hue=f"(b) against naive, {name}")
        for naive, name in NAIVE.items()
    ]
    gains = pd.concat(mean).assign(place=lambda of: of["policy"].map(SHORT_16), cost=lambda of: 1 - of["cost_saved"])
    limits, looks = list(time["max_response_tokens"].unique()), dict(LOOKS)
    for row in time.drop_duplicates("hue").itertuples():
        dash = {"rlhfless": "solid", "solver+replan": "dash", "bound": "dot"}[row.policy]
        colour = looks_of(limits)[row.max_response_tokens].colour
        looks[row.hue] = Look(row.hue, colour, LOOKS[row.policy].symbol, dash)
    looks |= {row: Look(row, VERMILLION, "diamond-open") for row in gains["hue"].unique()[1:]}
    ticks = {"tickvals": sorted(time["nodes"].unique())}
    panels = [
        [
            Panel({"part": "time"}, "nodes", "time_s", "hue", "lines", title="(a) generation time (s)",
                  x_title="nodes", xaxis=ticks,
                  yaxis=FROM_ZERO),
            Panel({"part": "planning"}, "nodes", "cpu_ms", "hue", "lines", title="(a) planning a step, CPU time here (ms)",
                  x_title="nodes", printed=((PRINTED_PLANNING_S * 1e3, ""),), xaxis=ticks,
                  yaxis={"type": "log", "tickvals": [10, 30, 100, 300, 1000, 3000]}),
        ],
        [
            Panel({"part": "mean"}, "place", "speedup", "hue", title="(b) times faster, whole steps, mean",
                  printed=((PRINTED_MEAN_SPEEDUP, "paper: 1.23x"),), xaxis={"tickangle": -40}),
            Panel({"part": "mean"}, "place", "cost", "hue", title="(b) cost / naive, whole steps, mean",
                  printed=((1 - PRINTED_MEAN_SAVED, ""),), xaxis={"tickangle": -40},
                  yaxis={"type": "log", "tickvals": [0.2, 0.5, 1, 2, 5, 10]}),
        ],
    ]  # fmt: skip
    note = "GRPO, 4 responses per prompt, lengths: stated model; dotted: the paper's numbers (planning: at most 30 ms)"
    return facets(pd.concat([time, cpu, gains], ignore_index=True), TITLE_16, note, panels, looks)


def find_large(numbers: Numbers) -> list[Finding]:
    """Return the findings of Figure 16."""
    assert numbers.measured is not None
    table, mean = numbers.table, {name: mean_gain(numbers, naive) for naive, name in NAIVE.items()}
    nodes, limits, steps = (
        sorted(table["nodes"].unique()),
        sorted(table["max_response_tokens"].unique()),
        table["steps"].iloc[0],
    )
    over = f"{', '.join(map(str, nodes))} nodes x 8 H100, limits of {', '.join(f'{n:,}' for n in limits)} tokens, "
    over += f"{steps} evaluated {'steps' if steps > 1 else 'step'} each"

    def values_of(policy: str, what: str, form: str) -> str:
        return ", ".join(f"{of.loc[policy, what]:{form}} against {name}" for name, of in mean.items())

    cpu_ms = numbers.measured.groupby("policy")["cpu_s"].max() * 1e3
    rule = [of.loc["rlhfless"] for of in mean.values()]
    return [
        Finding(
            f"speedup of a whole step, mean over {over}", "1.23x",
            f"RLHFless' rule (times) {values_of('rlhfless', 'speedup', '.2f')}; ours "
            f"{values_of('solver+replan', 'speedup', '.2f')}",
            f"with {NAIVE_LEARNER}: {values_of('bound', 'most_speedup', '.2f')}; with a learner on all GPUs: "
            f"{values_of('bound', 'most_speedup_on_all', '.2f')}",
            verdict(row["speedup"] >= PRINTED_MEAN_SPEEDUP for row in rule),
        ),
        Finding(
            "saved cost of a whole step, mean over the same cells", "38.7 %",
            f"RLHFless' rule {values_of('rlhfless', 'cost_saved', '.0%')}; ours "
            f"{values_of('solver+replan', 'cost_saved', '.0%')}",
            values_of("bound", "most_cost_saved", ".0%"), verdict(row["cost_saved"] >= PRINTED_MEAN_SAVED for row in rule),
        ),
        Finding(
            "faster and cheaper on average on up to 160 GPUs", STATED,
            "; ".join(f"{row['speedup']:.2f}x and {row['cost_saved']:.0%} against {name}"
                      for row, name in zip(rule, mean, strict=True)),
            f"{SHARE}: RLHFless' rule {values_of('rlhfless', 'share', '.0%')}; ours "
            f"{values_of('solver+replan', 'share', '.0%')}",
            verdict(held for row in rule for held in (row["speedup"] > 1, row["cost_saved"] > 0)),
        ),
        Finding(
            "planning takes at most 30 ms at every cluster size", "at most 30 ms",
            f"RLHFless' rule at most {cpu_ms['rlhfless']:,.0f} ms ({planning_share(numbers, 'rlhfless'):.1%} of a step), ours "
            f"{cpu_ms['solver+replan']:,.0f} ms ({planning_share(numbers, 'solver+replan'):.1%}); CPU time, planned once",
            NO_BOUND, verdict([cpu_ms["rlhfless"] <= PRINTED_PLANNING_S * 1e3]),
        ),
    ]  # fmt: skip


FIGURE_16 = PaperFigure(
    "16", TITLE_16,
    Text(
        "(a) Generation time and planning time by number of nodes. (b) Mean speedup and cost against two naive systems.",
        f"{LLAMA_70B_H100.about}. Smaller clusters have fewer learner GPUs. The median length is a quarter of the limit "
        "(stated). 1 to 3 nodes are left out, because weights, gradients and optimizer of 70B parameters (16 bytes each) "
        "alone fill 14 GPUs. A naive system on all actors that fit keeps all GPUs but the learner's through preparation and "
        "learning. Planning times are CPU times of the machine that ran it.",
        "The paper does not print how many actors the naive system has on 160 GPUs, and the factors depend mostly on that: "
        "few actors make large speedups look possible, many actors large savings. Weights leave little KV memory on two "
        "H100, which limits decoding here; the bound includes the limit, but not evictions or whole actors, so a policy may "
        "be unable to reach 100 %. Our implementation of the rule computes the exact time of every number of actors in 8 "
        "scenarios, which takes longer than 30 ms. Llama2 was trained for 4,096 tokens; longer contexts belong to the "
        "paper's setting.",
    ),
    large_clusters, plot_large, find_large, {"nodes": (4, 12), "token_limits": (2048,), "responses": 256, "epochs": 2},
)  # fmt: skip
