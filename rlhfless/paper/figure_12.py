"""Figure 12: work and time of each actor over 4 steps, RLHFuse's global cut against RLHFless' ranking with a local cut.

Computed from traces of both systems on the same 3 actors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import POLICIES, compare, label_of, totals
from rlhfless.paper.draw import WIDE_LEGEND, add_policies, bar_of
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.variants import FixedActors
from rlhfless.paper.wording import reached
from rlhfless.paper.workloads import LengthHistory, Sources, about_logs, modelled
from rlhfless.plots.style import styled
from rlhfless.trace import allocation_metrics

TITLE = "Figure 12: work and time of each actor, RLHFuse and RLHFless"
PAPER_COST_SAVED = 0.128
NAMES = {"rlhfuse": "RLHFuse", "rlhfless": "RLHFless"}
COLUMNS = [
    "panel", "scope", "data_set", "basis", "policy", "step", "actor", "tokens", "held_s", "gpu_s", "time_s", "speedup",
    "cost_saved", "share", "bound_gpu_s",
]  # fmt: skip


@dataclass(frozen=True)
class Figure12Setting:
    """Setting: PPO, GSM8K, 3 actors, 4 steps, as printed; in addition the public log's one step."""

    policies: tuple[str, ...] = POLICIES
    responses: int = 512
    steps: int = 4
    actors: int = 3
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def histories(setting: Figure12Setting, sources: Sources) -> list[LengthHistory]:
    """Return the paper's setting with modelled lengths, and the log where it is available."""
    model = modelled(GSM8K, 1, responses=setting.responses, epochs=2, steps_per_epoch=setting.steps, seed=setting.seed)
    log = sources.gsm8k(4)
    return [model, log] if log.measured else [model]


def numbers(setting: Figure12Setting, sources: Sources) -> Numbers:
    """Return ``COLUMNS``. Panel ``actor`` has a row per actor of the two rivals, of generation alone. Panel ``total`` has sums
    of all policies and the bound for both scopes."""
    tables = []
    for history in histories(setting, sources):
        fixed = FixedActors(setting.actors, name="rlhfless, 3 actors")
        outcome = compare(history, setting.machine, "PPO", [*setting.policies, fixed], seed=setting.seed)
        cell = {"data_set": history.name, "basis": history.basis}
        for policy, name in (("rlhfuse", "rlhfuse"), (fixed.name, "rlhfless")):
            trace = outcome.simulation.traces[policy]
            held = allocation_metrics(trace)
            held = held[held["role"] == "decode"][["step", "holder", "duration_s", "gpu_seconds"]]
            tokens = trace.rollouts.groupby(["step", "actor"])["response_tokens"].sum().rename("tokens").reset_index()
            subset = held.merge(tokens, left_on=["step", "holder"], right_on=["step", "actor"], how="left")
            subset = subset.assign(
                tokens=subset["tokens"].fillna(0).astype(int),
                actor=subset["holder"],
                policy=name,
                panel="actor",
                scope="generation",
            )
            tables.append(subset.rename(columns={"duration_s": "held_s", "gpu_seconds": "gpu_s"}).assign(**cell))
        tables.append(totals(outcome).assign(**cell, panel="total"))
    return Numbers(pd.concat(tables, ignore_index=True).reindex(columns=COLUMNS))


def cost_saved(numbers: Numbers) -> dict[tuple[str, str], float]:
    """Return (data set, basis) to the share of RLHFuse's GPU-seconds of generation that RLHFless saves."""
    cost = (
        numbers.table[numbers.table["panel"] == "actor"]
        .groupby(["data_set", "basis", "policy"])["gpu_s"]
        .sum()
        .unstack("policy")
    )
    return {key: float(1 - row["rlhfless"] / row["rlhfuse"]) for key, row in cost.iterrows()}


def _totals(numbers: Numbers, scope: str = "generation") -> pd.DataFrame:
    """Return sums over the steps in the paper's setting, a row per policy and the bound."""
    table = numbers.table
    return table[(table["panel"] == "total") & (table["basis"] == "length model") & (table["scope"] == scope)]


def possible_saving(numbers: Numbers) -> float:
    """Return the share of RLHFuse's cost that any policy could save in RLHFuse's own time, in the paper's setting."""
    subset = _totals(numbers).set_index("policy").loc["rlhfuse"]
    return float(1 - subset["bound_gpu_s"] / subset["gpu_s"])


def shares(numbers: Numbers) -> str:
    """Describe in words each policy's share of the headroom in the paper's setting."""
    subset = _totals(numbers)
    subset = subset[~subset["policy"].isin(["static", "static-generation", "bound"])]
    return ", ".join(f"{label_of(row.policy)} {row.share:.0%}" for row in subset.itertuples())


def plot(setting: Figure12Setting, numbers: Numbers) -> go.Figure:
    """Plot each actor's completed tokens and allocated time, step by step, in the paper's setting. Below are time and cost of
    the 4 steps under every policy."""
    table = numbers.table[(numbers.table["panel"] == "actor") & (numbers.table["basis"] == "length model")]
    heads = [f"{NAMES[p]}: {w}" for w in ("tokens of the responses completed", "seconds held") for p in NAMES]
    heads += [f"all policies, {name}: sums of the steps" for name in ("generation alone", "whole steps")]
    fig = make_subplots(
        rows=3, cols=2, vertical_spacing=0.1, horizontal_spacing=0.07,
        subplot_titles=heads, row_heights=[0.28, 0.28, 0.44],
    )  # fmt: skip
    steps = sorted(table["step"].unique())
    for col, policy in enumerate(NAMES, start=1):
        subset = table[table["policy"] == policy]
        for i, (actor, here) in enumerate(subset.groupby("actor")):
            for row, what in enumerate(("tokens", "held_s"), start=1):
                fig.add_bar(
                    x=[f"step {steps.index(s) + 1}" for s in here["step"]], y=here[what], name=str(actor).replace("-", " "),
                    legendgroup=actor, showlegend=row == 1 and col == 1, marker=bar_of(i), row=row, col=col,
                )  # fmt: skip
    for row, title in enumerate(("tokens", "seconds"), start=1):
        subset = table["tokens" if row == 1 else "held_s"].max() * 1.05
        fig.update_yaxes(range=[0, subset], row=row)
        fig.update_yaxes(title=title, row=row, col=1)
        fig.update_yaxes(showticklabels=False, row=row, col=2)
    for col, scope in enumerate(("generation", "step"), start=1):
        total = _totals(numbers, scope).set_index("policy")
        shown = [p for p in total.index if scope == "step" or p != "static"]  # held longer, it is the same in generation

        def point(policy: str, total: pd.DataFrame = total) -> tuple[list[float], list[float]]:
            return [total.loc[policy, "time_s"]], [total.loc[policy, "gpu_s"]]

        add_policies(fig, shown, point, row=3, col=col, showlegend=scope == "step")
    fig.update_xaxes(title="time (s)", row=3)
    fig.update_yaxes(rangemode="tozero", row=3)
    fig.update_yaxes(title="GPU-seconds", row=3, col=1)
    note = "PPO, GSM8K (length model), Qwen2.5-3B; rows 1 and 2: generation on 3 actors"
    return styled(fig, TITLE, note, barmode="group", legend={**WIDE_LEGEND, "y": -0.07}, height=980, margin={"t": 100})


def caption(setting: Figure12Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    return Caption(
        "Each actor's completed tokens and held seconds, step by step; below, time and cost of all policies over the steps.",
        "The public log's lengths, where the text says 'log'."
        if len(cost_saved(numbers)) > 1
        else "Nothing: no log is at hand.",
        f"Lengths of the 4 steps are the stated model of GSM8K. {setting.machine.about}.{about_logs(numbers.table['basis'])}",
        "12.8 % lower cost than RLHFuse's global cut without ranking (PPO, GSM8K, 3 actors, 4 steps, trace replay).",
        "Here RLHFuse migrates when 20 % of the responses are unfinished, the share reported as best. The paper does not say "
        f"which share it used. Share of the headroom in generation alone: {shares(numbers)}.",
    )


def rows(numbers: Numbers) -> list[Row]:
    """Return the printed numbers beside ours; see ``Row``."""
    saved, possible = cost_saved(numbers), possible_saving(numbers)
    word = "The order holds" if min(saved.values()) > 0 else "The order does not hold everywhere"
    return [
        Row(
            "saved cost of generation by ranking and a local cut, compared with RLHFuse's global cut", "12.8 %",
            ", ".join(f"{value:.1%} on {name} ({basis})" for (name, basis), value in saved.items()),
            f"any policy in RLHFuse's own time: {possible:.0%}",
            f"{reached(PAPER_COST_SAVED, {'': possible})}. {word}. Share of the headroom in "
            f"generation alone: {shares(numbers)}. Here RLHFuse migrates when 20 % of the responses are unfinished, the share "
            "reported as best. The paper does not say which share it used.",
        )
    ]  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    saved = cost_saved(numbers)
    text = ", ".join(f"{value:.1%} cheaper on {name} ({basis})" for (name, basis), value in saved.items())
    stated = "ranking with a local cut is cheaper than RLHFuse's global cut"
    return [Claim.of(stated, [value > 0 for value in saved.values()], text)]


FAST = replace(
    Figure12Setting(), responses=256, steps=2,
    policies=("static", "static-generation", "random", "rlhfuse", "rlhfless", "solver+replan", "oracle"),
)  # fmt: skip
FIGURE = PaperFigure("12", TITLE, Figure12Setting(), FAST, numbers, plot, caption, rows, claims)
