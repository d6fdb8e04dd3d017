"""Figure 13: (a) how scaling follows lengths that drift, and (b) prefill tokens with each prompt computed once.

Computed by the comparison; (a) needs lengths that drift, and its setting states the drift.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import ELASTIC_TEXT, NOT_BOUND, SCOPES, WEIGHT, Outcome, compare, label_of, totals
from rlhfless.paper.draw import WIDE_LEGEND, bar_of, marker_of, style_of
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.variants import Deduplicated
from rlhfless.paper.wording import spread
from rlhfless.paper.workloads import LengthHistory, Sources, modelled
from rlhfless.plots.palette import GREY, ORANGE
from rlhfless.plots.style import styled
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.scheduling.baselines import Static
from solver.bounds.headroom import share_of_headroom, summed_bounds
from solver.model.objective import Objective

TITLE = "Figure 13: scaling while lengths drift, and deduplicated prefill"
PAPER_SAMPLES = 3
SHOWN = ("static", "static-generation", "elastic", "random", "rlhfuse", "rlhfless", "solver+replan", "oracle+replan")
BOUNDS = {
    "bound": "bound: least time at any cost, least cost at any time, naive learner",
    "bound-on-all": label_of("bound-on-all"),
}
COLUMNS = [
    "panel", "scope", "policy", "step", "samples_per_prompt", "mean_tokens", "actors", "prefill_tokens", "time_s", "gpu_s",
    "share",
]  # fmt: skip


@dataclass(frozen=True)
class Figure13Setting:
    """Setting: (a) PPO on GSM8K while lengths grow by a factor e^drift per epoch; (b) groups of G samples.

    Attributes:
        drift: of the logarithm of all lengths; 0.25 makes them 5.8 times as long in 8 epochs. A public GRPO run on MATH
            problems grew from 6 to hundreds of tokens (figure 4b), so drifts of this size do occur.
    """

    epochs: int = 8
    drift: float = 0.25
    responses: int = 512
    samples_per_prompt: tuple[int, ...] = (1, 2, 3, 4, 8)
    policies: tuple[str, ...] = SHOWN
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def history_of(setting: Figure13Setting) -> LengthHistory:
    """Return the lengths that drift."""
    model = replace(GSM8K, name="GSM8K, drifting", drift=setting.drift, median_tokens=100.0)
    return modelled(model, 1, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)


def numbers(setting: Figure13Setting, sources: Sources) -> Numbers:
    """Return ``COLUMNS``. ``panel`` is ``scaling`` (whole steps, and generation alone) or ``prefill`` (generation alone).
    ``share`` is the share of the headroom, of each step or of all."""
    history = history_of(setting)
    outcome = compare(history, setting.machine, "PPO", setting.policies, seed=setting.seed)
    mean = history.rollouts.groupby("step")["response_tokens"].mean()
    drift = pd.concat([_drift(outcome, scope) for scope in SCOPES], ignore_index=True)
    drift = drift.assign(panel="scaling", mean_tokens=drift["step"].map(mean))
    return Numbers(pd.concat([drift, _prefill(setting)], ignore_index=True).reindex(columns=COLUMNS), outcome.planning)


def _drift(outcome: Outcome, scope: str) -> pd.DataFrame:
    """Return every policy's steps with its share of the headroom in each, and the bounds of every step. These are the least
    time, at any cost, and the least GPU-seconds, at any time; of whole steps also with a learner on all GPUs."""
    phases_s, phases_gpu_s = (outcome.phases.seconds, outcome.learner_gpu_s) if scope == "step" else (0.0, 0.0)
    phases_of_bounds = {"bound": phases_s, **({"bound-on-all": outcome.phases_on_all.seconds} if scope == "step" else {})}
    bounds = pd.DataFrame(
        [
            {"policy": name, "step": step, "time_s": curve.shortest_s + of_bound_s, "gpu_s": curve.min_gpu_s + phases_gpu_s}
            for name, of_bound_s in phases_of_bounds.items() for step, curve in outcome.curves.items()
        ]
    )  # fmt: skip
    steps = outcome.steps[["policy", "step", "actors"]].assign(
        time_s=outcome.steps[f"{scope}_s"], gpu_s=outcome.steps[f"{scope}_gpu_s"]
    )
    value = pd.Series(Objective(WEIGHT).product(steps["time_s"], steps["gpu_s"]), steps.index)
    naive = value[steps["policy"] == "static"].set_axis(steps["step"][steps["policy"] == "static"])
    best_values = {step: summed_bounds([curve], WEIGHT, phases_s, phases_gpu_s).value for step, curve in outcome.curves.items()}
    steps["share"] = [
        share_of_headroom(x, naive[step], best_values[step]) for x, step in zip(value, steps["step"], strict=True)
    ]
    return pd.concat([steps, bounds], ignore_index=True).assign(scope=scope)


def _prefill(setting: Figure13Setting) -> pd.DataFrame:
    """Return the naive system's prefill tokens and GPU-seconds of generation, with and without deduplication."""
    rows = []
    actors = setting.machine.static_actors
    policies: list[SchedulingPolicy] = [Static(actors), Deduplicated(Static(actors), "dedup")]
    for samples_per_prompt in setting.samples_per_prompt:
        history = modelled(GSM8K, samples_per_prompt, responses=setting.responses, epochs=2, seed=setting.seed)
        outcome = compare(history, setting.machine, "GRPO", policies, seed=setting.seed)
        sums = totals(outcome)
        share = sums[sums["scope"] == "generation"].set_index("policy")["share"]
        for policy, trace in outcome.simulation.traces.items():
            computed = int(trace.rollouts["prefill_tokens_computed"].sum())
            subset = outcome.steps[outcome.steps["policy"] == policy]
            rows.append(
                {
                    "panel": "prefill", "scope": "generation", "policy": policy, "samples_per_prompt": samples_per_prompt,
                    "prefill_tokens": computed, "time_s": float(subset["generation_s"].sum()),
                    "gpu_s": float(subset["generation_gpu_s"].sum()), "share": share[policy],
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def scaling(numbers: Numbers, policy: str, scope: str = "step") -> pd.DataFrame:
    """Return the steps of a policy while lengths drift, shortest lengths first."""
    part = numbers.table[(numbers.table["panel"] == "scaling") & (numbers.table["scope"] == scope)]
    part = part[part["policy"] == policy]
    return part.sort_values("mean_tokens", ignore_index=True)


def shares(numbers: Numbers) -> str:
    """Describe in words each policy's share of the headroom while lengths drift, in whole steps and in generation alone."""
    texts = (" and ".join(spread(scaling(numbers, p, scope)["share"], ".0%") for scope in SCOPES) for p in SHOWN[1:])
    return ", ".join(f"{label_of(policy)} {both}" for policy, both in zip(SHOWN[1:], texts, strict=True))


def prefill_saved(numbers: Numbers) -> dict[int, float]:
    """Return samples of a prompt to the share of prefill tokens that computing each prompt once saves."""
    part = numbers.table[numbers.table["panel"] == "prefill"]
    tokens = part.pivot(index="samples_per_prompt", columns="policy", values="prefill_tokens")
    return {int(g): float(1 - row["dedup"] / row["static"]) for g, row in tokens.iterrows()}


def prefill_cost_saved(numbers: Numbers) -> dict[int, float]:
    """Return samples of a prompt to the share of GPU-seconds of generation that computing each prompt once saves."""
    part = numbers.table[numbers.table["panel"] == "prefill"]
    cost = part.pivot(index="samples_per_prompt", columns="policy", values="gpu_s")
    return {int(g): float(1 - row["dedup"] / row["static"]) for g, row in cost.iterrows()}


def prefill_share(numbers: Numbers) -> dict[int, float]:
    """Return samples of a prompt to the share of generation's headroom that computing each prompt once takes.

    The headroom is measured from the naive system.
    """
    part = numbers.table[(numbers.table["panel"] == "prefill") & (numbers.table["policy"] == "dedup")]
    return {int(g): float(share) for g, share in zip(part["samples_per_prompt"], part["share"], strict=True)}


def plot(setting: Figure13Setting, numbers: Numbers) -> go.Figure:
    """Plot (a): whole steps on the left, generation alone in the middle, the actors of both on the right; below them (b)."""
    rows = {"time_s": "time (s)", "gpu_s": "GPU-seconds", "share": "share of the headroom"}
    heads = ["(a) whole steps", "(a) generation alone", "(a) actors", "", "", "(b) prefill tokens, in thousands", "", "",
             "(b) GPU-seconds of generation"]  # fmt: skip
    fig = make_subplots(rows=3, cols=3, subplot_titles=heads, vertical_spacing=0.09, horizontal_spacing=0.07)
    for policy in (*SHOWN, *BOUNDS):
        style = style_of(policy)
        panels = [(scope, what, row, col) for col, scope in enumerate(SCOPES, 1) for row, what in enumerate(rows, 1)]
        for scope, what, row, col in [*panels, ("step", "actors", 1, 3)]:
            subset = scaling(numbers, policy, scope)
            if subset.empty or (policy in BOUNDS and what in ("actors", "share")) or (policy == "static" and what == "share"):
                continue
            if policy == "elastic" and (scope == "generation" or what == "actors"):
                continue  # it generates as the naive system does
            fig.add_scatter(
                x=subset["mean_tokens"], y=subset[what].astype(float), mode="lines+markers",
                name=BOUNDS.get(policy, label_of(policy)), legendgroup=policy, showlegend=(row, col) == (1, 1),
                marker=marker_of(policy, 8),
                line={"color": style.colour, "dash": "dash" if policy in BOUNDS else "solid", "width": 1.5}, row=row, col=col,
            )  # fmt: skip
    for row, title in enumerate(rows.values(), start=1):
        fig.update_yaxes(title=title, row=row, col=1)
    for col in (1, 2):
        fig.update_xaxes(title="mean response length (tokens)", row=3, col=col)
        fig.update_yaxes(tickformat=".0%", row=3, col=col)
    fig.update_yaxes(dtick=1, rangemode="tozero", row=1, col=3)
    _add_prefill(fig, numbers)
    note = f"GSM8K (length model); (a) PPO, all lengths grow {np.exp(setting.drift):.2f} times per epoch; (b) GRPO"
    note += "<br>share: of each step, 0 % is naive static held through the step, 100 % the bound for a learner of its size"
    return styled(fig, TITLE, note, barmode="group", legend={**WIDE_LEGEND, "y": -0.1}, height=900, margin={"t": 120})


def _add_prefill(fig: go.Figure, numbers: Numbers) -> None:
    """Add panel (b): prefill tokens and cost, with and without deduplication."""
    prefill = numbers.table[numbers.table["panel"] == "prefill"]
    drawn = (("static", "every response prefills", bar_of(0, GREY)), ("dedup", "each prompt once", bar_of(1, ORANGE)))
    for policy, name, marker in drawn:
        subset = prefill[prefill["policy"] == policy]
        x = [f"{int(g)}" for g in subset["samples_per_prompt"]]
        for row, y in ((2, subset["prefill_tokens"] / 1e3), (3, subset["gpu_s"])):
            fig.add_bar(
                x=x, y=y, name=f"(b) {name}", legendgroup=policy + "b", showlegend=row == 2, marker=marker, row=row, col=3
            )
    fig.update_xaxes(type="category", row=2, col=3)
    fig.update_xaxes(title="responses per prompt", type="category", row=3, col=3)


def caption(setting: Figure13Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    part, mine = scaling(numbers, "rlhfless"), scaling(numbers, "solver+replan")["actors"].astype(int)
    first, last = part.iloc[0], part.iloc[-1]
    cost = prefill_cost_saved(numbers)
    return Caption(
        "(a) Time, cost, share of the headroom and actors while lengths drift. (b) Prefill tokens and GPU-seconds with every "
        "response prefilled, and with each prompt prefilled once.",
        "Nothing.",
        f"Lengths are the stated model of GSM8K; their drift is our choice. {setting.machine.about}.",
        "Scaling follows the drift of lengths (a picture). One prefill per prompt instead of three computes 66 % fewer tokens.",
        f"While mean length goes from {first['mean_tokens']:.0f} to {last['mean_tokens']:.0f} tokens, the paper's rule goes "
        f"from {int(first['actors'])} to {int(last['actors'])} actors; ours takes {mine.min()} to {mine.max()}. "
        "The rule's min-max scaling compares every count with the largest and the smallest of the same step, so it follows the "
        "shape of the lengths more than their size. Share of the headroom of each step, in whole steps and in generation "
        f"alone: {shares(numbers)}. Elastic naive has a larger learner than that bound, so it can be above 100 %. "
        f"{ELASTIC_TEXT} {NOT_BOUND} Prefilling each prompt once saves {cost[max(cost)]:.1%} of the GPU-seconds of generation "
        f"with {max(cost)} responses per prompt, {prefill_share(numbers)[max(cost)]:.0%} of the headroom there, because "
        "prompts of GSM8K are short.",
    )


def rows(numbers: Numbers) -> list[Row]:
    """Return the printed numbers beside ours; see ``Row``."""
    share, cost = prefill_saved(numbers)[PAPER_SAMPLES], prefill_cost_saved(numbers)[PAPER_SAMPLES]
    return [
        Row(
            "prefill tokens saved by one prefill per prompt instead of three", "66 %", f"{share:.1%}",
            "(G - 1) / G: 66.7 % for G = 3",
            f"{'It follows from counting and holds exactly' if abs(share - 2 / 3) < 1e-9 else 'It does not match the count'}. "
            f"Prompts of GSM8K are short, so this saves {cost:.1%} of generation's GPU time.",
        )
    ]  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    subset, saved = scaling(numbers, "rlhfless"), prefill_saved(numbers)
    actors, tokens = subset["actors"].astype(int), subset["mean_tokens"]
    rank = float(tokens.rank().corr(actors.rank())) if actors.nunique() > 1 else 0.0  # Spearman without scipy
    longer, more = tokens.iloc[-1] / tokens.iloc[0], actors.iloc[-1] / actors.iloc[0]
    as_much = more >= longer**0.5  # half of the growth, on a logarithmic scale
    return [
        Claim.of(
            "scaling follows the drift of lengths", [actors.iloc[-1] > actors.iloc[0], rank >= 0.5, as_much],
            f"{'' if as_much else 'barely: '}lengths grow {longer:.1f} times, the rule's actors go from {actors.iloc[0]} to "
            f"{actors.iloc[-1]} (rank correlation {rank:.1f}): min-max scaling compares actor counts of one step with each "
            "other",
        ),
        Claim.of(
            "computing each prompt once saves (G - 1) / G of the prefill tokens",
            [abs(share - (g - 1) / g) < 1e-9 for g, share in saved.items()],
            ", ".join(f"{share:.1%} for G = {g}" for g, share in saved.items() if g > 1),
        ),
    ]  # fmt: skip


FAST = replace(Figure13Setting(), epochs=4, drift=0.5, responses=256, samples_per_prompt=(1, 3))
FIGURE = PaperFigure("13", TITLE, Figure13Setting(), FAST, numbers, plot, caption, rows, claims)
