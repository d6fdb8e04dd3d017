"""Figure 13: (a) how scaling follows lengths that drift, and (b) prefill tokens with each prompt computed once.

Knows the comparison; (a) needs lengths that drift, so it states how they do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import WEIGHT, Outcome, compare, label_of, totals
from rlhfless.paper.draw import WIDE_LEGEND, bar_of, marker_of, spread, style_of
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.parts import Caption, Numbers, PaperFigure
from rlhfless.paper.variants import Deduplicated
from rlhfless.paper.workloads import History, Sources, modelled
from rlhfless.plots.palette import GREY, ORANGE
from rlhfless.plots.style import styled
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.scheduling.fixed import Static
from solver.possible import curve_of, possible, share_of_possible

TITLE = "Figure 13: scaling while lengths drift, and deduplicated prefill"
PAPER_PREFILL_SAVED, PAPER_SAMPLES = 0.66, 3
SHOWN = ("static", "static-generation", "random", "rlhfuse", "rlhfless", "solver+replan", "oracle+replan")
NAMES = {"bound": "bound: least time at any cost, least cost at any time"}
COLUMNS = [
    "panel", "policy", "step", "samples", "mean_tokens", "actors", "step_s", "step_gpu_s", "prefill_tokens", "generation_gpu_s",
    "share",
]  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """(a) PPO on GSM8K while lengths grow by a factor e^drift per epoch; (b) groups of G samples.

    Attributes:
        drift: of the logarithm of all lengths; 0.25 makes them 5.8 times as long in 8 epochs. A public GRPO run on MATH
            problems grew from 6 to hundreds of tokens (figure 4b), so drifts of this size do occur.
    """

    epochs: int = 8
    drift: float = 0.25
    responses: int = 512
    samples: tuple[int, ...] = (1, 2, 3, 4, 8)
    policies: tuple[str, ...] = SHOWN
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def history_of(setting: Setting) -> History:
    """The lengths that drift."""
    model = replace(GSM8K, name="GSM8K, drifting", drift=setting.drift, median_tokens=100.0)
    return modelled(model, 1, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)


def numbers(setting: Setting, sources: Sources) -> Numbers:
    """``COLUMNS``; ``share`` is of the possible, in a whole step (``scaling``) or in generation alone (``prefill``)."""
    history = history_of(setting)
    outcome = compare(history, setting.machine, "PPO", setting.policies, seed=setting.seed)
    mean = history.rollouts.groupby("step")["response_tokens"].mean()
    steps = pd.concat([outcome.steps.assign(share=_shares(outcome)), _bound(outcome)], ignore_index=True)
    drift = steps.assign(panel="scaling", mean_tokens=steps["step"].map(mean))
    return Numbers(pd.concat([drift, _prefill(setting)], ignore_index=True).reindex(columns=COLUMNS), outcome.planning)


def _bound(outcome: Outcome) -> pd.DataFrame:
    """Of every step the least time, at any cost, and the least GPU-seconds, at any time."""
    rest, curves = outcome.rest, [curve_of(bound, points=2) for bound in outcome.simulation.bounds]
    return pd.DataFrame(
        {
            "policy": "bound", "step": [one.step for one in outcome.simulation.logged],
            "step_s": [curve.shortest_s + rest.seconds for curve in curves],
            "step_gpu_s": [curve.never_gpu_s + outcome.learner_gpu_s for curve in curves],
        }
    )  # fmt: skip


def _shares(outcome: Outcome) -> list[float]:
    """Of every row of the outcome's steps the share of what is possible in that step."""
    rest, steps = outcome.rest, outcome.steps
    value = steps["step_s"] ** WEIGHT * steps["step_gpu_s"] ** (1 - WEIGHT)
    naive = value[steps["policy"] == "static"].set_axis(steps["step"][steps["policy"] == "static"])
    least = {
        one.step: possible([curve_of(bound)], WEIGHT, rest.seconds, outcome.learner_gpu_s).value
        for one, bound in zip(outcome.simulation.logged, outcome.simulation.bounds, strict=True)
    }
    return [share_of_possible(own, naive[step], least[step]) for own, step in zip(value, steps["step"], strict=True)]


def _prefill(setting: Setting) -> pd.DataFrame:
    """Prefill tokens that actors computed, and GPU-seconds of generation, of the naive system with and without."""
    rows = []
    actors = setting.machine.static_actors
    policies: list[SchedulingPolicy] = [Static(actors), Deduplicated(Static(actors), "dedup")]
    for samples in setting.samples:
        history = modelled(GSM8K, samples, responses=setting.responses, epochs=2, seed=setting.seed)
        outcome = compare(history, setting.machine, "GRPO", policies, seed=setting.seed)
        sums = totals(outcome)
        share = sums[sums["scope"] == "generation"].set_index("policy")["share"]
        for policy, trace in outcome.simulation.traces.items():
            computed = int(trace.rollouts["prefill_tokens_computed"].sum())
            own = outcome.steps[outcome.steps["policy"] == policy]
            rows.append(
                {
                    "panel": "prefill", "policy": policy, "samples": samples, "prefill_tokens": computed,
                    "generation_gpu_s": float(own["generation_gpu_s"].sum()), "share": share[policy],
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def scaling(found: Numbers, policy: str) -> pd.DataFrame:
    """The steps of a policy while lengths drift, shortest lengths first."""
    part = found.table[(found.table["panel"] == "scaling") & (found.table["policy"] == policy)]
    return part.sort_values("mean_tokens", ignore_index=True)


def prefill_saved(found: Numbers) -> dict[int, float]:
    """Samples of a prompt to the share of prefill tokens that computing each prompt once saves."""
    part = found.table[found.table["panel"] == "prefill"]
    tokens = part.pivot(index="samples", columns="policy", values="prefill_tokens")
    return {int(g): float(1 - row["dedup"] / row["static"]) for g, row in tokens.iterrows()}


def prefill_cost_saved(found: Numbers) -> dict[int, float]:
    """The same of GPU-seconds of generation."""
    part = found.table[found.table["panel"] == "prefill"]
    cost = part.pivot(index="samples", columns="policy", values="generation_gpu_s")
    return {int(g): float(1 - row["dedup"] / row["static"]) for g, row in cost.iterrows()}


def prefill_share(found: Numbers) -> dict[int, float]:
    """The same as a share of what is possible in generation alone, from the naive system on."""
    part = found.table[(found.table["panel"] == "prefill") & (found.table["policy"] == "dedup")]
    return {int(g): float(share) for g, share in zip(part["samples"], part["share"], strict=True)}


def plot(setting: Setting, found: Numbers) -> go.Figure:
    """(a) in three rows on the left, (b) on the right."""
    table = found.table
    heads = ["(a) actors", "(b) prefill tokens, in thousands", "(a) time of a step (s)", "(b) GPU-seconds of generation",
             "(a) GPU-seconds of a step"]  # fmt: skip
    fig = make_subplots(
        rows=3, cols=2, specs=[[{}, {}], [{}, {"rowspan": 2}], [{}, None]], subplot_titles=heads, vertical_spacing=0.1,
        horizontal_spacing=0.09,
    )  # fmt: skip
    for policy in (*SHOWN, "bound"):
        own, style = scaling(found, policy), style_of(policy)
        for row, what in enumerate(("actors", "step_s", "step_gpu_s"), start=1):
            if policy == "bound" and row == 1:
                continue
            fig.add_scatter(
                x=own["mean_tokens"], y=own[what].astype(float), mode="lines+markers", name=NAMES.get(policy, label_of(policy)),
                legendgroup=policy, showlegend=row == 2, marker=marker_of(policy, 8),
                line={"color": style.colour, "dash": "dash" if policy == "bound" else "solid", "width": 1.5}, row=row, col=1,
            )  # fmt: skip
    fig.update_xaxes(title="mean response length of the step (tokens)", row=3, col=1)
    fig.update_yaxes(dtick=1, rangemode="tozero", row=1, col=1)
    prefill = table[table["panel"] == "prefill"]
    drawn = (("static", "every response prefills", bar_of(0, GREY)), ("dedup", "each prompt once", bar_of(1, ORANGE)))
    for policy, name, marker in drawn:
        own = prefill[prefill["policy"] == policy]
        x = [f"{int(g)}" for g in own["samples"]]
        fig.add_bar(x=x, y=own["prefill_tokens"] / 1e3, name=name, legendgroup=policy + "b", marker=marker, row=1, col=2)
        fig.add_bar(
            x=x, y=own["generation_gpu_s"], name=name, legendgroup=policy + "b", showlegend=False, marker=marker, row=2, col=2
        )
    fig.update_xaxes(title="responses per prompt", type="category", row=2, col=2)
    fig.update_xaxes(type="category", row=1, col=2)
    note = f"GSM8K (length model); left: PPO, all lengths grow {np.exp(setting.drift):.2f} times per epoch; right: GRPO"
    return styled(fig, TITLE, note, barmode="group", legend={**WIDE_LEGEND, "y": -0.12}, height=760, margin={"t": 100})


def caption(setting: Setting, found: Numbers) -> Caption:
    """See ``Caption``."""
    part, mine = scaling(found, "rlhfless"), scaling(found, "solver+replan")["actors"].astype(int)
    first, last = part.iloc[0], part.iloc[-1]
    cost = prefill_cost_saved(found)
    return Caption(
        "Nothing.",
        f"Lengths are the stated model of GSM8K with a drift that is ours. {setting.machine.about}.",
        "Scaling follows the drift of lengths (a picture); one prefill per prompt instead of three computes 66 % fewer tokens.",
        f"While mean length goes from {first['mean_tokens']:.0f} to {last['mean_tokens']:.0f} tokens, the paper's rule goes "
        f"from {int(first['actors'])} to {int(last['actors'])} actors: its min-max scaling compares every count with the "
        "largest and the smallest of the same step, so it follows the shape of the lengths more than their size; ours takes "
        f"{mine.min()} to {mine.max()}. Of what is possible in a step's time and cost the rule takes "
        f"{spread(part['share'], '.0%')}, ours {spread(scaling(found, 'solver+replan')['share'], '.0%')}. Of the GPU-seconds "
        f"of generation prefilling each prompt once saves {cost[max(cost)]:.1%} with {max(cost)} responses per "
        f"prompt, {prefill_share(found)[max(cost)]:.0%} of what is possible there: prompts of GSM8K are short.",
    )


FAST = replace(Setting(), epochs=4, drift=0.5, responses=256, samples=(1, 3))
FIGURE = PaperFigure("13", TITLE, Setting(), FAST, numbers, plot, caption)
