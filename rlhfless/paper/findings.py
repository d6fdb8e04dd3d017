"""The table "paper says / we find": every number that the paper prints, with ours, and the most that the bounds allow.

Bounds of whole steps assume learners that start when generation is over: of the naive system's size, or on all GPUs. Input are
the numbers of the figures; nothing is computed again, and they decide the words of the table. A reader who knows only the
paper's abstract should be able to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd

from rlhfless.paper import figure_03c, figure_10, figure_12, figure_13, figure_14, figure_15, figure_16
from rlhfless.paper.draw import spread
from rlhfless.paper.figure_14 import PAPER_POOR
from rlhfless.paper.paper_figure import Numbers

NO_BOUND = "no bound is known"
NAIVE_LEARNER = "a learner of the naive system's size"


class Row(NamedTuple):
    """One printed number.

    Attributes:
        figure: the source of our number. what: the measured quantity. paper: as printed. we_find: ours. possible: the most that
            the bounds allow in the same setting. plain: the conclusion, in plain words.
    """

    figure: str
    what: str
    paper: str
    we_find: str
    possible: str
    plain: str


HEAD = Row("figure", "what", "paper says", "we find", "what is possible", "in plain words")


def _reached(paper: float, most: Mapping[str, float], learner: str = "") -> str:
    """Describe in words whether a printed number is within a bound.

    Args:
        most: the bound's limit, by setting. learner: the learner that the bound assumes, where that matters.
    """
    out = [name for name, value in most.items() if value < paper]
    where = "" if len(out) == len(most) else f" {' and '.join(out)}"
    return f"{'Out of' if out else 'In'} reach{f' with {learner}' if learner else ''}{where if out else ''}"


def _reached_by(paper: float, most: Mapping[str, float], on_all: Mapping[str, float]) -> str:
    """Describe ``_reached`` for a speed with both learners."""
    second = _reached(paper, on_all, "a learner on all GPUs")
    return f"{_reached(paper, most, NAIVE_LEARNER)}; {_lower(second)}"


def _lower(sentence: str) -> str:
    """Return the sentence for use in the middle of another."""
    return sentence[0].lower() + sentence[1:]


def _testbed(found: Numbers) -> list[Row]:
    """Rows of 1.35x and 44.8 %, of whole steps and over every cell of figure 10."""
    of = {str(name): own for name, own in figure_10.cells(found).groupby("policy")}
    alone = figure_10.cells(found, "generation")
    rule, ours, bound, random, oracle = (of[p] for p in ("rlhfless", "solver+replan", "bound", "random", "oracle+replan"))
    within = figure_10.reach(found)
    most = alone[alone["policy"] == "bound"]["most_speedup"]
    batches = figure_10.by_batch(found)
    enough = batches[batches["possible"] >= figure_10.PAPER_SPEEDUP]
    last = batches.iloc[-1]
    verdict = "Out of reach here" if within.faster == 0 else f"In reach in {within.faster} of {within.cells} cells"
    larger = (
        f"it becomes possible with that learner from {int(enough['responses'].iloc[0]):,} responses a step on"
        if len(enough)
        else f"with that learner and {int(last['responses']):,} responses a step {last['possible']:.2f}x would be possible"
    )
    elastic = figure_10.elastic(found)
    shares = ", ".join(
        f"{name} {spread(own['share'], '.0%')}"
        for name, own in (("RLHFless' rule", rule), ("right-sized random", random), ("ours", ours), ("the oracle", oracle))
    )
    return [
        Row(
            "10", "times faster a whole step is than on 3 static actors (16 L40S, best case)", "up to 1.35x",
            f"RLHFless' rule {spread(rule['speedup'], '.2f')}x, ours {spread(ours['speedup'], '.2f')}x",
            f"at any cost, with {NAIVE_LEARNER}: {spread(bound['most_speedup'], '.2f')}x; with a learner on all GPUs: "
            f"{spread(bound['most_speedup_on_all'], '.2f')}x (generation alone {spread(most, '.2f')}x)",
            f"{verdict} with {NAIVE_LEARNER} that starts after generation: {figure_10.resting(found)} of the naive step are "
            f"preparation and learning (a stated model), which such a learner does not shorten. With a learner on all GPUs it "
            f"is in reach in {within.faster_on_all} of {within.cells} cells. Elastic plain, without any cleverness, is "
            f"{elastic}. In generation alone it is in reach in {figure_10.reach(found, 'generation').faster} of "
            f"{within.cells} cells. The paper does not print its batch (ours: {spread(rule['responses'], ',d')} "
            f"responses); {larger}.",
        ),
        Row(
            "10", "cost of a whole step that is saved (same comparison)", "up to 44.8 %",
            f"RLHFless' rule {spread(rule['cost_saved'], '.0%')}, ours {spread(ours['cost_saved'], '.0%')}",
            f"at any time, on however many GPUs it learns: {spread(bound['most_cost_saved'], '.0%')}; 44.8 % in reach in "
            f"{within.cheaper} of {within.cells} cells",
            f"Most of it needs no prediction: giving GPUs back when generation ends saves "
            f"{spread(of['static-generation']['cost_saved'], '.0%')}, the right number of actors and giving each back when it "
            f"is done {spread(random['cost_saved'], '.0%')}. Of what is possible in time and cost together with "
            f"{NAIVE_LEARNER}: {shares}.",
        ),
    ]  # fmt: skip


def _simulated(found: Numbers) -> list[Row]:
    """Rows of 1.23x, 38.7 % and 30 ms of figure 16."""
    mean = {naive: figure_16.mean_gain(found, naive) for naive in figure_16.NAIVE}

    def said(policy: str, what: str, form: str, unit: str = "") -> str:
        parts = (f"{mean[naive].loc[policy, what]:{form}}{unit} against {name}" for naive, name in figure_16.NAIVE.items())
        return ", ".join(parts)

    def most(what: str) -> dict[str, float]:
        return {f"against {name}": mean[naive].loc["bound", what] for naive, name in figure_16.NAIVE.items()}

    assert found.measured is not None
    cpu_ms = found.measured.groupby("policy")["cpu_s"].max() * 1e3
    kept = cpu_ms["rlhfless"] <= figure_16.PAPER_PLANNING_S * 1e3
    base = "The paper does not say what its naive system has on 160 GPUs, and the answer hangs on it: "
    shares = (
        f"Of what is possible in time and cost together: RLHFless' rule {said('rlhfless', 'share', '.0%')}; ours "
        f"{said('solver+replan', 'share', '.0%')}."
    )
    over = f"mean over {figure_16.cells_of(found)}"
    return [
        Row(
            "16", f"times faster a whole step is, {over}", "1.23x",
            f"RLHFless' rule {said('rlhfless', 'speedup', '.2f', 'x')}",
            f"with {NAIVE_LEARNER}: {said('bound', 'most_speedup', '.2f', 'x')}; with a learner on all GPUs: "
            f"{said('bound', 'most_speedup_on_all', '.2f', 'x')}",
            f"{_reached_by(figure_16.PAPER_SPEEDUP, most('most_speedup'), most('most_speedup_on_all'))}. "
            f"{base}ours with re-planning is {said('solver+replan', 'speedup', '.2f', 'x')}. {shares}",
        ),
        Row(
            "16", "cost of a whole step that is saved, mean over the same cells", "38.7 %",
            f"RLHFless' rule {said('rlhfless', 'cost_saved', '.0%')}", said("bound", "most_cost_saved", ".0%"),
            f"{_reached(figure_16.PAPER_COST_SAVED, most('most_cost_saved'), 'any learner')}. {base}ours with "
            f"re-planning saves {said('solver+replan', 'cost_saved', '.0%')}. {shares}",
        ),
        Row(
            "16", "time that planning a step takes", "at most 30 ms",
            f"RLHFless' rule at most {cpu_ms['rlhfless']:,.0f} ms, ours {cpu_ms['solver+replan']:,.0f} ms (CPU time, planned "
            "once)",
            NO_BOUND,
            f"{'Kept' if kept else 'Not kept'} by our implementation of its rule, which times every number of actors "
            f"exactly, over 8 scenarios of lengths. It is at most {figure_16.planning_share(found, 'rlhfless'):.1%} of a "
            f"step, ours {figure_16.planning_share(found, 'solver+replan'):.1%}. The least of three is in "
            "tests/benchmarks/details/large_clusters.md.",
        ),
    ]  # fmt: skip


def _local_cut(found: Numbers) -> list[Row]:
    saved = figure_12.cost_saved(found)
    cuts = ", ".join(f"{value:.1%} on {name} ({basis})" for (name, basis), value in saved.items())
    word = "The order holds" if min(saved.values()) > 0 else "The order does not hold everywhere"
    return [
        Row(
            "12", "cost of generation that ranking and a local cut save against RLHFuse's global cut", "12.8 %", cuts,
            f"any policy in RLHFuse's own time: {figure_12.most_saved(found):.0%}",
            f"{_reached(figure_12.PAPER_COST_SAVED, {'': figure_12.most_saved(found)})}. {word}. Of what is possible in "
            f"generation alone: {figure_12.shares(found)}. RLHFuse cuts at 20 % unfinished here, the share "
            "reported as best; the paper does not say where it cut.",
        )
    ]  # fmt: skip


def _redundant(found: Numbers) -> list[Row]:
    table = found.table[found.table["samples_per_prompt"] == figure_03c.PAPER_SAMPLES].set_index("prompt_tokens")
    share = table["redundant_share"]
    reached = share[share >= figure_03c.PAPER_SHARE]
    where = f"reached with prompts of {reached.index[0]:,} tokens" if len(reached) else "reached with no prompt length here"
    return [
        Row(
            "3c", "GPU time that computes KV caches again (GRPO, GSM8K, 4 responses per prompt)", "22 %",
            f"{share.iloc[0]:.1%} with GSM8K's prompts of {share.index[0]} tokens", "3 of 4 prefills, whatever they take",
            f"{where[0].upper()}{where[1:]}. How the paper counts is not said; our prefill times leave out the host's work.",
        )
    ]  # fmt: skip


def _prefill(found: Numbers) -> list[Row]:
    share, cost = figure_13.prefill_saved(found)[figure_13.PAPER_SAMPLES], figure_13.prefill_cost_saved(found)
    return [
        Row(
            "13", "prefill tokens saved by one prefill per prompt instead of three", "66 %", f"{share:.1%}",
            "(G - 1) / G: 66.7 % for G = 3",
            f"{'Counting, and it holds exactly' if abs(share - 2 / 3) < 1e-9 else 'Not what counting says'}. Prompts of GSM8K "
            "are short, so of generation's GPU time it saves "
            f"{cost[figure_13.PAPER_SAMPLES]:.1%}.",
        )
    ]  # fmt: skip


def _predictor(found: Numbers) -> list[Row]:
    steady = figure_14.steadiness(found)
    poor, last = (figure_14.worth(found, "rlhfless", p) for p in ("poor", "last"))
    random = figure_14.worth(found, "random", "last")
    measured = steady[steady.index.get_level_values("basis") != "length model"]
    keys = {(a, n, b): f"on {a}, {n} ({b})" for a, n, b in poor.index}
    most = {
        what: {keys[key]: r[what] for key, r in poor.iterrows()}
        for what in ("most_speedup", "most_speedup_on_all", "most_cost_saved")
    }
    speed = _reached_by(PAPER_POOR[1], most["most_speedup"], most["most_speedup_on_all"])
    cost = _reached(PAPER_POOR[2], most["most_cost_saved"], "any learner")
    fitted = "Our model of PPO's lengths was fitted to this, so only the others tell anything"
    return [
        Row(
            "14", "speed and cost of a step with a predictor that is right for 44 %", "1.22x and 28.9 %",
            ", ".join(f"{r['speedup']:.2f}x and {r['cost_saved']:.0%} ({a}, {b})" for (a, _, b), r in poor.iterrows()),
            f"with {NAIVE_LEARNER}: {spread(poor['most_speedup'], '.2f')}x; with a learner on all GPUs: "
            f"{spread(poor['most_speedup_on_all'], '.2f')}x; with either: {spread(poor['most_cost_saved'], '.0%')} cheaper",
            f"The speed is {_lower(speed)}. The cost is {_lower(cost)}. Of what is possible in "
            f"time and cost together the rule takes {spread(poor['share'], '.0%')}, with the last epoch's lengths "
            f"{spread(last['share'], '.0%')}, right-sized random {spread(random['share'], '.0%')}. With the last epoch's "
            f"lengths the rule is at {spread(last['speedup'], '.2f')}x and {spread(last['cost_saved'], '.0%')}, "
            f"a right-sized random split at {spread(random['speedup'], '.2f')}x and "
            f"{spread(random['cost_saved'], '.0%')}.",
        ),
        Row(
            "14", "prompts whose length changes by at most 50 / 100 tokens between epochs", "about 70 % / 90 %",
            "; ".join(f"{n} ({b}) {r['within_50']:.0%} / {r['within_100']:.0%}" for (_, n, b), r in steady.iterrows()),
            "a fact about lengths",
            f"{fitted}{': real lengths move more or less, by data set.' if len(measured) else '.'} "
            f"Length models that only other figures use: {figure_14.steady_elsewhere(found)}.",
        ),
    ]  # fmt: skip


def _parameters(found: Numbers) -> list[Row]:
    """Rows of tau, lambda and the window."""
    tau = figure_15.saved_below_half(found)
    places = {label: figure_15.ranks_of_choice(own, 0.7) for label, own in figure_15.curves(found, "lambda").items()}
    count = found.table[found.table["panel"] == "lambda"]["parameter"].nunique()
    wide = figure_15.window_spread(found)
    return [
        Row(
            "15", "tau from which a smaller one saves no further cost", "tau <= 0.5",
            figure_15.said_of(tau),
            f"any policy in the time of tau = 0.5: {spread(figure_15.room(found, 'tau', 0.5), '.0%')} less cost",
            f"Of the cost of generation on 3 actors. {figure_15.sides(tau)} Of what is possible in generation alone it "
            f"takes {figure_15.shares(found, 'tau')}, by tau and lengths.",
        ),
        Row(
            "15", "lambda = 0.7 among 0.3 to 0.9", "second-shortest time, second-lowest cost",
            ", ".join(f"place {t} by time, {c} by cost of {count} ({label})" for label, (t, c) in places.items()),
            f"any policy in the time of lambda = 0.7: {spread(figure_15.room(found, 'lambda', 0.7), '.0%')} less cost",
            "A larger lambda is faster and dearer, so one of many values can be second in both only where several give the "
            "same plan. Of what is possible in generation alone it takes "
            f"{figure_15.shares(found, 'lambda')}, by lambda and lengths.",
        ),
        Row(
            "15", "predicting from 1 to 4 past epochs", "marginal differences", f"cost differs by {wide:.1%} at most",
            f"any policy in the time of a window of 1: {spread(figure_15.room(found, 'window', 1), '.0%')} less cost",
            "On this project's own recorded run of 15 epochs. Of what is possible in generation alone it takes "
            f"{figure_15.shares(found, 'window')}, by window.",
        ),
    ]  # fmt: skip


FINDINGS: dict[str, Callable[[Numbers], list[Row]]] = {
    "10": _testbed, "16": _simulated, "12": _local_cut, "3c": _redundant, "13": _prefill, "14": _predictor, "15": _parameters,
}  # fmt: skip


def findings(found: Mapping[str, Numbers]) -> pd.DataFrame:
    """Return one row per printed number with the columns of ``Row``, all text.

    Args:
        found: numbers of at least the figures of ``FINDINGS``, by name.

    Raises:
        KeyError: a figure's numbers are missing.
    """
    return pd.DataFrame([row for name, rows in FINDINGS.items() for row in rows(found[name])], columns=list(Row._fields))
