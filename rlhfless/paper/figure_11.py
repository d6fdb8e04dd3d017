"""Figure 11: one idea more at a time, one point per step: nothing, deduplicated prefill, assignment, scaling.

Knows the comparison with variants of the paper's policies; beside them the naive system, ours and the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.comparison import compare, totals
from rlhfless.paper.draw import WIDE_LEGEND
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.parts import Caption, Numbers, PaperFigure
from rlhfless.paper.variants import Deduplicated, FixedActors
from rlhfless.paper.workloads import Sources, modelled
from rlhfless.plots.palette import BLUE, GREEN, GREY, ORANGE, VERMILLION
from rlhfless.plots.style import styled
from rlhfless.scheduling import SchedulingPolicy, make_policy
from rlhfless.scheduling.fixed import Random, Static

TITLE = "Figure 11: what each idea adds, one point per step"
STAGES = {
    "static": ("(a) naive static, 3 actors", GREY, "circle"),
    "dedup": ("(b) + deduplicated prefill", ORANGE, "square"),
    "assignment": ("(c) + assignment and local cut", GREEN, "diamond"),
    "scaling": ("(d) + scaling: RLHFless", VERMILLION, "triangle-down"),
    "random": ("right-sized random, released, deduplicated", "#56B4E9", "square-open"),
    "ours": ("ours: solver, re-planning, deduplicated", BLUE, "hexagram"),
    "oracle": ("oracle: true lengths, deduplicated", "#B8A800", "star-triangle-up"),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """GRPO with 4 samples, 3 epochs of 4 steps; the last two have history."""

    responses: int = 512
    samples: int = 4
    epochs: int = 3
    steps_per_epoch: int = 4
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def stages(static_actors: int) -> list[SchedulingPolicy]:
    """The policies of ``STAGES``, in their order."""
    return [
        Static(static_actors),
        Deduplicated(Static(static_actors), "dedup"),
        Deduplicated(FixedActors(static_actors), "assignment"),
        Deduplicated(make_policy("rlhfless"), "scaling"),
        Deduplicated(Random(), "random"),
        Deduplicated(make_policy("solver+replan"), "ours"),
        Deduplicated(make_policy("oracle"), "oracle", clairvoyant=True),
    ]


def numbers(setting: Setting, sources: Sources) -> Numbers:
    """``row`` (``step`` or ``total``), ``policy, step, actors, step_s, step_gpu_s``, of totals ``speedup, cost_saved, "
    "share``."""
    history = modelled(
        GSM8K, setting.samples, responses=setting.responses, epochs=setting.epochs, steps_per_epoch=setting.steps_per_epoch,
        seed=setting.seed,
    )  # fmt: skip
    outcome = compare(
        history, setting.machine, "GRPO", stages(setting.machine.static_actors), held=frozenset({"static", "dedup"}),
        seed=setting.seed,
    )  # fmt: skip
    each = outcome.steps[["policy", "step", "actors", "step_s", "step_gpu_s"]].assign(row="step")
    whole = totals(outcome)
    whole = whole[whole["scope"] == "step"].rename(columns={"time_s": "step_s", "gpu_s": "step_gpu_s"}).assign(row="total")
    columns = ["row", "policy", "step", "actors", "step_s", "step_gpu_s", "speedup", "cost_saved", "share"]
    table = pd.concat([each, whole], ignore_index=True).reindex(columns=columns)
    table["step"] = table["step"].astype("Int64")
    return Numbers(table, outcome.planning)


def plot(setting: Setting, found: Numbers) -> go.Figure:
    """Time and cost of every step."""
    each = found.table[found.table["row"] == "step"]
    fig = go.Figure()
    for policy, (name, colour, symbol) in STAGES.items():
        own = each[each["policy"] == policy]
        marker = {"color": colour, "symbol": symbol, "size": 10, "line": {"width": 1, "color": "#444444"}}
        fig.add_scatter(
            x=own["step_s"], y=own["step_gpu_s"], mode="markers", name=name, marker=marker, customdata=own["step"],
            meta={"customdata": "step"},
            hovertemplate=f"{name}<br>step %{{customdata}}: %{{x:.2f}} s, %{{y:.0f}} GPU-seconds<extra></extra>",
        )  # fmt: skip
    fig.update_xaxes(title="time of the whole step (s)")
    fig.update_yaxes(title="cost of the whole step (GPU-seconds)")
    note = "GSM8K (length model), GRPO, Qwen2.5-3B; further to the lower left is better"
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.2}, height=560)


def caption(setting: Setting, found: Numbers) -> Caption:
    """See ``Caption``."""
    whole = found.table[found.table["row"] == "total"].set_index("policy")
    said = [f"{name} {whole.loc[p, 'speedup']:.2f}x, {whole.loc[p, 'cost_saved']:.0%}" for p, (name, *_) in STAGES.items()]
    return Caption(
        "Nothing: it needs several steps with prompts that come back.",
        f"Lengths and prompts are the stated model of GSM8K. {setting.machine.about}.",
        "A scatter of the same four systems with static and oracle points, as a picture only.",
        "Times faster than naive static, and cost saved, sums over the steps: "
        + "; ".join(said)
        + ". The share of the possible "
        f"that RLHFless takes is {whole.loc['scaling', 'share']:.0%}, ours {whole.loc['ours', 'share']:.0%}, right-sized "
        f"random {whole.loc['random', 'share']:.0%}: most of the gain is right-sizing and giving GPUs back. Deduplicated "
        "prefill moves little, because GSM8K's prompts are short.",
    )


FAST = replace(Setting(), epochs=2, steps_per_epoch=2, responses=256)
FIGURE = PaperFigure("11", TITLE, Setting(), FAST, numbers, plot, caption)
