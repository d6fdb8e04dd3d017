"""Figures 2b and 17: a step's time and GPU-seconds by part, for PPO and GRPO.

Computed by the comparison; 2b is the naive system alone, 17 all policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import POLICIES, compare, label_of, totals
from rlhfless.paper.draw import WIDE_LEGEND
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure
from rlhfless.paper.wording import spread
from rlhfless.paper.workloads import Sources, about_logs, modelled
from rlhfless.plots.palette import IDLE, PHASE_STYLES, YELLOW
from rlhfless.plots.style import styled

PARTS = {
    "generation": "generation", "idle": "held, idle in generation", "waiting": "held, idle after it",
    "prepare": "preparation", "learn": "learning",
}  # fmt: skip
FILLS = {
    "generation": (PHASE_STYLES["decode"].colour, ""), "idle": (IDLE, "/"), "waiting": ("#F4E3C3", "\\"),
    "prepare": (YELLOW, "|"),
    "learn": (PHASE_STYLES["learn"].colour, "+"),
}  # fmt: skip


@dataclass(frozen=True)
class Figure17Setting:
    """Setting: PPO and GRPO on GSM8K with Qwen2.5-3B.

    Attributes:
        bound: whether the best of the bound in time and cost together is shown as well.
    """

    policies: tuple[str, ...] = POLICIES
    bound: bool = True
    machine: Machine = QWEN_3B_L40S
    responses: int = 512
    epochs: int = 3
    seed: int = 0


def numbers(setting: Figure17Setting, sources: Sources) -> Numbers:
    """Return ``algorithm, basis, policy, share, of, part, amount``: mean per step, ``of`` being ``time`` (s) or ``cost``
    (GPU-seconds). ``share`` is the policy's share of the headroom in whole steps, in time and cost together.

    Rows of the policy ``bound`` are the bound of generation alone, plus the fixed times of the other phases.
    """
    rows = []
    for algorithm in ("PPO", "GRPO"):
        history = (
            sources.gsm8k(4) if algorithm == "GRPO"
            else modelled(GSM8K, 1, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)
        )  # fmt: skip
        outcome = compare(history, setting.machine, algorithm, setting.policies, seed=setting.seed)
        phases, gpus = outcome.phases, setting.machine.learner_gpus
        sums = totals(outcome).set_index(["scope", "policy"])
        cell: dict[str, object] = {"algorithm": algorithm, "basis": history.basis}
        for policy, subset in outcome.steps.groupby("policy", sort=False):
            mean = subset.drop(columns=["policy", "step"]).astype(float).mean()
            idle = mean["generation_idle_gpu_s"]
            amounts = {
                ("time", "generation"): mean["generation_s"], ("time", "prepare"): phases.prepare_s,
                ("time", "learn"): phases.learn_s,
                ("cost", "generation"): mean["generation_gpu_s"] - idle, ("cost", "idle"): idle,
                ("cost", "waiting"): mean["step_idle_gpu_s"] - idle,
                ("cost", "prepare"): gpus * phases.prepare_s, ("cost", "learn"): gpus * phases.learn_s,
            }  # fmt: skip
            policy_cell = {**cell, "policy": policy, "share": sums.loc[("step", policy), "share"]}
            rows += [{**policy_cell, "of": o, "part": part, "amount": amount} for (o, part), amount in amounts.items()]
        if setting.bound:
            best = sums.loc[("generation", "bound")]
            amounts = {
                ("time", "generation"): best["time_s"] / best["steps"], ("time", "prepare"): phases.prepare_s,
                ("time", "learn"): phases.learn_s, ("cost", "generation"): best["gpu_s"] / best["steps"],
                ("cost", "prepare"): gpus * phases.prepare_s, ("cost", "learn"): gpus * phases.learn_s,
            }  # fmt: skip
            policy_cell = {**cell, "policy": "bound", "share": 1.0}
            rows += [{**policy_cell, "of": o, "part": part, "amount": amount} for (o, part), amount in amounts.items()]
    return Numbers(pd.DataFrame(rows))


def _plot(title: str, numbers: Numbers) -> go.Figure:
    table = numbers.table
    algorithms = table["algorithm"].unique().tolist()
    basis = table.groupby("algorithm")["basis"].first()
    heads = [f"{a}, {basis[a]}: {of} of a step" for of in ("time", "cost") for a in algorithms]
    height = 240 + 2 * (90 + 26 * table["policy"].nunique())
    fig = make_subplots(
        rows=2, cols=len(algorithms), subplot_titles=heads, shared_yaxes=True, vertical_spacing=85 / (height - 160),
        horizontal_spacing=0.03,
    )  # fmt: skip
    for row, of in enumerate(("time", "cost"), start=1):
        for col, algorithm in enumerate(algorithms, start=1):
            subset = table[(table["of"] == of) & (table["algorithm"] == algorithm)]
            for part, name in PARTS.items():
                here = subset[subset["part"] == part].iloc[::-1]
                if here.empty:
                    continue
                colour, hatch = FILLS[part]
                fig.add_bar(
                    y=[label_of(p) for p in here["policy"]], x=here["amount"], orientation="h", name=name, legendgroup=part,
                    showlegend=row == 2 and col == 1,
                    marker={"color": colour, "pattern": {"shape": hatch, "fgcolor": "#777777", "size": 5}},
                    hovertemplate=f"{name}: %{{x:.3g}}<extra>%{{y}}</extra>", row=row, col=col,
                )  # fmt: skip
            fig.update_xaxes(title="seconds" if of == "time" else "GPU-seconds", row=row, col=col)
    return styled(
        fig, title, "mean of the evaluated steps", height=height, barmode="stack",
        legend={**WIDE_LEGEND, "y": -60 / (height - 160)}, margin={"l": 70, "r": 24, "t": 100, "b": 60},
    )  # fmt: skip


def idle_share(numbers: Numbers) -> pd.DataFrame:
    """Return the share of a step's GPU-seconds in which GPUs are allocated and idle: algorithms by policies."""
    cost = numbers.table[(numbers.table["of"] == "cost") & (numbers.table["policy"] != "bound")]
    by = cost.pivot_table(index=["algorithm", "policy"], columns="part", values="amount", sort=False)
    return ((by["idle"] + by["waiting"]) / by.sum(axis=1)).unstack("policy")


def shares(numbers: Numbers) -> pd.DataFrame:
    """Return each policy's share of the headroom in whole steps: algorithms by policies (no naive system, no bound)."""
    table = numbers.table[~numbers.table["policy"].isin(["static", "bound"])]
    return table.pivot_table(index="algorithm", columns="policy", values="share", sort=False)


def _caption(setting: Figure17Setting, numbers: Numbers, printed: str) -> Caption:
    idle = idle_share(numbers)["static"]
    idle_shares = [f"{algorithm} {share:.0%}" for algorithm, share in idle.items()]
    basis = "GRPO lengths from a public log" if "log" in set(numbers.table["basis"]) else "no lengths"
    return Caption(
        "Time (above) and GPU-seconds (below) of a step by part: generation, idle GPUs, preparation, learning.",
        f"{basis[0].upper()}{basis[1:]}.",
        f"{setting.machine.about}. PPO lengths: the stated length model of GSM8K.{about_logs(numbers.table['basis'])}",
        printed,
        "Idle share of the naive system's GPU-seconds: "
        + ", ".join(idle_shares)
        + ". Share of the headroom in time and cost of whole steps together: "
        + ", ".join(f"{label_of(str(policy))} {spread(share, '.0%')}" for policy, share in shares(numbers).items())
        + ". Preparation and learning are the same for "
        "all policies, and depend on the assumed MFU. PPO also trains a critic of the same size.",
    )


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    idle = idle_share(numbers)
    naive, rule = idle["static"], idle["rlhfless"]
    text = f"idle: {spread(naive, '.0%')} of the naive step's GPU time, {spread(rule, '.0%')} under RLHFless' rule"
    return [Claim.of("less GPU time is idle than under naive static", rule < naive, text)]


TITLE_2B = "Figure 2b: where a step of the naive static system goes"
TITLE_17 = "Figure 17: where a step goes under every policy"


def _plot_2b(setting: Figure17Setting, numbers: Numbers) -> go.Figure:
    return _plot(TITLE_2B, numbers)


def _plot_17(setting: Figure17Setting, numbers: Numbers) -> go.Figure:
    return _plot(TITLE_17, numbers)


def _caption_2b(setting: Figure17Setting, numbers: Numbers) -> Caption:
    return _caption(setting, numbers, "A breakdown with idle parts, only as bars: no number is printed.")


def _caption_17(setting: Figure17Setting, numbers: Numbers) -> Caption:
    return _caption(setting, numbers, "A breakdown of PPO and GRPO steps, only as bars: no number is printed.")


NAIVE = Figure17Setting(policies=("static", "static-generation"), bound=False)
FIGURE_2B = PaperFigure("2b", TITLE_2B, NAIVE, replace(NAIVE, epochs=2), numbers, _plot_2b, _caption_2b)
FIGURE = PaperFigure(
    "17", TITLE_17, Figure17Setting(), replace(Figure17Setting(), epochs=2, responses=256), numbers, _plot_17, _caption_17,
    claims=claims,
)  # fmt: skip
