"""Figure 11: ideas added one at a time, one point per step: none, deduplicated prefill, assignment, scaling.

Computed by the comparison with variants of the paper's policies; also shown are the other comparators and the lower bound of
all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.comparison import SCOPES, Outcome, compare, totals
from rlhfless.paper.draw import WIDE_LEGEND
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure
from rlhfless.paper.variants import Deduplicated, FixedActors
from rlhfless.paper.workloads import Sources, modelled
from rlhfless.plots.palette import BLUE, BOUND, GREEN, GREY, ORANGE, PURPLE, VERMILLION
from rlhfless.plots.style import styled
from rlhfless.scheduling import SchedulingPolicy, make_policy
from rlhfless.scheduling.baselines import Random, Static
from rlhfless.scheduling.rlhfuse import RLHFuse

TITLE = "Figure 11: what each idea adds, one point per step"
STAGES = {
    "static": ("(a) naive static, 3 actors, held through the step", GREY, "circle"),
    "static-generation": ("(a') the same, held through generation", GREY, "circle-open"),
    "dedup": ("(b) = (a) + deduplicated prefill", PURPLE, "square"),
    "assignment": ("(c) = (b) + assignment, local cut, release", GREEN, "diamond"),
    "scaling": ("(d) = (c) + scaling: RLHFless", VERMILLION, "triangle-down"),
    "rlhfuse": ("RLHFuse's cut, 3 actors, deduplicated", ORANGE, "triangle-up"),
    "random": ("right-sized random, released, deduplicated", "#56B4E9", "square-open"),
    "ours": ("ours: solver, re-planning, deduplicated", BLUE, "hexagram"),
    "oracle": ("oracle: true lengths, deduplicated", "#B8A800", "star-triangle-up"),
}  # fmt: skip
IDEAS = ("static", "dedup", "assignment", "scaling")
MAX_TIME_RATIO = 4.0  # times the shortest, up to which the bound is drawn


@dataclass(frozen=True)
class Figure11Setting:
    """Setting: GRPO with 4 samples, 3 epochs of 4 steps; the last two have history."""

    responses: int = 512
    samples_per_prompt: int = 4
    epochs: int = 3
    steps_per_epoch: int = 4
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def stages(static_actors: int) -> list[SchedulingPolicy]:
    """Return the policies of ``STAGES``, in their order."""
    return [
        Static(static_actors),
        Static(static_actors, name="static-generation"),
        Deduplicated(Static(static_actors), "dedup"),
        Deduplicated(FixedActors(static_actors), "assignment"),
        Deduplicated(make_policy("rlhfless"), "scaling"),
        Deduplicated(RLHFuse(actors=static_actors), "rlhfuse"),
        Deduplicated(Random(), "random"),
        Deduplicated(make_policy("solver+replan"), "ours"),
        Deduplicated(make_policy("oracle"), "oracle", clairvoyant=True),
    ]


def numbers(setting: Figure11Setting, sources: Sources) -> Numbers:
    """Return ``row, scope, policy, step, actors, time_s, gpu_s, speedup, cost_saved, share``: ``row`` is ``step``, ``total`` or
    ``bound``, each for whole steps and for generation alone. ``total`` has sums of steps, and only it has the last three
    columns. ``bound`` is a curve that no step is below."""
    history = modelled(
        GSM8K, setting.samples_per_prompt, responses=setting.responses, epochs=setting.epochs,
        steps_per_epoch=setting.steps_per_epoch,
        seed=setting.seed,
    )  # fmt: skip
    outcome = compare(
        history, setting.machine, "GRPO", stages(setting.machine.static_actors), held=frozenset({"static", "dedup"}),
        seed=setting.seed,
    )  # fmt: skip
    each = [
        outcome.steps[["policy", "step", "actors"]].assign(
            row="step", scope=scope, time_s=outcome.steps[f"{scope}_s"], gpu_s=outcome.steps[f"{scope}_gpu_s"]
        )
        for scope in SCOPES
    ]
    columns = ["row", "scope", "policy", "step", "actors", "time_s", "gpu_s", "speedup", "cost_saved", "share"]
    parts = [*each, totals(outcome).assign(row="total"), _bounds(outcome)]
    table = pd.concat(parts, ignore_index=True).reindex(columns=columns)
    table["step"] = table["step"].astype("Int64")
    return Numbers(table, outcome.planning)


def _bounds(outcome: Outcome) -> pd.DataFrame:
    """Return by time the least cost of any of the steps, for both scopes: the minimum of their curves, so that no step is
    below."""
    bounds = outcome.simulation.bounds
    times = min(bound.shortest_s() for bound in bounds) * np.geomspace(1.0, MAX_TIME_RATIO, 40)
    cheapest = np.array([min(bound.gpu_seconds(t * (1 + 1e-9)) for bound in bounds) for t in times])
    reachable = np.isfinite(cheapest)
    alone = pd.DataFrame({"time_s": times[reachable], "gpu_s": cheapest[reachable]}).assign(row="bound", policy="bound")
    whole_s, whole_gpu_s = alone["time_s"] + outcome.phases.seconds, alone["gpu_s"] + outcome.learner_gpu_s
    return pd.concat([alone.assign(scope="step", time_s=whole_s, gpu_s=whole_gpu_s), alone.assign(scope="generation")])


def rows_of(numbers: Numbers, row: str, scope: str = "step") -> pd.DataFrame:
    """Return the rows of one kind and scope."""
    return numbers.table[(numbers.table["row"] == row) & (numbers.table["scope"] == scope)]


def whole(numbers: Numbers, scope: str = "step") -> pd.DataFrame:
    """Return sums over the steps, by policy."""
    return rows_of(numbers, "total", scope).set_index("policy")


def plot(setting: Figure11Setting, numbers: Numbers) -> go.Figure:
    """Plot time and cost of every step, and the bound."""
    each, curve = rows_of(numbers, "step"), rows_of(numbers, "bound")
    fig = go.Figure()
    fig.add_scatter(
        x=curve["time_s"], y=curve["gpu_s"], mode="lines", name="bound: no step with this learner can be below",
        hoverinfo="skip", line={"color": BOUND, "width": 1.5, "dash": "dash"},
    )  # fmt: skip
    for policy, (name, colour, symbol) in STAGES.items():
        subset = each[each["policy"] == policy]
        marker = {"color": colour, "symbol": symbol, "size": 10, "line": {"width": 1, "color": "#444444"}}
        fig.add_scatter(
            x=subset["time_s"], y=subset["gpu_s"], mode="markers", name=name, marker=marker, customdata=subset["step"],
            meta={"customdata": "step"},
            hovertemplate=f"{name}<br>step %{{customdata}}: %{{x:.2f}} s, %{{y:.0f}} GPU-seconds<extra></extra>",
        )  # fmt: skip
    fig.update_xaxes(title="time of the whole step (s)")
    fig.update_yaxes(title="cost of the whole step (GPU-seconds)")
    fig.update_xaxes(range=[curve["time_s"].min() - 0.2, each["time_s"].max() + 0.3])
    fig.update_yaxes(rangemode="tozero")
    note = "GSM8K (length model), GRPO, Qwen2.5-3B; further to the lower left is better"
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.14}, height=640)


def caption(setting: Figure11Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    sums, alone = whole(numbers), whole(numbers, "generation")
    generation = ", ".join(
        f"{STAGES[p][0].split()[0]} {alone.loc[p, 'speedup']:.2f}x and {alone.loc[p, 'cost_saved']:.0%}" for p in IDEAS[1:]
    )
    texts = [
        f"{name.split(',')[0].split(':')[0]} {sums.loc[p, 'speedup']:.2f}x, {sums.loc[p, 'cost_saved']:.0%}, share "
        f"{sums.loc[p, 'share']:.0%}" for p, (name, *_) in STAGES.items() if p != "static"
    ]  # fmt: skip
    return Caption(
        "Time and cost of every step, one point per step and policy, and the lower bound of all steps.",
        "Nothing: the figure needs several steps with prompts that come back.",
        f"Lengths and prompts are the stated model of GSM8K. {setting.machine.about}.",
        "A scatter of the same four systems with static and oracle points, only as a picture.",
        f"Times faster than (a), cost saved, and share of the headroom, over all steps: {'; '.join(texts)}. Generation "
        f"alone: {generation}. Releasing GPUs when an actor is done is part of (c). The bound charges every "
        "prompt's prefill once, as deduplicated prefill does.",
    )  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    cost = whole(numbers)["gpu_s"].astype(float)[list(IDEAS)]
    names = ("deduplicated prefill", "assignment with the local cut", "scaling")
    changes = ", ".join(f"{name} {change:+.1%}" for name, change in zip(names, cost.pct_change()[1:], strict=True))
    return [Claim.of("every idea makes a step cheaper", np.diff(cost) < 0, f"change of a step's cost: {changes}")]


FAST = replace(Figure11Setting(), epochs=2, steps_per_epoch=2, responses=256)
FIGURE = PaperFigure("11", TITLE, Figure11Setting(), FAST, numbers, plot, caption, claims=claims)
