"""Figure 9: placement of the actors of one step, and the times of prefill, transfers and decoding.

Computed from one simulated step under the paper's rule with a prefill actor on the learner's GPUs; costs are not shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.draw import WIDE_LEGEND
from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure
from rlhfless.paper.variants import FixedActors, PrefillActor
from rlhfless.paper.workloads import Sources, modelled
from rlhfless.plots.palette import IDLE, PHASE_STYLES
from rlhfless.plots.style import styled
from rlhfless.simulate import SimulationConfig as Simulated
from rlhfless.simulate import simulate
from solver.model.objective import Objective

TITLE = "Figure 9: placement and overlap of one step"
NODE_BYTES_PER_S, NETWORK_BYTES_PER_S = 32e9, 50e9  # PCIe gen4 x16; 400 Gbit/s, as AWS states for g6e.48xlarge
PHASES = ("start", "sync", "prefill", "transfer", "decode", "migrate")


@dataclass(frozen=True)
class Figure09Setting:
    """Setting: GRPO, 4 samples per prompt of about 500 tokens (so that prefill is visible), 6 actors over two nodes of 8."""

    actors: int = 6
    samples_per_prompt: int = 4
    responses: int = 512
    prompt_tokens: float = 500.0
    machine: Machine = QWEN_3B_L40S
    seed: int = 0


def numbers(setting: Figure09Setting, sources: Sources) -> Numbers:
    """Return ``holder, node, phase, start_s, end_s, background``; phase ``held`` is the allocation itself."""
    model = replace(GSM8K, prompt_tokens=setting.prompt_tokens)
    history = modelled(model, setting.samples_per_prompt, responses=setting.responses, epochs=2, seed=setting.seed)
    machine = setting.machine
    cluster = replace(machine.cluster, node_bytes_per_s=NODE_BYTES_PER_S, network_bytes_per_s=NETWORK_BYTES_PER_S)
    phases = replace(machine.phases("GRPO", 0.0), learner_gpus=machine.learner_gpus)
    policy = PrefillActor(FixedActors(setting.actors, tau=1.0), machine.learner_gpus)
    config = Simulated(cluster, machine.latency, Objective(), phases, history.max_response_tokens)
    trace = simulate(history.rollouts, config, [policy], steps=history.last(1)).traces["rlhfless"]
    held = trace.allocations.assign(phase="held", background=False)
    columns = ["holder", "phase", "start_s", "end_s", "background"]
    table = pd.concat([held[columns], trace.spans[columns]], ignore_index=True)
    node = trace.allocations.set_index("holder")["node"].to_dict()
    # the learner's GPUs of the paper lie in the first node; here they are counted after the cluster's
    table["node"] = [0 if holder == "learner" else int(node[holder]) for holder in table["holder"]]
    table = table[table["end_s"] > table["start_s"]].sort_values(["holder", "start_s", "phase"], kind="stable")
    return Numbers(table[["holder", "node", "phase", "start_s", "end_s", "background"]].reset_index(drop=True))


def hidden_transfers(numbers: Numbers) -> tuple[int, int]:
    """Return how many actors are done before the one with the longest group (actor 0), and how many other actors there are."""
    decode = numbers.table[numbers.table["phase"] == "decode"].groupby("holder")["end_s"].max()
    other_actors = decode.drop("actor-0")
    return int((other_actors <= decode["actor-0"]).sum()), len(other_actors)


def plot(setting: Figure09Setting, numbers: Numbers) -> go.Figure:
    """Plot one row per holder."""
    table = numbers.table
    rows = sorted(table["holder"].unique(), key=lambda h: (h != "learner", h), reverse=True)
    node = table.groupby("holder")["node"].first()
    label = {h: f"{'prefill actor (learner GPUs)' if h == 'learner' else h.replace('-', ' ')}, node {node[h]}" for h in rows}
    fig = go.Figure()
    for phase in ("held", *PHASES):
        subset = table[table["phase"] == phase]
        if subset.empty:
            continue
        colour, hatch = (IDLE, "") if phase == "held" else PHASE_STYLES[phase]
        thick = subset["background"].map({True: 0.3, False: 0.75})
        fig.add_bar(
            y=[label[h] for h in subset["holder"]], x=subset["end_s"] - subset["start_s"], base=subset["start_s"],
            orientation="h", name="held, idle" if phase == "held" else phase, width=thick,
            marker={"color": colour, "pattern": {"shape": hatch, "fgcolor": "#444444", "size": 5}},
            hovertemplate=f"{phase}: %{{base:.3f}} s for %{{x:.3f}} s<extra>%{{y}}</extra>",
        )  # fmt: skip
    fig.update_yaxes(categoryorder="array", categoryarray=[label[h] for h in rows])
    fig.update_xaxes(title="seconds since the step's start")
    note = f"{setting.samples_per_prompt} samples of prompts of about {setting.prompt_tokens:.0f} tokens, Qwen2.5-3B on L40S"
    return styled(fig, TITLE, note, barmode="overlay", legend={**WIDE_LEGEND, "y": -0.25}, height=430)


def caption(setting: Figure09Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    prefill = numbers.table[(numbers.table["holder"] == "learner") & (numbers.table["phase"] == "prefill")]["end_s"].max()
    node = int(numbers.table.loc[numbers.table["holder"] == "actor-0", "node"].iloc[0])
    return Caption(
        "One row per actor of one step: start, weight sync, prefill, transfers and decoding over time.",
        "Nothing.",
        f"One step of the length model of GSM8K with prompts of about {setting.prompt_tokens:.0f} tokens. The prefill actor "
        f"runs on {setting.machine.learner_gpus} GPUs of the learner, assumed to be as fast per GPU as an actor. Links at "
        "nominal rates: 32 GB/s in a node (PCIe), 50 GB/s between nodes (400 Gbit/s). The learner holds its GPUs all the time "
        "here; the other figures charge them from the end of generation on.",
        "A timeline, only as a picture, and a rule: transfers are hidden when every other actor is done before the first one.",
        f"The prefill actor computes for {prefill:.2f} s. As in the paper, caches are sent after the whole prefill, so all "
        "actors wait for it first. The paper places the heaviest group nearest. Here the placement has the least makespan, "
        f"then the least GPU-seconds: the longest group is on node {node}, the learner on node 0, because at nominal rates "
        "the network is no slower than PCIe. Our own plans compare that wait with its saving, and mostly let samples on one "
        "actor share their prefill instead.",
    )


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    done, other_actors = hidden_transfers(numbers)
    text = f"{done} of {other_actors} actors are done before the one with the longest group"
    return [Claim.of("transfers are hidden behind the longest group", [done == other_actors], text)]


FAST = replace(Figure09Setting(), responses=256)
FIGURE = PaperFigure("9", TITLE, Figure09Setting(), FAST, numbers, plot, caption, claims=claims)
