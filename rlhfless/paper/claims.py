"""Checks the paper's statements about orders and trends against the reproduced figures.

Input are the numbers of figures; nothing is computed again. The numbers decide every claim, so a verdict may differ between the
fast setting and the full one, and is never written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.paper import (
    figure_03c,
    figure_07b,
    figure_09,
    figure_10,
    figure_11,
    figure_12,
    figure_13,
    figure_14,
    figure_15,
    figure_16,
    figure_17,
)
from rlhfless.paper.draw import spread
from rlhfless.paper.paper_figure import Numbers

COLUMNS = ("figure", "paper", "holds", "we_find")
MARGINAL = 0.05  # costs that differ by less differ marginally
ABOUT = 0.1  # "about 70 %"


class Verdict(NamedTuple):
    """``yes``, ``in part`` or ``no``, with the facts behind it."""

    holds: str
    we_find: str


@dataclass(frozen=True)
class Claim:
    """One statement of the paper.

    Attributes:
        figure: the figure whose numbers decide. paper: the statement. decide: numbers in, verdict out.
    """

    figure: str
    paper: str
    decide: Callable[[Numbers], Verdict]


def verdict(held: Iterable[bool], we_find: str) -> Verdict:
    """Return ``yes`` where all cases hold, ``no`` where none does, else ``in part``."""
    cases = list(held)
    assert cases, "a claim needs a case"
    return Verdict("yes" if all(cases) else "in part" if any(cases) else "no", we_find)


def _faster_and_cheaper(found: Numbers) -> Verdict:
    own = figure_10.cells(found)[figure_10.cells(found)["policy"] == "rlhfless"]
    faster, cheaper = int((own["speedup"] > 1).sum()), int((own["cost_saved"] > 0).sum())
    return verdict(
        [*(own["speedup"] > 1), *(own["cost_saved"] > 0)],
        f"its rule is cheaper in {cheaper} of {len(own)} cells and faster in {faster}: {spread(own['speedup'], '.2f')}x",
    )


def _each_idea(found: Numbers) -> Verdict:
    whole = figure_11.whole(found)
    cost = [float(whole.loc[p, "gpu_s"]) for p in figure_11.IDEAS]
    names = ("deduplicated prefill", "assignment with the local cut", "scaling")
    changes = [f"{name} {after / before - 1:+.1%}" for name, before, after in zip(names, cost, cost[1:], strict=False)]
    return verdict(np.diff(cost) < 0, f"change of a step's cost: {', '.join(changes)}")


def _local_cut(found: Numbers) -> Verdict:
    saved = figure_12.cost_saved(found)
    return verdict(
        [value > 0 for value in saved.values()],
        ", ".join(f"{value:.1%} cheaper on {name} ({basis})" for (name, basis), value in saved.items()),
    )


def _follows_drift(found: Numbers) -> Verdict:
    own = figure_13.scaling(found, "rlhfless")
    actors, tokens = own["actors"].astype(int), own["mean_tokens"]
    rank = float(tokens.corr(actors.astype(float), method="spearman")) if actors.nunique() > 1 else 0.0
    return verdict(
        [actors.iloc[-1] > actors.iloc[0], rank >= 0.5],
        f"lengths grow {tokens.iloc[-1] / tokens.iloc[0]:.1f} times, its actors go from {actors.iloc[0]} to {actors.iloc[-1]} "
        f"(rank correlation {rank:.1f}): min-max scaling compares actor counts of one step with each other",
    )


def _prefill(found: Numbers) -> Verdict:
    saved = figure_13.prefill_saved(found)
    exact = [abs(share - (g - 1) / g) < 1e-9 for g, share in saved.items()]
    return verdict(exact, ", ".join(f"{share:.1%} for G = {g}" for g, share in saved.items() if g > 1))


def _redundant(found: Numbers) -> Verdict:
    share = found.table.pivot(index="prompt_tokens", columns="samples_per_prompt", values="redundant_share")[
        figure_03c.PAPER_SAMPLES
    ]
    own = figure_03c.GSM8K_PROMPT_TOKENS
    others = ", ".join(f"{value:.0%} with {tokens:,} tokens" for tokens, value in share.items() if tokens != own)
    return verdict(
        [share[own] >= figure_03c.PAPER_SHARE], f"{share[own]:.0%} with GSM8K's prompts of {own} tokens; it would be {others}"
    )


def _grouping(found: Numbers) -> Verdict:
    table = found.table[found.table["actors"] == found.table["actors"].max()]
    saved = {split: table[table["split"] == split]["saved"] for split in figure_07b.SPLITS}
    return verdict(
        [*(saved["true"] > 0), *(saved["predicted"] > 0)],
        f"with the truth {spread(saved['true'], '.0%')}, with the last visit's lengths {spread(saved['predicted'], '.0%')}",
    )


def _hidden(found: Numbers) -> Verdict:
    done, others = figure_09.hidden(found)
    return verdict([done == others], f"{done} of {others} actors are done before the one with the longest group")


def _steady(found: Numbers) -> Verdict:
    rows = figure_14.steadiness(found)
    own = rows[rows.index.get_level_values("data_set") == "GSM8K"]
    held = [r["within_50"] >= 0.7 - ABOUT and r["within_100"] >= 0.9 - ABOUT for _, r in own.iterrows()]
    return verdict(
        held,
        "decided by GSM8K: "
        + "; ".join(f"{n} ({b}) {r['within_50']:.0%} / {r['within_100']:.0%}" for (_, n, b), r in rows.iterrows()),
    )


def _poor_predictor(found: Numbers) -> Verdict:
    rows = figure_14.worth(found, "rlhfless", "poor")
    return verdict(
        [*(rows["speedup"] > 1), *(rows["cost_saved"] > 0)],
        ", ".join(f"{r['speedup']:.2f}x and {r['cost_saved']:.0%} ({a}, {b})" for (a, _, b), r in rows.iterrows()),
    )


def _tau_order(found: Numbers) -> Verdict:
    held, said = [], []
    for label, own in figure_15.curves(found, "tau").items():
        cut = own[own["parameter"] < 1]
        held += [bool(own["time_s"].iloc[0] > own["time_s"].iloc[-1]), bool(cut["gpu_s"].iloc[0] < cut["gpu_s"].iloc[-1])]
        cost, time = (cut[c].iloc[0] / cut[c].iloc[-1] - 1 for c in ("gpu_s", "time_s"))
        said.append(f"{label}: cost {cost:+.1%}, time {time:+.1%}")
    return verdict(held, "from tau = 0.9 to 0.3: " + "; ".join(said))


def _tau_half(found: Numbers) -> Verdict:
    more = figure_15.saved_below_half(found)
    return verdict([value < figure_15.SAME for value in more.values()], figure_15.said_of(more))


def _lambda(found: Numbers) -> Verdict:
    held, said = [], []
    for label, own in figure_15.curves(found, "lambda").items():
        first, last = own.iloc[0], own.iloc[-1]
        held.append(bool(last["time_s"] < first["time_s"]))
        said.append(
            f"{label}: {last['time_s'] / first['time_s'] - 1:+.0%} time, {last['gpu_s'] / first['gpu_s'] - 1:+.0%} cost"
        )
    return verdict(held, "from the smallest to the largest: " + "; ".join(said))


def _lambda_place(found: Numbers) -> Verdict:
    places = {label: figure_15.ranks_of_choice(own, 0.7) for label, own in figure_15.curves(found, "lambda").items()}
    count = found.table[found.table["panel"] == "lambda"]["parameter"].nunique()
    return verdict(
        [place == (2, 2) for place in places.values()],
        ", ".join(f"place {t} by time, {c} by cost of {count} ({label})" for label, (t, c) in places.items()),
    )


def _windows(found: Numbers) -> Verdict:
    wide = figure_15.window_spread(found)
    return verdict([wide < MARGINAL], f"cost differs by {wide:.1%} at most")


def _simulated(found: Numbers) -> Verdict:
    held, said = [], []
    for naive, name in figure_16.NAIVE.items():
        mean = figure_16.mean_gain(found, naive).loc["rlhfless"]
        held += [mean["speedup"] > 1, mean["cost_saved"] > 0]
        said.append(f"{mean['speedup']:.2f}x and {mean['cost_saved']:.0%} against {name}")
    return verdict(held, "; ".join(said))


def _planning(found: Numbers) -> Verdict:
    assert found.measured is not None
    most = found.measured.groupby("policy")["cpu_s"].max() * 1e3
    return verdict(
        [most["rlhfless"] <= figure_16.PAPER_PLANNING_S * 1e3],
        f"at most {most['rlhfless']:,.0f} ms (CPU) for our implementation of its rule",
    )


def _idle(found: Numbers) -> Verdict:
    idle = figure_17.idle_share(found)
    naive, rule = idle["static"], idle["rlhfless"]
    return verdict(
        rule < naive, f"idle: {spread(naive, '.0%')} of the naive step's GPU time, {spread(rule, '.0%')} under its rule"
    )


CLAIMS = (
    Claim("3c", "22 % of GPU time is redundant KV computation with 4 responses per prompt", _redundant),
    Claim("7b", "grouping responses by length saves GPU time", _grouping),
    Claim("9", "transfers are hidden behind the longest group", _hidden),
    Claim("10", "faster and cheaper than naive static for every algorithm, model and data set", _faster_and_cheaper),
    Claim("11", "every idea makes a step cheaper", _each_idea),
    Claim("12", "ranking with a local cut is cheaper than RLHFuse's global cut", _local_cut),
    Claim("13", "scaling follows the drift of lengths", _follows_drift),
    Claim("13", "computing each prompt once saves (G - 1) / G of the prefill tokens", _prefill),
    Claim("14", "about 70 % of prompts change by at most 50 tokens between epochs, 90 % by at most 100", _steady),
    Claim("14", "faster and cheaper even with a predictor that is right for 44 %", _poor_predictor),
    Claim("15", "a smaller tau is cheaper and slower", _tau_order),
    Claim("15", "no further saving at tau <= 0.5", _tau_half),
    Claim("15", "a larger lambda is faster", _lambda),
    Claim("15", "lambda = 0.7 is second in time and second in cost", _lambda_place),
    Claim("15", "windows of 1 to 4 epochs differ marginally", _windows),
    Claim("16", "faster and cheaper on average on up to 160 GPUs", _simulated),
    Claim("16", "planning takes at most 30 ms at every cluster size", _planning),
    Claim("17", "less GPU time is idle than under naive static", _idle),
)  # fmt: skip


def of_figure(name: str, found: Numbers) -> list[tuple[Claim, Verdict]]:
    """Return the claims that a figure decides."""
    return [(claim, claim.decide(found)) for claim in CLAIMS if claim.figure == name]


def claims(found: Mapping[str, Numbers]) -> pd.DataFrame:
    """Return ``figure, paper, holds, we_find``, all text, of every claim whose figure is among ``found``."""
    rows = [
        {"figure": claim.figure, "paper": claim.paper, "holds": decided.holds, "we_find": decided.we_find}
        for name, numbers in found.items()
        for claim, decided in of_figure(name, numbers)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))
