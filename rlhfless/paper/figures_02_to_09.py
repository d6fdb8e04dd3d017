"""Figures 2b, 3c, 4a, 4b, 7b, 9 and 17: where a step goes, recomputed prefill, lengths, grouping, placement.

The paper prints a number of 3c alone; the others are pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.facets import FROM_ZERO, PERCENT, Panel, facets, looks_of, select
from rlhfless.paper.figure import NO_BOUND, STATED, Finding, Numbers, PaperFigure, Text, named, spread, verdict
from rlhfless.paper.lengths import GSM8K, MODELS
from rlhfless.paper.machine import QWEN_3B_L40S, Machine
from rlhfless.paper.runs import POLICIES, Runs, compare, label_of, totals
from rlhfless.paper.variants import FixedActors, PrefillActor
from rlhfless.paper.workloads import GSM8K_LENGTHS, LengthHistory, modelled
from rlhfless.plots import plot_lengths, plot_overview, plot_side_by_side, plot_steps, plot_timeline
from rlhfless.plots.length_quantiles import length_quantiles
from rlhfless.simulate import LoggedStep, SimulationConfig, logged_steps, simulate
from rlhfless.trace import Trace
from solver.bounds.schedules import ScheduleBound
from solver.model.objective import Objective
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray
from solver.timing.build_plan import assemble
from solver.timing.evaluate import evaluate

NO_NUMBER = "The paper shows a picture and prints no number."

# Figures 2b and 17: a step's time and GPU-seconds by part

USES = {
    "generation": ("generation", "work"), "idle": ("idle in generation", "idle"), "waiting": ("idle after generation", "idle"),
    "prepare": ("preparation", "work"), "learn": ("learning", "work"),
}  # fmt: skip
"""Parts of a step to what GPUs do, and what kind of use that is."""


def step_parts(
    runs: Runs, policies: Sequence[str] = POLICIES, bound: bool = True, machine: Machine = QWEN_3B_L40S, responses: int = 512,
    epochs: int = 3, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``algorithm, basis, policy, share, of, part, amount``: mean per step, ``of`` being ``time`` (s) or ``cost``
    (GPU-seconds). ``share`` is the policy's share of the headroom in whole steps, in time and cost together.

    Rows of the policy ``bound`` are the bound of generation alone, plus the fixed times of the other phases.
    """
    rows = []
    for algorithm in ("PPO", "GRPO"):
        history = (
            runs.sources.gsm8k(4) if algorithm == "GRPO"
            else modelled(GSM8K, 1, responses=responses, epochs=epochs, seed=seed)
        )  # fmt: skip
        outcome = compare(runs, history, machine, algorithm, policies, seed=seed)
        phases, gpus = outcome.phases, machine.learner_gpus
        sums = totals(outcome).set_index(["scope", "policy"])
        after = {
            ("time", "prepare"): phases.prepare_s, ("time", "learn"): phases.learn_s,
            ("cost", "prepare"): gpus * phases.prepare_s, ("cost", "learn"): gpus * phases.learn_s,
        }  # fmt: skip
        amounts: dict[str, dict[tuple[str, str], float]] = {}
        for policy, of_policy in outcome.steps.groupby("policy", sort=False):
            mean = of_policy.drop(columns=["policy", "step"]).astype(float).mean()
            idle = mean["generation_idle_gpu_s"]
            amounts[str(policy)] = {
                ("time", "generation"): mean["generation_s"], ("cost", "generation"): mean["generation_gpu_s"] - idle,
                ("cost", "idle"): idle, ("cost", "waiting"): mean["step_idle_gpu_s"] - idle,
            }  # fmt: skip
        if bound:
            best = sums.loc[("generation", "bound")]
            amounts["bound"] = {
                ("time", "generation"): best["time_s"] / best["steps"], ("cost", "generation"): best["gpu_s"] / best["steps"]
            }  # fmt: skip
        order = [(of, part) for of in ("time", "cost") for part in USES]
        for policy, of_policy in amounts.items():
            cell = {"algorithm": algorithm, "basis": history.basis, "policy": policy,
                    "share": 1.0 if policy == "bound" else sums.loc[("step", policy), "share"]}  # fmt: skip
            values = of_policy | after
            rows += [{**cell, "of": key[0], "part": key[1], "amount": values[key]} for key in order if key in values]
    return Numbers(pd.DataFrame(rows))


def of_grpo(numbers: Numbers, **where: str) -> pd.DataFrame:
    """Return the GPU-seconds of a step with GRPO."""
    return select(numbers.table, {"algorithm": "GRPO", "of": "cost", **where})


def plot_naive_step(numbers: Numbers) -> go.Figure:
    """Plot the GPU-seconds of a naive step by use."""
    rows = of_grpo(numbers, policy="static").set_index("part")
    uses = pd.DataFrame([USES[part] for part in rows.index], columns=["use", "kind"], index=rows.index)
    uses = uses.assign(gpu_s=rows["amount"], usd=np.nan, share=rows["amount"] / rows["amount"].sum())
    return named(plot_overview(uses), f"Figure 2b, GRPO on GSM8K ({rows['basis'].iloc[0]})")


def plot_step_parts(numbers: Numbers) -> go.Figure:
    """Plot the GPU-seconds of a step by use under every policy."""
    rows = of_grpo(numbers)
    after = "preparation and learning"
    uses = {"generation": "generation", "idle": "idle, held", "waiting": "idle, held", "prepare": after, "learn": after}
    parts = rows.assign(use=rows["part"].map(uses)).pivot_table(
        index="policy", columns="use", values="amount", aggfunc="sum", sort=False
    )
    axis = f"GPU-seconds of a step, GRPO on GSM8K ({rows['basis'].iloc[0]})"
    return plot_side_by_side(parts.rename(index=label_of), TITLE_17, axis, decimals=1)


def idle_share(numbers: Numbers) -> pd.DataFrame:
    """Return the share of a step's GPU-seconds in which GPUs are allocated and idle: algorithms by policies."""
    cost = numbers.table[(numbers.table["of"] == "cost") & (numbers.table["policy"] != "bound")]
    by = cost.pivot_table(index=["algorithm", "policy"], columns="part", values="amount", sort=False)
    return ((by["idle"] + by["waiting"]) / by.sum(axis=1)).unstack("policy")


def find_idle(numbers: Numbers) -> list[Finding]:
    """Return the finding of Figure 17."""
    naive, rule = (idle_share(numbers)[policy] for policy in ("static", "rlhfless"))
    ours = f"idle: {spread(naive, '.0%')} of the naive step's GPU time, {spread(rule, '.0%')} under RLHFless' rule"
    return [Finding("less GPU time is idle than under naive static", STATED, ours, "0%: no GPU waits", verdict(rule < naive))]


_MODELLED_STEPS = f"{QWEN_3B_L40S.about}. {GSM8K_LENGTHS}"
TITLE_2B = "Figure 2b: where a step of the naive static system goes"
TITLE_17 = "Figure 17: where a step goes under every policy"
FIGURE_2B = PaperFigure(
    "2b", TITLE_2B,
    Text(
        "GPU-seconds of a step of the naive system by use, with GRPO: generation, idle GPUs, preparation, learning. The table "
        "also has PPO, the seconds of each part, and the same system whose GPUs are released after generation.",
        _MODELLED_STEPS, f"{NO_NUMBER} How long preparation and learning take depends on the assumed share of the peak.",
    ),
    lambda runs, **given: step_parts(runs, **{"policies": ("static", "static-generation"), "bound": False, **given}),
    plot_naive_step, fast={"epochs": 2},
)  # fmt: skip
FIGURE_17 = PaperFigure(
    "17", TITLE_17,
    Text(
        "GPU-seconds of a step by use under every policy, and those of the bound, with GRPO. The table also has PPO, and the "
        "seconds of each part.",
        _MODELLED_STEPS,
        f"{NO_NUMBER} Preparation and learning are the same for all policies. PPO also trains a critic of the same size.",
    ),
    step_parts, plot_step_parts, find_idle, {"epochs": 2, "responses": 256},
)  # fmt: skip

# Figure 3c: GPU time that computes the same KV cache again

TITLE_3C = "Figure 3c: GPU time that recomputes KV caches"
PRINTED_SHARE, PRINTED_SAMPLES = 0.22, 4
GSM8K_PROMPT_TOKENS = 105  # with a chat template


def prefill_seconds(trace: Trace) -> pd.DataFrame:
    """Return ``prefill_s``: seconds of prefill, summed over all actors."""
    prefill = trace.spans[trace.spans["phase"] == "prefill"]
    return pd.DataFrame({"prefill_s": [float((prefill["end_s"] - prefill["start_s"]).sum())]})


def recomputed(
    runs: Runs, samples_per_prompt: Sequence[int] = (1, 2, 4, 8),
    prompt_tokens: Sequence[int] = (GSM8K_PROMPT_TOKENS, 256, 512, 1024), machine: Machine = QWEN_3B_L40S,
) -> Numbers:  # fmt: skip
    """Return ``prompt_tokens, samples_per_prompt, basis, prefill_gpu_s, redundant_gpu_s, busy_gpu_s, redundant_share``.

    Every response computes its own prefill, so of G samples of a prompt G - 1 are redundant. The paper's cap is 1,024 tokens.
    """
    rows, latency = [], machine.latency
    for samples in samples_per_prompt:
        base = runs.sources.gsm8k(samples)
        for tokens in prompt_tokens:
            history = replace(base, rollouts=base.rollouts.assign(prompt_tokens=tokens))
            outcome = compare(runs, history, machine, "GRPO", ["static"])
            prefill_s = float(outcome.of_trace("static", prefill_seconds)["prefill_s"].iloc[0])
            responses = len(history.rollouts[history.rollouts["step"].isin(history.evaluated)])
            again = responses * (samples - 1) / samples * tokens * latency.prefill_per_token_s
            busy = float((outcome.steps["generation_gpu_s"] - outcome.steps["generation_idle_gpu_s"]).sum())
            rows.append(
                {
                    "prompt_tokens": tokens, "samples_per_prompt": samples, "basis": base.basis,
                    "prefill_gpu_s": prefill_s * latency.gpus_per_actor, "redundant_gpu_s": again * latency.gpus_per_actor,
                    "busy_gpu_s": busy, "redundant_share": again * latency.gpus_per_actor / busy,
                }
            )  # fmt: skip
    return Numbers(pd.DataFrame(rows))


def plot_recomputed(numbers: Numbers) -> go.Figure:
    """Plot the share by samples of a prompt, one line per prompt length."""
    lengths = numbers.table["prompt_tokens"].unique().tolist()
    labels = {tokens: f"prompts of {tokens:,} tokens{' (GSM8K)' * (tokens == GSM8K_PROMPT_TOKENS)}" for tokens in lengths}
    panel = Panel(
        {}, "samples_per_prompt", "redundant_share", "prompt_tokens", "lines", x_title="responses per prompt",
        y_title="redundant prefill / busy GPU time", printed=((PRINTED_SHARE, "paper: 22 % with 4 responses"),),
        xaxis={"tickvals": numbers.table["samples_per_prompt"].unique().tolist()}, yaxis={**PERCENT, **FROM_ZERO},
    )  # fmt: skip
    note = f"naive static system, Qwen2.5-3B on L40S, GSM8K lengths ({numbers.table['basis'].iloc[0]})"
    return facets(numbers.table, TITLE_3C, note, [[panel]], looks_of(lengths, labels))


def find_recomputed(numbers: Numbers) -> list[Finding]:
    """Return the finding of Figure 3c."""
    share = numbers.table.pivot(index="prompt_tokens", columns="samples_per_prompt", values="redundant_share")[PRINTED_SAMPLES]
    longer = ", ".join(f"{value:.0%} with {tokens:,}" for tokens, value in share.items() if tokens != GSM8K_PROMPT_TOKENS)
    return [
        Finding(
            "GPU time that computes KV caches again (GRPO, GSM8K, 4 responses per prompt)", "22 %",
            f"{share[GSM8K_PROMPT_TOKENS]:.1%} with GSM8K's prompts of {GSM8K_PROMPT_TOKENS} tokens; {longer}",
            "3 of 4 prefills, however long they take", verdict([share[GSM8K_PROMPT_TOKENS] >= PRINTED_SHARE]),
        )
    ]  # fmt: skip


FIGURE_3C = PaperFigure(
    "3c", TITLE_3C,
    Text(
        "The share of busy GPU time that computes the same KV caches again, by responses per prompt, a line per prompt length.",
        "Prefill and decode times come from the profile. Prompt lengths are set, because the log does not have them. "
        f"{GSM8K_LENGTHS}",
        "The paper does not say how it counts. Our prefill times leave out the host's work: host time around each prefill, "
        "prefill without batching, or shorter responses would bring our number closer.",
    ),
    recomputed, plot_recomputed, find_recomputed,
    {"samples_per_prompt": (1, 2, 4), "prompt_tokens": (GSM8K_PROMPT_TOKENS, 1024)},
)  # fmt: skip

# Figures 4a and 4b: the distribution of lengths, and their mean while training

_LENGTH_MODELS = "; ".join(f"{model.name}: {model.basis}" for model in MODELS)
TITLE_4A = "Figure 4a: response lengths of data sets"
TITLE_4B = "Figure 4b: mean response length while training"
SMOOTH = 20  # steps


def quantiles(runs: Runs, responses: int = 4096) -> Numbers:
    """Return ``data_set, basis, max_response_tokens, share, tokens``: the length that a share of the last visit's responses
    does not exceed; real lengths first. The length models draw ``responses`` responses."""
    logs = [runs.sources.gsm8k(8), runs.sources.math500(), runs.sources.shipped()]
    histories = [history for history in logs if history is not None and history.measured]
    tables, drawn = [], {}
    for history in histories + [modelled(model, 1, responses=responses, epochs=1) for model in MODELS]:
        rows = history.rollouts
        last = rows[rows["step"] == rows["step"].max()]
        cell = {"data_set": history.name, "basis": history.basis, "max_response_tokens": history.max_response_tokens}
        tables.append(length_quantiles(last["response_tokens"]).assign(**cell))
        drawn[f"{history.name} ({history.basis})"] = Trace(last)
    table = pd.concat(tables, ignore_index=True)[["data_set", "basis", "max_response_tokens", "share", "tokens"]]
    return Numbers(table, drawn=drawn)


def means(runs: Runs) -> Numbers:
    """Return ``data_set, basis, step, mean_tokens, smooth_tokens`` (mean of ``SMOOTH`` steps if a log has more than 100)."""
    tables = [log.assign(data_set=name, basis="log") for name, log in runs.sources.mean_lengths().items()]
    shipped = runs.sources.shipped()
    mean = shipped.rollouts.groupby("step")["response_tokens"].mean()
    own = pd.DataFrame({"step": mean.index.astype(int), "mean_tokens": mean.to_numpy()})
    tables.append(own.assign(data_set=shipped.name, basis=shipped.basis))
    for table in tables:
        steps = SMOOTH if len(table) > 100 else 1
        table["smooth_tokens"] = table["mean_tokens"].rolling(steps, min_periods=1).mean()
    return Numbers(pd.concat(tables, ignore_index=True)[["data_set", "basis", "step", "mean_tokens", "smooth_tokens"]])


def plot_data_sets(numbers: Numbers) -> go.Figure:
    """Plot the share of responses up to each length, a line per data set."""
    return named(plot_lengths(numbers.drawn), "Figure 4a")


def plot_means(numbers: Numbers) -> go.Figure:
    """Plot the mean length of every step, a line per run."""
    table = numbers.table
    rows = table.assign(run=table["data_set"] + " (" + table["basis"] + ")", mean_tokens=table["smooth_tokens"])
    return named(plot_steps(rows[["run", "step", "mean_tokens"]]), "Figure 4b")


FIGURE_4A = PaperFigure(
    "4a", TITLE_4A,
    Text(
        "The share of responses up to each length, one line per data set.",
        "Lengths that the legend calls a log were generated by a model: public logs where they are at hand, and this project's "
        f"own run. Those that it calls a length model are lognormal. {_LENGTH_MODELS}.",
        f"{NO_NUMBER} GPUs wait for few long responses. Caps on the length hide how much longer they would have been.",
    ),
    quantiles, plot_data_sets, fast={"responses": 1024},
)  # fmt: skip
FIGURE_4B = PaperFigure(
    "4b", TITLE_4B,
    Text(
        "The mean response length of every step of each run. Every step is another batch of prompts; of runs with more than "
        f"100 steps, it is the mean of the last {SMOOTH}.",
        "Nothing, but for what the legend calls a length model.",
        f"{NO_NUMBER} How lengths change, and in which direction, depends on task and reward, so we claim no direction.",
    ),
    means, plot_means,
)  # fmt: skip

# Figure 7b: GPU time that grouping responses by length saves

TITLE_7B = "Figure 7b: GPU time that grouping by length saves"
SPLITS = {
    "true": "grouped by true length", "prompt": "grouped by the prompt's true mean",
    "predicted": "grouped by the last visit's mean (RLHFless)", "bound": "bound at the same time, any policy",
}  # fmt: skip


def _orders(logged: LoggedStep, random_splits: int, seed: int) -> Iterator[tuple[str, IntArray]]:
    """Return every order of the responses before they are cut into groups."""
    truth, rng = logged.truth, np.random.default_rng(seed)
    for _ in range(random_splits):
        yield "random", rng.permutation(len(truth))
    mean = np.bincount(truth.prompt_of, truth.response_tokens) / np.bincount(truth.prompt_of)
    keys = {"true": truth.response_tokens, "prompt": mean[truth.prompt_of], "predicted": logged.predicted.response_tokens}
    for name, key in keys.items():
        yield name, np.lexsort((truth.prompt_of, -key))


def grouped(
    runs: Runs, actors: Sequence[int] = (2, 3, 4, 5, 6, 7, 8), random_splits: int = 10, machine: Machine = QWEN_3B_L40S,
    seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``data_set, basis, samples_per_prompt, actors, split, makespan_s, gpu_s, saved`` (against the mean random split
    with the same number of actors). Groups have equal counts in sorted order; each actor is released when it is done."""
    rows: list[dict[str, object]] = []
    histories = [runs.sources.gsm8k(4), modelled(GSM8K, 1, epochs=2), runs.sources.math500()]
    for history in (history for history in histories if history is not None):
        rows += _grouped(history, actors, random_splits, machine, seed)
    return Numbers(pd.DataFrame(rows))


def _grouped(
    history: LengthHistory, actors: Sequence[int], random_splits: int, machine: Machine, seed: int
) -> Iterator[dict[str, object]]:
    logged = next(logged_steps(history.rollouts, max_response_tokens=history.max_response_tokens, steps=history.last(1)))
    samples_per_prompt = len(logged.truth) // len(logged.truth.prompt_tokens)
    problem = PlanningProblem(logged.truth, machine.cluster, machine.latency)
    bound = ScheduleBound(replace(problem, admission="preempt"))  # whatever engines reserve
    orders = list(_orders(logged, random_splits, seed))
    for count in actors:
        taken: dict[str, list[tuple[float, float]]] = {}
        for split, order in orders:
            charged = evaluate(assemble(split, np.array_split(order, count), problem), problem, table=True)
            taken.setdefault(split, []).append((charged.makespan_s, charged.gpu_seconds))
        means = {split: np.mean(numbers, axis=0) for split, numbers in taken.items()}
        fastest = min(float(m[0]) for m in means.values())
        means["bound"] = np.array([fastest, bound.gpu_seconds(fastest * (1 + 1e-9))])
        for split, (time_s, gpu_s) in means.items():
            yield {
                "data_set": history.name, "basis": history.basis, "samples_per_prompt": samples_per_prompt,
                "actors": count, "split": split, "makespan_s": float(time_s), "gpu_s": float(gpu_s),
                "saved": 1 - float(gpu_s) / float(means["random"][1]),
            }  # fmt: skip


def most_actors(numbers: Numbers) -> pd.DataFrame:
    """Return the rows with the largest number of actors."""
    return numbers.table[numbers.table["actors"] == numbers.table["actors"].max()]


def plot_grouped(numbers: Numbers) -> go.Figure:
    """Plot the saving with the most actors: a group of bars per data set, a bar per way to group."""
    table = select(most_actors(numbers), {"split": tuple(SPLITS)})
    row = table["data_set"] + " x " + table["samples_per_prompt"].astype(str) + " (" + table["basis"] + ")"
    saved = 100 * table.pivot_table(index=row, columns="split", values="saved", sort=False)
    axis = f"% of the GPU time of a random split that is saved, {table['actors'].iloc[0]} actors"
    return plot_side_by_side(saved[list(SPLITS)].rename(columns=SPLITS), TITLE_7B, axis, groups="data set", decimals=0)


def find_grouped(numbers: Numbers) -> list[Finding]:
    """Return the finding of Figure 7b."""
    table = most_actors(numbers)
    true, predicted, bound = (table[table["split"] == split]["saved"] for split in ("true", "predicted", "bound"))
    ours = f"grouping by true lengths saves {spread(true, '.0%')}, by the last visit's lengths {spread(predicted, '.0%')}"
    possible = f"any policy in the same time saves {spread(bound, '.0%')}"
    what = "grouping responses by length saves GPU time"
    return [Finding(what, STATED, ours, possible, verdict([*(true > 0), *(predicted > 0)]))]


FIGURE_7B = PaperFigure(
    "7b", TITLE_7B,
    Text(
        "GPU time saved by grouping responses by length, compared with a random split, with the most actors; groups have equal "
        "counts, and actors are released when they are done. The table has fewer actors, too.",
        f"Each group's time comes from the profile's table. {GSM8K_LENGTHS}",
        f"{NO_NUMBER} Grouping by predictions saves less than by true lengths, because one response that is much longer than "
        "predicted keeps its actor. Our plans group by prediction only where scenarios show a saving.",
    ),
    grouped, plot_grouped, find_grouped, {"actors": (2, 4, 8), "random_splits": 4},
)  # fmt: skip

# Figure 9: placement of the actors of one step, and the times of prefill, transfers and decoding

TITLE_9 = "Figure 9: placement and overlap of one step"
NODE_BYTES_PER_S, NETWORK_BYTES_PER_S = 32e9, 50e9  # PCIe gen4 x16; 400 Gbit/s, as AWS states for g6e.48xlarge


def placement(
    runs: Runs, actors: int = 6, samples_per_prompt: int = 4, responses: int = 512, prompt_tokens: float = 500.0,
    machine: Machine = QWEN_3B_L40S, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``holder, node, phase, start_s, end_s, background``; phase ``held`` is the allocation itself.

    The setting is the paper's (GRPO, 6 actors over two nodes of 8), with prompts that are long enough to see their prefill.
    """
    model = replace(GSM8K, prompt_tokens=prompt_tokens)
    history = modelled(model, samples_per_prompt, responses=responses, epochs=2, seed=seed)
    cluster = replace(machine.cluster, node_bytes_per_s=NODE_BYTES_PER_S, network_bytes_per_s=NETWORK_BYTES_PER_S)
    phases = replace(machine.phases("GRPO", 0.0), learner_gpus=machine.learner_gpus)
    policy = PrefillActor(FixedActors(actors, tau=1.0), machine.learner_gpus)
    config = SimulationConfig(cluster, machine.latency, Objective(), phases, history.max_response_tokens)
    trace = simulate(history.rollouts, config, [policy], steps=history.last(1)).traces["rlhfless"]
    held = trace.allocations.assign(phase="held", background=False)
    columns = ["holder", "phase", "start_s", "end_s", "background"]
    table = pd.concat([held[columns], trace.spans[columns]], ignore_index=True)
    node = trace.allocations.set_index("holder")["node"].to_dict()
    # the learner's GPUs of the paper lie in the first node; here they are counted after the cluster's
    table["node"] = [0 if holder == "learner" else int(node[holder]) for holder in table["holder"]]
    table = table[table["end_s"] > table["start_s"]].sort_values(["holder", "start_s", "phase"], kind="stable")
    return Numbers(table[["holder", "node", *columns[1:]]].reset_index(drop=True), drawn=trace)


def hidden_transfers(numbers: Numbers) -> tuple[int, int]:
    """Return how many actors are done before the one with the longest group (actor 0), and how many other actors there are."""
    decode = numbers.table[numbers.table["phase"] == "decode"].groupby("holder")["end_s"].max()
    other_actors = decode.drop("actor-0")
    return int((other_actors <= decode["actor-0"]).sum()), len(other_actors)


def plot_placement(numbers: Numbers) -> go.Figure:
    """Plot the timeline of the step, a row per holder."""
    return named(plot_timeline(numbers.drawn), "Figure 9")


def find_hidden(numbers: Numbers) -> list[Finding]:
    """Return the finding of Figure 9."""
    done, others = hidden_transfers(numbers)
    ours = f"{done} of {others} actors are done before the one with the longest group"
    return [Finding("transfers are hidden behind the longest group", STATED, ours, NO_BOUND, verdict([done == others]))]


FIGURE_9 = PaperFigure(
    "9", TITLE_9,
    Text(
        "One row per actor of one step: start, weight sync, prefill, transfers and decoding over time. GPUs 0 to 7 are in "
        "one node, 8 to 15 in the other.",
        "One step of the length model of GSM8K with prompts of about 500 tokens. The prefill actor runs on 8 GPUs of the "
        "learner, assumed to be as fast per GPU as an actor. Links at nominal rates: 32 GB/s in a node (PCIe), 50 GB/s "
        "between nodes (400 Gbit/s). The learner holds its GPUs all the time here; the other figures charge them from the "
        "end of generation on.",
        f"{NO_NUMBER} As in the paper, caches are sent after the whole prefill, so all actors wait for it first. The paper "
        "places the heaviest group nearest. Here the placement has the least makespan, then the least GPU-seconds, and at "
        "nominal rates the network is no slower than PCIe. Our own plans compare that wait with its saving, and mostly let "
        "samples on one actor share their prefill instead.",
    ),
    placement, plot_placement, find_hidden, {"responses": 256},
)  # fmt: skip
