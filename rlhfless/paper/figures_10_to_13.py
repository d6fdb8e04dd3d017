"""Figures 10 to 13: time and cost of every policy, ideas one by one, work of each actor, drifting lengths, shared prefill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.facets import FROM_ZERO, PERCENT, Look, Panel, facets, looks_of, select
from rlhfless.paper.figure import NAIVE_LEARNER, STATED, Finding, Numbers, PaperFigure, Text, named, spread, verdict
from rlhfless.paper.lengths import GPQA, GSM8K, LIVECODEBENCH
from rlhfless.paper.machine import QWEN_3B_L40S, QWEN_7B_L40S, Machine
from rlhfless.paper.runs import ELASTIC, LOOKS, POLICIES, SCOPES, WEIGHT, Outcome, Runs, compare, label_of, tabulated, totals
from rlhfless.paper.variants import Deduplicated, FixedActors
from rlhfless.paper.workloads import GSM8K_LENGTHS, LengthHistory, Sources, modelled
from rlhfless.plots import plot_steps, plot_waterfall
from rlhfless.plots.palette import BOUND, GREY, ORANGE, PURPLE
from rlhfless.scheduling import SchedulingPolicy, make_policy
from rlhfless.scheduling.assignments import Random, Static
from rlhfless.scheduling.rlhfuse import RLHFuse
from rlhfless.trace import Trace, allocation_metrics
from solver.bounds.headroom import share_of_headroom, summed_bounds
from solver.model.objective import Objective

SHARE = "share of the headroom"
SHARE_NOTE = "share of the headroom: 0 % is naive static held through the step, 100 % the bound for a learner of its size"

# Figure 10: two algorithms, two models, three data sets under every policy

TITLE_10 = "Figure 10: time and cost of a step, relative to the naive static system"
PRINTED_SPEEDUP, PRINTED_COST_SAVED = 1.35, 0.448
SAMPLES = {"PPO": 1, "GRPO": 4}
LIMITS = {
    "most_speedup": Look("limit of time: a learner of the naive system's size", "#222222", "line-ew"),
    "most_speedup_on_all": Look("limit of time: a learner on all GPUs", PURPLE, "line-ew"),
    "most_cost_saved": Look("limit of cost, whatever the learner's size", BOUND, "line-ew"),
}
"""Columns of ``totals`` to what no schedule goes below, whatever the other number."""


def cell_lengths(
    data_set: str, algorithm: str, sources: Sources, responses: int = 512, epochs: int = 3, seed: int = 0
) -> LengthHistory:
    """Return the lengths of one cell: the public log for GRPO on GSM8K, else a stated model."""
    samples_per_prompt = SAMPLES[algorithm]
    if data_set == "GSM8K" and algorithm == "GRPO":
        return sources.gsm8k(samples_per_prompt)
    model = {"GSM8K": GSM8K, "GPQA": GPQA, "LiveCodeBench": LIVECODEBENCH}[data_set]
    return modelled(model, samples_per_prompt, responses=responses, epochs=epochs, seed=seed)


def all_cells(
    runs: Runs, algorithms: Sequence[str] = ("PPO", "GRPO"), machines: Sequence[Machine] = (QWEN_3B_L40S, QWEN_7B_L40S),
    data_sets: Sequence[str] = ("GSM8K", "GPQA", "LiveCodeBench"), policies: Sequence[str] = (*POLICIES, *ELASTIC),
    responses: int = 512, batches: Sequence[int] = (256, 512, 1024, 2048, 4096), static_counts: Sequence[int] = range(1, 9),
    epochs: int = 3, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``panel`` (``cell`` or ``batch``), ``algorithm, model, data_set, basis, responses`` and the columns of ``totals``.

    The setting is the paper's testbed, 16 L40S, 2 or 4 GPUs an actor. The paper does not print its batch there, so 512 is that
    of its simulation, and a second panel has other batches and numbers of static actors (PPO, GSM8K, the first machine).
    """

    def outcomes() -> Iterator[tuple[dict[str, object], Outcome]]:
        for algorithm, machine, data_set in product(algorithms, machines, data_sets):
            history = cell_lengths(data_set, algorithm, runs.sources, responses, epochs, seed)
            names = {
                "panel": "cell", "algorithm": algorithm, "model": machine.model, "data_set": data_set, "basis": history.basis,
                "responses": history.responses,
            }  # fmt: skip
            yield names, compare(runs, history, machine, algorithm, policies, seed=seed)
        for count in batches:
            history = modelled(GSM8K, 1, responses=count, epochs=2, seed=seed)
            statics = [Static(n, name=f"static, {n} actors") for n in static_counts]
            chosen: list[str | SchedulingPolicy] = ["static", "random", "rlhfless", "solver+replan", *statics]
            held = frozenset({"static", *(p.name for p in statics)})
            names = {
                "panel": "batch", "algorithm": "PPO", "model": machines[0].model, "data_set": "GSM8K", "basis": history.basis,
                "responses": count,
            }  # fmt: skip
            yield names, compare(runs, history, machines[0], "PPO", chosen, held=held, seed=seed)

    return Numbers(*tabulated(outcomes()))


def cells(numbers: Numbers, scope: str = "step") -> pd.DataFrame:
    """Return the rows of the paper's cells."""
    table = numbers.table
    return table[(table["panel"] == "cell") & (table["scope"] == scope)]


def by_policy(numbers: Numbers, scope: str = "step") -> dict[str, pd.DataFrame]:
    """Return policy to its rows of the paper's cells."""
    return {str(name): subset for name, subset in cells(numbers, scope).groupby("policy")}


class CellsWithinBounds(NamedTuple):
    """Number of cells in which the paper's best numbers are within the bounds.

    Attributes:
        faster: the speedup, with a learner of the naive system's size. faster_on_all: with one on all GPUs. cheaper: the
            saving, with either. cells: number of all cells.
    """

    faster: int
    faster_on_all: int
    cheaper: int
    cells: int


def cells_within_bounds(numbers: Numbers, scope: str = "step") -> CellsWithinBounds:
    """Return the counts; see ``CellsWithinBounds``."""
    bound = by_policy(numbers, scope)["bound"]
    limits = {"most_speedup": PRINTED_SPEEDUP, "most_speedup_on_all": PRINTED_SPEEDUP, "most_cost_saved": PRINTED_COST_SAVED}
    faster, faster_on_all, cheaper = (int((bound[what] >= printed).sum()) for what, printed in limits.items())
    return CellsWithinBounds(faster, faster_on_all, cheaper, cells=len(bound))


def by_batch(numbers: Numbers) -> pd.DataFrame:
    """Return ``responses, best_static`` (actors), ``random, rlhfless, ours, possible``: how much faster a step is than with 3
    static actors."""
    table = numbers.table
    table = table[(table["panel"] == "batch") & (table["scope"] == "step")]
    rows = []
    for responses, subset in table.groupby("responses"):
        by = subset.set_index("policy")
        best = by[by.index.str.startswith("static, ")]["value"].idxmin()
        speedup = {name: by.loc[name, "speedup"] for name in ("random", "rlhfless")}
        rows.append(
            {"responses": responses, "best_static": int(best.split()[1]), **speedup,
             "ours": by.loc["solver+replan", "speedup"], "possible": by.loc["bound", "most_speedup"]}
        )  # fmt: skip
    return pd.DataFrame(rows)


def plot_cells(numbers: Numbers) -> go.Figure:
    """Plot relative time, relative cost and share of the headroom, for whole steps (left) and generation alone (right);
    below, the effect of the batch size."""
    shown = numbers.table[numbers.table["panel"] == "cell"].assign(hue=lambda of: of["policy"])
    shown = shown[~(shown["policy"].isin(list(ELASTIC)) & (shown["scope"] == "generation"))]
    shown["time"], shown["cost"] = 1 / shown["speedup"], 1 - shown["cost_saved"]
    shown.loc[shown["policy"].isin(["static", "bound"]), "share"] = np.nan
    limits = [
        shown[shown["policy"] == "bound"].assign(hue=name, share=np.nan, **{
            "time": lambda of, name=name: np.nan if name == "most_cost_saved" else 1 / of[name],
            "cost": lambda of, name=name: 1 - of[name] if name == "most_cost_saved" else np.nan,
        }) for name in LIMITS
    ]  # fmt: skip
    limits[1] = limits[1][limits[1]["scope"] == "step"]  # for generation alone the learner's size changes nothing
    table = pd.concat([shown, *limits], ignore_index=True)
    basis = table["basis"].map({"log": " (log)", "length model": " (model)"})
    table["cell"] = table["algorithm"] + " " + table["model"].str[-2:] + "<br>" + table["data_set"] + basis
    batches = by_batch(numbers).assign(cell=lambda of: [f"{n:,}" for n in of["responses"]], scope="batch")
    names = {"random": "random", "rlhfless": "rlhfless", "ours": "solver+replan", "possible": "bound"}
    lines = [batches.assign(hue=policy, faster=batches[column]) for column, policy in names.items()]
    table = pd.concat([table, *lines, batches.assign(hue="best static")], ignore_index=True)
    rows = (
        ("time", "time / static", 1 / PRINTED_SPEEDUP),
        ("cost", "GPU-seconds / static", 1 - PRINTED_COST_SAVED),
        ("share", SHARE, None),
    )
    panels = [
        [
            Panel({"scope": scope}, "cell", what, "hue",
                  title={"step": "the whole step", "generation": "generation alone"}[scope]
                  if what == "time" else "", y_title=title if scope == "step" else "",
                  printed=((line, "paper's best case"),) if line and scope == "step" else (),
                  yaxis=PERCENT if what == "share" else {}, xaxis={"showticklabels": what == "share", "tickangle": -90})
            for scope in SCOPES
        ] for what, title, line in rows
    ]  # fmt: skip
    batch = Panel({"scope": "batch"}, "cell", "faster", "hue", "lines", x_title="responses in a step", y_title="times faster",
                  printed=((PRINTED_SPEEDUP, "paper: 1.35x"),), xaxis={"type": "category"})  # fmt: skip
    best = replace(batch, where={"hue": "best static"}, y="best_static", kind="bars", y_title="best static actors",
                   printed=((3, "paper: 3"),), yaxis=FROM_ZERO)  # fmt: skip
    looks = {**LOOKS, **LIMITS, "best static": Look("best number of static actors", GREY)}
    note = f"time and cost: the lower the better; {SHARE_NOTE}; last row: PPO by batch size"
    fig = facets(table, TITLE_10, note, [*panels, [batch, best]], looks, heights=[210, 210, 210, 360], between=40)
    for axis in ("yaxis7", "yaxis8"):  # the labels of the cells stand between the third row and the fourth
        bottom, top = fig.layout[axis].domain
        fig.layout[axis].domain = (bottom, bottom + (top - bottom) * 0.64)
    return fig


def find_cells(numbers: Numbers) -> list[Finding]:
    """Return the findings of Figure 10; the paper's best case holds where the best cell of its rule reaches it."""
    of, batches = by_policy(numbers), by_batch(numbers)
    rule, ours, bound, elastic = (of[p] for p in ("rlhfless", "solver+replan", "bound", "elastic"))
    within, alone = cells_within_bounds(numbers), cells_within_bounds(numbers, "generation")
    possible = by_policy(numbers, "generation")["bound"]["most_speedup"]
    faster, cheaper, last = rule["speedup"] > 1, rule["cost_saved"] > 0, batches.iloc[-1]
    saved = {name: spread(of[name]["cost_saved"], ".0%") for name in ("static-generation", "random", "elastic")}
    shares = {
        "RLHFless' rule": "rlhfless",
        "right-sized random": "random",
        "ours": "solver+replan",
        "the oracle": "oracle+replan",
    }
    return [
        Finding(
            "speedup of a whole step over 3 static actors (16 L40S, best case)", "up to 1.35x",
            f"RLHFless' rule {spread(rule['speedup'], '.2f')}x, ours {spread(ours['speedup'], '.2f')}x, elastic naive (plans "
            f"nothing, learns on all GPUs) {spread(elastic['speedup'], '.2f')}x",
            f"at any cost, with {NAIVE_LEARNER}: {spread(bound['most_speedup'], '.2f')}x; with a learner on all GPUs: "
            f"{spread(bound['most_speedup_on_all'], '.2f')}x (generation alone {spread(possible, '.2f')}x). 1.35x is possible "
            f"in {within.faster}, {within.faster_on_all} and {alone.faster} of {within.cells} cells",
            verdict([rule["speedup"].max() >= PRINTED_SPEEDUP]),
        ),
        Finding(
            "saved cost of a whole step (same comparison)", "up to 44.8 %",
            f"RLHFless' rule {spread(rule['cost_saved'], '.0%')}, ours {spread(ours['cost_saved'], '.0%')}; without any "
            f"prediction: GPUs released after generation {saved['static-generation']}, right-sized random {saved['random']}, "
            f"elastic naive {saved['elastic']}",
            f"at any time, on however many GPUs it learns: {spread(bound['most_cost_saved'], '.0%')}; 44.8 % is possible in "
            f"{within.cheaper} of {within.cells} cells",
            verdict([rule["cost_saved"].max() >= PRINTED_COST_SAVED]),
        ),
        Finding(
            "faster and cheaper than naive static for every algorithm, model and data set", STATED,
            f"RLHFless' rule is cheaper in {cheaper.sum()} of {len(rule)} cells and faster in {faster.sum()}: "
            f"{spread(rule['speedup'], '.2f')}x",
            f"{SHARE} in time and cost together, with {NAIVE_LEARNER}: "
            + ", ".join(f"{name} {spread(of[policy]['share'], '.0%')}" for name, policy in shares.items()),
            verdict([*faster, *cheaper]),
        ),
        Finding(
            "best number of static actors", "3",
            ", ".join(f"{row.best_static} at {row.responses:,} responses" for row in batches.itertuples()),
            f"with {int(last['responses']):,} responses and {NAIVE_LEARNER} at most {last['possible']:.2f}x faster; RLHFless' "
            "rule "
            f"{last['rlhfless']:.2f}x, ours {last['ours']:.2f}x", verdict(batches["best_static"] == 3),
        ),
    ]  # fmt: skip


FIGURE_10 = PaperFigure(
    "10", TITLE_10,
    Text(
        "Time, cost and share of the headroom of every policy, for whole steps (left) and generation alone (right). The last "
        "row shows the effect of the batch size.",
        f"{QWEN_3B_L40S.about}. This is the 3B model; the learner of the 7B model has 4 GPUs. {GSM8K_LENGTHS} Lengths of GPQA "
        "and LiveCodeBench are stated models whose medians are assumed. Steps of the first epoch have no history and are "
        "left out. Planning holds no GPUs and is not charged; its seconds are in the measured csv.",
        "The paper compares with naive static on 3 actors and does not print its batch on the testbed; ours is 512 "
        "responses. A learner of the naive system's size starts after generation, so no schedule shortens preparation and "
        "learning, which are a large part of the naive step in this model. A learner on all GPUs does, without any plan: "
        "that is elastic naive. Starting the larger learner is not charged. Most of the saved cost needs no prediction: the "
        "right number of actors, each released when it is done. What all optimisations together reach in whole steps is in "
        "figure 10_all.",
    ),
    all_cells, plot_cells, find_cells,
    {"machines": (QWEN_3B_L40S,), "data_sets": ("GSM8K", "GPQA"), "epochs": 2, "responses": 256, "batches": (256, 1024),
     "static_counts": (1, 2, 3)},
)  # fmt: skip

# Figure 11: ideas added one at a time, one point per step

TITLE_11 = "Figure 11: what each idea adds"
IDEAS = {
    "static": "naive",
    "dedup": "deduplicated prefill",
    "assignment": "assignment with the local cut",
    "scaling": "scaling",
}
"""Systems in the order in which ideas are added, by the idea that each adds to the one before."""
MAX_TIME_RATIO = 4.0  # times the shortest, up to which the bound is drawn


def stages(static_actors: int) -> list[SchedulingPolicy]:
    """Return the naive system, the systems of ``IDEAS``, and those that they are compared with."""
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


def idea_by_idea(
    runs: Runs, responses: int = 512, samples_per_prompt: int = 4, epochs: int = 3, steps_per_epoch: int = 4,
    machine: Machine = QWEN_3B_L40S, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``row, scope, policy, step, actors, time_s, gpu_s, speedup, cost_saved, share``: ``row`` is ``step``, ``total`` or
    ``bound``, each for whole steps and for generation alone. ``total`` has sums of steps, and only it has the last three
    columns. ``bound`` is a curve that no step is below. The setting is GRPO, whose last two epochs have history."""
    history = modelled(
        GSM8K, samples_per_prompt, responses=responses, epochs=epochs, steps_per_epoch=steps_per_epoch, seed=seed
    )
    held = frozenset({"static", "dedup"})
    outcome = compare(runs, history, machine, "GRPO", stages(machine.static_actors), held=held, seed=seed)
    each = [
        outcome.steps[["policy", "step", "actors"]].assign(
            row="step", scope=scope, time_s=outcome.steps[f"{scope}_s"], gpu_s=outcome.steps[f"{scope}_gpu_s"]
        )
        for scope in SCOPES
    ]
    alone = runs.kept("bound of all steps", (*outcome.grid.inputs, MAX_TIME_RATIO), lambda: _least_of_steps(outcome))
    alone = alone.assign(row="bound", policy="bound")
    whole_s, whole_gpu_s = alone["time_s"] + outcome.phases.seconds, alone["gpu_s"] + outcome.learner_gpu_s
    bounds = [alone.assign(scope="step", time_s=whole_s, gpu_s=whole_gpu_s), alone.assign(scope="generation")]
    columns = ["row", "scope", "policy", "step", "actors", "time_s", "gpu_s", "speedup", "cost_saved", "share"]
    sums = totals(outcome)
    parts = [*each, sums.assign(row="total"), *bounds]
    table = pd.concat(parts, ignore_index=True).reindex(columns=columns)
    table["step"] = table["step"].astype("Int64")
    ideas = select(sums, {"scope": "step", "policy": tuple(IDEAS)})
    ideas = ideas.assign(policy=ideas["policy"].map({**IDEAS, "scaling": "scaling: RLHFless"}))
    drawn = ideas.rename(columns={"gpu_s": "gpu_seconds", "bound_gpu_s": "bound_gpu_seconds"})
    return Numbers(table, outcome.planning, drawn)


def _least_of_steps(outcome: Outcome) -> pd.DataFrame:
    """Return by time the least cost of any of the steps: the minimum of their curves, so that no step is below."""
    bounds = outcome.bounds()
    times = min(bound.shortest_s() for bound in bounds) * np.geomspace(1.0, MAX_TIME_RATIO, 40)
    cheapest = np.array([min(bound.gpu_seconds(t * (1 + 1e-9)) for bound in bounds) for t in times])
    reachable = np.isfinite(cheapest)
    return pd.DataFrame({"time_s": times[reachable], "gpu_s": cheapest[reachable]})


def plot_ideas(numbers: Numbers) -> go.Figure:
    """Plot what each idea adds to cost and time of whole steps."""
    return plot_waterfall(numbers.drawn, title=TITLE_11, note="sums of whole steps; GSM8K (length model), GRPO, Qwen2.5-3B")


def find_ideas(numbers: Numbers) -> list[Finding]:
    """Return the finding of Figure 11."""
    total = numbers.table[(numbers.table["row"] == "total") & (numbers.table["scope"] == "step")].set_index("policy")
    cost = total["gpu_s"].astype(float)[list(IDEAS)]
    changes = ", ".join(f"{IDEAS[str(name)]} {change:+.1%}" for name, change in cost.pct_change()[1:].items())
    shares = ", ".join(f"{name} {total.loc[policy, 'share']:.0%}" for name, policy in
                       (("RLHFless", "scaling"), ("ours", "ours"), ("oracle", "oracle")))  # fmt: skip
    return [
        Finding(
            "every idea makes a step cheaper", STATED, f"change of a step's cost: {changes}", f"{SHARE}: {shares}",
            verdict(np.diff(cost) < 0),
        )
    ]  # fmt: skip


FIGURE_11 = PaperFigure(
    "11", TITLE_11,
    Text(
        "Cost (above) and time (below) of the evaluated steps together, as ideas are added one by one, and the least cost of "
        "any schedule in the time of the last one. The table has every step, and other policies with deduplicated prefill.",
        "Lengths and prompts are the stated model of GSM8K, as the figure needs several steps with prompts that come back. "
        f"{QWEN_3B_L40S.about}.",
        "The paper shows a scatter of four systems and prints no number. Releasing GPUs when an actor is done is part of "
        "(c). The bound charges every prompt's prefill once, as deduplicated prefill does.",
    ),
    idea_by_idea, plot_ideas, find_ideas, {"epochs": 2, "steps_per_epoch": 2, "responses": 256},
)  # fmt: skip

# Figure 12: work and time of each actor, RLHFuse's global cut against RLHFless' ranking with a local cut

TITLE_12 = "Figure 12: work and time of each actor, RLHFuse and RLHFless"
PRINTED_LOCAL_CUT = 0.128
RIVALS = {"rlhfuse": "RLHFuse", "rlhfless": "RLHFless"}
OF_ACTORS = [
    "panel", "scope", "data_set", "basis", "policy", "step", "actor", "tokens", "held_s", "gpu_s", "time_s", "speedup",
    "cost_saved", "share", "bound_gpu_s",
]  # fmt: skip


def actors_of(trace: Trace) -> pd.DataFrame:
    """Return ``step, holder, held_s, gpu_s, actor, tokens`` of every actor that decodes; tokens are those of its responses."""
    held = allocation_metrics(trace)
    held = held[held["role"] == "decode"][["step", "holder", "duration_s", "gpu_seconds"]]
    tokens = trace.rollouts.groupby(["step", "actor"])["response_tokens"].sum().rename("tokens").reset_index()
    both = held.merge(tokens, left_on=["step", "holder"], right_on=["step", "actor"], how="left")
    both = both.assign(tokens=both["tokens"].fillna(0).astype(int), actor=both["holder"])
    return both.rename(columns={"duration_s": "held_s", "gpu_seconds": "gpu_s"})


def each_actor(
    runs: Runs, policies: Sequence[str] = POLICIES, responses: int = 512, steps: int = 4, actors: int = 3,
    machine: Machine = QWEN_3B_L40S, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``OF_ACTORS``. Panel ``actor`` has a row per actor of the two rivals, of generation alone. Panel ``total`` has
    sums of all policies and the bound for both scopes.

    The setting is the paper's (PPO, GSM8K, 3 actors, 4 steps) with modelled lengths, and the log's one step where there is one.
    """
    tables = []
    log = runs.sources.gsm8k(4)
    model = modelled(GSM8K, 1, responses=responses, epochs=2, steps_per_epoch=steps, seed=seed)
    for history in [model, log] if log.measured else [model]:
        fixed = FixedActors(actors, name="rlhfless, 3 actors")
        outcome = compare(runs, history, machine, "PPO", [*policies, fixed], seed=seed)
        cell = {"data_set": history.name, "basis": history.basis}
        for policy, name in (("rlhfuse", "rlhfuse"), (fixed.name, "rlhfless")):
            of_actors = outcome.of_trace(policy, actors_of)
            tables.append(of_actors.assign(policy=name, panel="actor", scope="generation", **cell))
        tables.append(totals(outcome).assign(**cell, panel="total"))
    return Numbers(pd.concat(tables, ignore_index=True).reindex(columns=OF_ACTORS))


def cut_saved(numbers: Numbers) -> dict[tuple[str, str], float]:
    """Return (data set, basis) to the share of RLHFuse's GPU-seconds of generation that RLHFless saves."""
    rows = numbers.table[numbers.table["panel"] == "actor"]
    cost = rows.groupby(["data_set", "basis", "policy"])["gpu_s"].sum().unstack("policy")
    return {key: float(1 - row["rlhfless"] / row["rlhfuse"]) for key, row in cost.iterrows()}


def plot_actors(numbers: Numbers) -> go.Figure:
    """Plot each actor's completed tokens and allocated time, step by step, in the paper's setting. Below are time and cost of
    the steps under every policy."""
    table = numbers.table[numbers.table["basis"] == "length model"].copy()
    table = table[~((table["policy"] == "static") & (table["scope"] == "generation"))]  # held longer, it is the same there
    steps = sorted(table["step"].dropna().unique())
    table["place"] = [f"step {steps.index(step) + 1}" if step in steps else "" for step in table["step"]]
    table["hue"] = table["actor"].str.replace("-", " ").fillna(table["policy"])
    panels = [
        [Panel({"panel": "actor", "policy": policy}, "place", what, "hue", "bars", title=f"{name}: {head}",
               y_title=unit if policy == "rlhfuse" else "") for policy, name in RIVALS.items()]
        for what, head, unit in (("tokens", "tokens of the responses completed", "tokens"),
                                 ("held_s", "seconds held", "seconds"))
    ]  # fmt: skip
    panels.append([
        Panel({"panel": "total", "scope": scope}, "time_s", "gpu_s", "hue", title=f"all policies, {name}: sums of the steps",
              x_title="time (s)", y_title="GPU-seconds" if scope == "generation" else "", yaxis=FROM_ZERO)
        for scope, name in (("generation", "generation alone"), ("step", "whole steps"))
    ])  # fmt: skip
    note = "PPO, GSM8K (length model), Qwen2.5-3B; rows 1 and 2: generation on 3 actors"
    looks = {**looks_of(sorted(table[table["panel"] == "actor"]["hue"].unique())), **LOOKS}
    return facets(table, TITLE_12, note, panels, looks, heights=[200, 200, 320], same_y=True)


def find_actors(numbers: Numbers) -> list[Finding]:
    """Return the findings of Figure 12."""
    saved = cut_saved(numbers)
    table = numbers.table
    own = table[(table["panel"] == "total") & (table["basis"] == "length model") & (table["scope"] == "generation")]
    of = own.set_index("policy")
    possible = float(1 - of.loc["rlhfuse", "bound_gpu_s"] / of.loc["rlhfuse", "gpu_s"])
    shares = ", ".join(f"{LOOKS[str(name)].label} {share:.0%}" for name, share in of["share"].items()
                       if name not in ("static", "static-generation", "bound"))  # fmt: skip
    ours = ", ".join(f"{value:.1%} on {name} ({basis})" for (name, basis), value in saved.items())
    return [
        Finding(
            "saved cost of generation by ranking and a local cut, compared with RLHFuse's global cut", "12.8 %", ours,
            f"any policy in RLHFuse's own time: {possible:.0%}",
            verdict(value >= PRINTED_LOCAL_CUT for value in saved.values()),
        ),
        Finding(
            "ranking with a local cut is cheaper than RLHFuse's global cut", STATED, ours,
            f"{SHARE} in generation alone: {shares}", verdict(value > 0 for value in saved.values()),
        ),
    ]  # fmt: skip


FIGURE_12 = PaperFigure(
    "12", TITLE_12,
    Text(
        "Each actor's completed tokens and held seconds, step by step; below, time and cost of all policies over the steps.",
        "Lengths of the 4 steps are the stated model of GSM8K; the findings have the public log beside it where it is at "
        f"hand, without prompt lengths. {QWEN_3B_L40S.about}.",
        "Here RLHFuse migrates when 20 % of the responses are unfinished, the share reported as best. The paper does not say "
        "which share it used.",
    ),
    each_actor, plot_actors, find_actors,
    {"responses": 256, "steps": 2,
     "policies": ("static", "static-generation", "random", "rlhfuse", "rlhfless", "solver+replan", "oracle")},
)  # fmt: skip

# Figure 13: (a) how scaling follows lengths that drift, and (b) prefill tokens with each prompt computed once

TITLE_13 = "Figure 13: scaling while lengths drift, and deduplicated prefill"
DRIFT_POLICIES = (
    "static", "static-generation", "elastic", "random", "rlhfuse", "rlhfless", "solver+replan", "oracle+replan"
)  # fmt: skip
OF_DRIFT = [
    "panel", "scope", "policy", "step", "samples_per_prompt", "mean_tokens", "actors", "prefill_tokens", "time_s", "gpu_s",
    "share",
]  # fmt: skip
SHARED = {"static": "every response prefills", "dedup": "each prompt once"}


def drifting_lengths(drift: float = 0.25, responses: int = 512, epochs: int = 8, seed: int = 0) -> LengthHistory:
    """Return lengths of GSM8K that grow by a factor e^drift per epoch.

    0.25 makes them 5.8 times as long in 8 epochs. A public GRPO run on MATH problems grew from 6 to hundreds of tokens (figure
    4b), so drifts of this size do occur.
    """
    model = replace(GSM8K, name="GSM8K, drifting", drift=drift, median_tokens=100.0)
    return modelled(model, 1, responses=responses, epochs=epochs, seed=seed)


def drift_and_prefill(
    runs: Runs, epochs: int = 8, drift: float = 0.25, responses: int = 512, samples_per_prompt: Sequence[int] = (1, 2, 3, 4, 8),
    policies: Sequence[str] = DRIFT_POLICIES, machine: Machine = QWEN_3B_L40S, seed: int = 0,
) -> Numbers:  # fmt: skip
    """Return ``OF_DRIFT``. ``panel`` is ``scaling`` (whole steps, and generation alone) or ``prefill`` (generation alone).
    ``share`` is the share of the headroom, of each step or of all."""
    history = drifting_lengths(drift, responses, epochs, seed)
    outcome = compare(runs, history, machine, "PPO", policies, seed=seed)
    mean = history.rollouts.groupby("step")["response_tokens"].mean()
    drifts = pd.concat([_drift(outcome, scope) for scope in SCOPES], ignore_index=True)
    drifts = drifts.assign(panel="scaling", mean_tokens=drifts["step"].map(mean))
    prefill, _ = tabulated(_shared_prefill(runs, samples_per_prompt, responses, machine, seed), _prefill)
    prefill = prefill.assign(panel="prefill", scope="generation")
    return Numbers(pd.concat([drifts, prefill], ignore_index=True).reindex(columns=OF_DRIFT), outcome.planning)


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
    best = {step: summed_bounds([curve], WEIGHT, phases_s, phases_gpu_s).value for step, curve in outcome.curves.items()}
    steps["share"] = [share_of_headroom(x, naive[step], best[step]) for x, step in zip(value, steps["step"], strict=True)]
    return pd.concat([steps, bounds], ignore_index=True).assign(scope=scope)


def prefilled(trace: Trace) -> pd.DataFrame:
    """Return ``tokens``: prompt tokens that were computed, of all responses."""
    return pd.DataFrame({"tokens": [int(trace.rollouts["prefill_tokens_computed"].sum())]})


def _shared_prefill(
    runs: Runs, samples_per_prompt: Sequence[int], responses: int, machine: Machine, seed: int
) -> Iterator[tuple[dict[str, object], Outcome]]:
    """Return the naive system with and without deduplication, for every number of samples of a prompt."""
    naive = Static(machine.static_actors)
    for samples in samples_per_prompt:
        history = modelled(GSM8K, samples, responses=responses, epochs=2, seed=seed)
        policies: list[SchedulingPolicy] = [naive, Deduplicated(naive, "dedup")]
        yield {"samples_per_prompt": samples}, compare(runs, history, machine, "GRPO", policies, seed=seed)


def _prefill(outcome: Outcome) -> pd.DataFrame:
    """Return prefill tokens, time and GPU-seconds of generation of every policy."""
    sums = select(totals(outcome), {"scope": "generation", "policy": tuple(outcome.policies)})
    tokens = [int(outcome.of_trace(policy, prefilled)["tokens"].iloc[0]) for policy in sums["policy"]]
    return sums.assign(prefill_tokens=tokens)[["policy", "prefill_tokens", "time_s", "gpu_s", "share"]]


def prefill_saved(numbers: Numbers, what: str = "prefill_tokens") -> dict[int, float]:
    """Return samples of a prompt to the share of prefill tokens that computing each prompt once saves.

    Args:
        what: ``gpu_s`` for the share of the GPU-seconds of generation.
    """
    part = numbers.table[numbers.table["panel"] == "prefill"]
    amount = part.pivot(index="samples_per_prompt", columns="policy", values=what)
    return {int(g): float(1 - row["dedup"] / row["static"]) for g, row in amount.iterrows()}


def plot_scaling(numbers: Numbers) -> go.Figure:
    """Plot (a): time, cost and actors of whole steps over the mean length of their responses, a line per policy."""
    rows = select(numbers.table, {"panel": "scaling", "scope": "step"}).astype({"actors": float})
    rows = rows.rename(columns={"policy": "run", "gpu_s": "gpu_seconds"})
    rows.loc[rows["run"] == "elastic", "actors"] = np.nan  # it generates as the naive system does
    plotted = named(plot_steps(rows, over="mean_tokens"), "Figure 13a")
    return plotted.for_each_trace(lambda line: line.update(name=label_of(line.name)))


def plot_shared_prefill(numbers: Numbers) -> go.Figure:
    """Plot (b): prefill tokens and GPU-seconds of generation, with every response prefilled and with each prompt once."""
    table = select(numbers.table, {"panel": "prefill"})
    table = table.assign(policy=table["policy"].map(SHARED), tokens=table["prefill_tokens"] / 1e3,
                         samples=[f"{int(count)}" for count in table["samples_per_prompt"]])  # fmt: skip
    bars = Panel({}, "samples", "tokens", kind="bars", title="prefill tokens, in thousands", x_title="responses per prompt",
                 xaxis={"type": "category"})  # fmt: skip
    looks = {SHARED["static"]: Look(SHARED["static"], GREY), SHARED["dedup"]: Look(SHARED["dedup"], ORANGE, hatch="/")}
    panels = [[bars, replace(bars, y="gpu_s", title="GPU-seconds of generation")]]
    return facets(table, "Figure 13b: deduplicated prefill", "GSM8K (length model), GRPO", panels, looks, heights=[240])


def find_drift(numbers: Numbers) -> list[Finding]:
    """Return the findings of Figure 13."""
    table = numbers.table
    steps = table[(table["panel"] == "scaling") & (table["scope"] == "step")]
    rule = steps[steps["policy"] == "rlhfless"].sort_values("mean_tokens", ignore_index=True)
    actors, tokens = rule["actors"].astype(int), rule["mean_tokens"]
    rank = float(tokens.rank().corr(actors.rank())) if actors.nunique() > 1 else 0.0  # Spearman without scipy
    longer, more = tokens.iloc[-1] / tokens.iloc[0], actors.iloc[-1] / actors.iloc[0]
    as_much = more >= longer**0.5  # half of the growth, on a logarithmic scale
    names = {"RLHFless' rule": "rlhfless", "right-sized random": "random", "ours": "solver+replan"}
    shares = ", ".join(
        f"{name} {spread(steps[steps['policy'] == policy]['share'].astype(float), '.0%')}" for name, policy in names.items()
    )
    saved, cost = prefill_saved(numbers), prefill_saved(numbers, "gpu_s")
    each = ", ".join(f"{share:.1%} for G = {g}" for g, share in saved.items() if g > 1)
    return [
        Finding(
            "scaling follows the drift of lengths", STATED,
            f"{'' if as_much else 'barely: '}lengths grow {longer:.1f} times, the rule's actors go from {actors.iloc[0]} to "
            f"{actors.iloc[-1]} (rank correlation {rank:.1f})",
            f"{SHARE} of each whole step: {shares}", verdict([actors.iloc[-1] > actors.iloc[0], rank >= 0.5, as_much]),
        ),
        Finding(
            "prefill tokens saved by one prefill per prompt instead of three", "66 %",
            f"{saved[3]:.1%}, which is {cost[3]:.1%} of generation's GPU time", "(G - 1) / G: 66.7 % for G = 3",
            verdict([abs(saved[3] - 2 / 3) < 1e-9]),
        ),
        Finding(
            "computing each prompt once saves (G - 1) / G of the prefill tokens", STATED, each, "(G - 1) / G",
            verdict([abs(share - (g - 1) / g) < 1e-9 for g, share in saved.items()]),
        ),
    ]  # fmt: skip


FIGURE_13 = PaperFigure(
    "13", TITLE_13,
    Text(
        "(a) Time, cost and actors of whole steps while lengths drift; below, (b) prefill tokens and GPU-seconds with every "
        "response prefilled, and with each prompt prefilled once. The table also has generation alone and shares of the "
        "headroom.",
        f"Lengths are the stated model of GSM8K; their drift is our choice. {QWEN_3B_L40S.about}.",
        "The paper prints 66 % fewer prefill tokens, and shows scaling as a picture. The rule's min-max scaling compares "
        "every count of actors with the largest and the smallest of the same step, so it follows the shape of the lengths "
        "more than their size. Elastic naive has a larger learner than the bound, so its share can be above 100 %. Prompts "
        "of GSM8K are short, so a shared prefill saves little GPU time.",
    ),
    drift_and_prefill, plot_scaling, find_drift, {"epochs": 4, "drift": 0.5, "responses": 256, "samples_per_prompt": (1, 3)},
    below=plot_shared_prefill,
)  # fmt: skip
