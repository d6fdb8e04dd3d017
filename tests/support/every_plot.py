"""One small figure of every plot, with a text of the caller's in all places where a log or a user gives one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from plot_samples import rollouts, tables
from step_plans import analytic_plan, named_graph

import solver
from rlhfless import plots
from rlhfless.analysis.draft_acceptance import DraftedResponses
from rlhfless.analysis.draft_groups import DraftSource
from rlhfless.analysis.draft_study import DraftStudy
from rlhfless.analysis.value_of_information import ValueOfInformation
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.fronts import plot_fronts
from rlhfless.plots.split import plot_split
from rlhfless.plots.variants import plot_variants
from rlhfless.plots.what_ifs import plot_what_ifs
from rlhfless.simulate import Comparison
from rlhfless.trace import Trace
from solver.generation.pareto_front import Front
from solver.layouts import StepPlan
from solver.model.acceptance import Acceptance
from solver.pipeline import Chain, PipelinePlan, PipelineProblem, schedule_pipeline
from solver.prefix_sharing.deduplicate import Deduplication, deduplicate
from solver.step.cut import CutCandidate, CutPlan
from solver.timing.evaluate import Evaluation

CLUSTER = solver.Cluster(nodes=1, gpus_per_node=4, gpus_per_actor=1)
LATENCY = solver.LatencyModel("made up", gpus_per_actor=1, base_s=0.01, per_response_s=0.0005, start_s=0.1, max_batch=64)
WORKLOAD = solver.Workload.grid(np.full(8, 20), np.random.default_rng(0).integers(20, 400, (8, 2)), max_response_tokens=400)
STEPS = pd.DataFrame(
    {
        "step": [0, 1], "reward_mean": [0.2, 0.4], "response_tokens_mean": [100.0, 80.0], "actors": [3, 2],
        "gpu_seconds": [10.0, 8.0], "idle_gpu_seconds": [1.0, 2.0], "generation_gpu_seconds": [6.0, 5.0],
        "static_gpu_seconds": [12.0, 10.0],
    }
)  # fmt: skip
COSTS = pd.DataFrame(
    {
        "step": [0, 1, 2, 2], "start_s": [0.0, 2.0, 3.0, 3.0], "end_s": [2.0, 3.0, 3.5, 4.0],
        "gpu_seconds": [8.0, 6.0, 1.0, 3.0], "idle_gpu_seconds": [1.0, 2.0, 0.0, 1.0], "cost_usd": [4.0, 3.0, 0.5, 1.5],
        "complete": [True, True, False, False],
    }
)  # fmt: skip
PLANNED = pd.DataFrame(
    {"step": [0, 1], "mean_tokens": [90.0, 110.0], "actors": [2, 3], "makespan_s": 1.0, "gpu_seconds": 2.0, "known": True}
)


def trace_of(text: str, holder: str = "") -> Trace:
    """One step of two actors; names of runs, prompts, holders, kinds and events are the text."""
    one, named = tables(), holder or text
    held = [{**row, "run": text, "kind": text, "holder": f"{named}{i}"} for i, row in enumerate(one["allocations"])]
    spans = [{**row, "run": text, "holder": f"{named}{row['holder'][-1]}", "from_actor": text} for row in one["spans"]]
    events = [{**row, "run": text, "holder": f"{named}1", "name": text, "detail": json.dumps(text)} for row in one["events"]]
    rows = [
        {**row, "run": text, "prompt_id": f"{text}{i}", "actor": f"{named}0", "start_s": 0.0, "end_s": 1.0 + 0.1 * i}
        for i, row in enumerate(rollouts())
    ]
    return Trace(rows, allocations=held, spans=spans, events=events, meta={"policy": text})


@cache
def made(text: str) -> tuple[Mapping[str, solver.Plan], Front, Mapping[str, Evaluation], Deduplication]:
    """Plans by label on GPUs of a kind, the front, what the plans take, and what one computes at prefill."""
    latency = replace(LATENCY, name=text, kind=text)
    pools = solver.MixedCluster([solver.GpuPool(text, 1, 4, 1.0)])
    plans = {
        label: solver.plan(solver.PlanningProblem(WORKLOAD, pools, {(text, 1): latency}, solver.Objective(weight, cost="usd")))
        for label, weight in ((text, 1.0), ("other", 0.0))
    }
    front = solver.pareto_front(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), points=4)
    outcomes = {
        label: solver.evaluate(plan, solver.PlanningProblem(WORKLOAD, pools, {(text, 1): latency}))
        for label, plan in plans.items()
    }
    return plans, front, outcomes, deduplicate(plans[text], solver.PlanningProblem(WORKLOAD, CLUSTER, latency))


def learned(text: str) -> list[dict[str, Any]]:
    """Recorded curves of one seed of an algorithm of this name."""
    step = {"reward_mean": 0.2, "response_tokens_mean": 80, "actors": 4}
    end = {"accuracy": 0.5, "low": 0.4, "high": 0.6, "problems": 100}
    return [
        {"algorithm": text, "seed": 0, "steps": [{"step": i, "epoch": i, **step} for i in range(2)], "start": end, "end": end}
    ]


def results(text: str) -> pd.DataFrame:
    """Sums of two policies."""
    return pd.DataFrame(
        {
            "policy": ["static", text], "time_s": [2.0, 1.0], "gpu_seconds": [3.0, 2.0], "cost_usd": [1.0, 1.0],
            "bound_gpu_seconds": [1.0, 1.5],
        }
    )  # fmt: skip


def ways(text: str) -> pd.DataFrame:
    """Means of a run as logged, of one way on-policy and one off-policy."""
    rows = pd.DataFrame({"variant": ["as logged", text, "stale"], "time_s": [5.0, 3.5, 4.0], "gpu_seconds": [20.0, 15.0, 16.0]})
    return rows.assign(
        way=rows["variant"], cost_usd=rows["gpu_seconds"] / 1200, least_time_s=2.0, on_policy=rows["variant"] != "stale"
    )


def uses(text: str) -> pd.DataFrame:
    """Where GPU-seconds went."""
    return pd.DataFrame(
        {"use": [text, "decode"], "idle": [True, False], "gpu_s": [2.0, 4.0], "share": [1 / 3, 2 / 3], "usd": 0.1}
    )


def best(text: str) -> pd.Series:
    """What the schedule of this name would save."""
    return pd.Series({"policy": text, "GPU-seconds mean": 0.3, "time mean": -0.1, "GPU-seconds most": 0.5})


def informed(text: str) -> ValueOfInformation:
    """Two policies with two forecasts, twice each."""
    names = [(f, p, d) for f in (text, "truth") for p in ("random", text) for d in (0, 1)]
    runs = pd.DataFrame(names, columns=["forecast", "policy", "draw"]).assign(
        value=[1.0, 1.02, 0.9, 0.91, 1.0, 1.02, 0.8, 0.8], planning_s=0.1, moves=0, actors=2
    )
    limits = pd.DataFrame({"forecast": [text, "truth"], "value": [0.85, 0.75]})
    return ValueOfInformation(runs, limits, 0.7, (text, "truth"))


def drafted(text: str) -> DraftStudy:
    """What two sources of drafts accept."""
    shares = [(text, 1, 0.75), (text, 2, 0.5), ("own tokens", 1, 0.5), ("own tokens", 2, 0.25)]
    none = pd.DataFrame()
    best = DraftedResponses(DraftSource(), 2, none, np.array([3, 2]))
    by_position = pd.DataFrame(shares, columns=["source", "position", "survival"])
    return DraftStudy("tokens", f"2 responses of {text}", none, best, none, none, by_position, 20.0)


def piped(text: str) -> PipelinePlan:
    """A chain of this name on two devices, and another."""
    chains = [Chain(text, [0, 1], 3, 2, 4, 1.0), Chain(f"{text} 2", [1, 0], 2, 1, 2, 0.5)]
    return schedule_pipeline(PipelineProblem(chains), time_limit_s=0.01)


def cut_of() -> CutPlan:
    """A cut that was followed, one that was not, and one without room."""
    uncut = CutCandidate(0.0, 4, "released", 1.0, 9.0, 9.0, 30.0, 1.0)
    found = CutCandidate(0.2, 1, "released", 0.8, 7.0, 7.5, 28.0, 0.9)
    others = (CutCandidate(0.5, 1, "released", 0.95, 8.0), CutCandidate(0.5, 2, "released", np.inf, np.inf))
    return CutPlan(0.2, 2, 1, "released", 7.5, 28.0, 0.9, uncut, (uncut, found, *others))


def step_plans_of(text: str) -> dict[str, StepPlan]:
    """Two plans of a step whose graph, calls and roles have this name; the second is slower and proves nothing."""
    graph = named_graph(text)
    slower = replace(analytic_plan(graph, slow=1.5), lower_bound_s=0.0, status="infeasible")
    return {text: analytic_plan(graph), "other": slower}


def draft_fronts(text: str) -> Comparison:
    """Two policies at two time weights, the second below what one token per pass allows."""
    rows = [("random", 0.0, 1, 4.0, 6.0, True), ("random", 1.0, 2, 2.0, 9.0, True), (text, 0.0, 1, 1.0, 3.0, True),
            (text, 1.0, 2, 2.0, 5.0, False)]  # fmt: skip
    results = pd.DataFrame(rows, columns=["policy", "time_weight", "actors", "time_s", "gpu_seconds", "on_front"])
    least = {"one_token": [np.inf, 6.0, 4.0], "with_drafts": [np.inf, 2.0, 1.5]}
    curves = {name: pd.DataFrame({"time_s": [0.5, 2.0, 4.0], "gpu_seconds": gpu_s}) for name, gpu_s in least.items()}
    return Comparison(results.assign(step=3), {}, curves=curves, times=text)


def fusion_front_of(text: str) -> Comparison:
    """A policy at two time weights, learned from in both ways; streaming is faster."""
    rows = [(text, "batch", 0.0, 1.0, 6.0, 6.5, 4.0, True), (text, "batch", 1.0, 2.0, 4.0, 9.0, 5.0, True),
            (text, "stream", 0.0, 1.0, 5.0, 6.0, 4.5, True), (text, "stream", 1.0, 2.0, 5.5, 8.0, 4.25, False)]  # fmt: skip
    columns = ["policy", "learning", "time_weight", "actors", "time_s", "gpu_seconds", "bound_gpu_seconds", "on_front"]
    bound = pd.DataFrame({"time_s": [1.0, 3.0, 6.0], "gpu_seconds": [np.inf, 5.5, 4.0]})
    return Comparison(pd.DataFrame(rows, columns=columns).assign(step=3), {}, curves={"whatever overlaps": bound})


def divisions(text: str) -> pd.DataFrame:
    """Three ways to divide GPUs; one is of this name."""
    rows = [("shared", 4, 4, 6.0, 5.0), (text, 1, 3, 9.0, 7.0), (text, 2, 2, 5.0, 4.5)]
    table = pd.DataFrame(rows, columns=["way", "gpus_generate", "gpus_train", "step_s", "least_step_s"])
    return table.assign(gpus=4, gpus_per_actor=1)


class Call(NamedTuple):
    """Arguments of a plot."""

    given: tuple[Any, ...]
    named: Mapping[str, Any] = {}


def calls(text: str) -> dict[str, Callable[[], Call]]:
    """What makes the arguments of a plot, by its name; ``text`` is every name that a log or a user gives."""
    label = {"of": text}

    def of_plans(arguments: Callable[..., Call]) -> Callable[[], Call]:
        return lambda: arguments(*made(text))

    return {
        "plot_acceptance": lambda: Call((drafted(text),)),
        "plot_before_after": lambda: Call(({text: trace_of(text), "other": trace_of(text, "actor-")},)),
        "plot_cut_surface": lambda: Call((cut_of(),)),
        "plot_cost_over_time": lambda: Call((COSTS,)),
        "plot_curves": lambda: Call((STEPS,)),
        "plot_front": of_plans(lambda plans, front, outcomes, _: Call((front, plans, outcomes), label)),
        "plot_gap_history": of_plans(lambda plans, front, *_: Call((plans, dict.fromkeys(plans, front)), label)),
        "plot_kinds": of_plans(lambda plans, *_: Call((plans, WORKLOAD), label)),
        "plot_curves, several seeds": lambda: Call((learned(text),)),
        "plot_lengths": lambda: Call((trace_of(text),)),
        "plot_lengths, several logs": lambda: Call(({text: trace_of(text), "other": trace_of(text)},)),
        "plot_overview, one step": lambda: Call(
            (pd.DataFrame({"phase": [text] * 2, "kind": ["", "learning"], "seconds": [3.0, 1.0], "share": [0.75, 0.25]}),)
        ),
        "plot_overview": lambda: Call((uses(text).assign(kind=["idle", "work"]), best(text))),
        "plot_pipeline": lambda: Call(({text: piped(text), "other": piped(text)},)),
        "plot_plan_bars": of_plans(lambda plans, front, *_: Call((plans, WORKLOAD, LATENCY), {**label, "front": front})),
        "plot_plane": lambda: Call((results(text),)),
        "plot_steps, planned": lambda: Call((PLANNED,)),
        "plot_prefill": of_plans(lambda *found: Call(({text: found[-1], "other": found[-1]}, 160))),
        "plot_responses": lambda: Call((trace_of(text), f"{text}0")),
        "plot_step_comparison": lambda: Call((step_plans_of(text),)),
        "plot_step_fusion": lambda: Call((trace_of(text),)),
        "plot_step_plan": lambda: Call((step_plans_of(text),), {"memory_bytes": 80e9}),
        "plot_step_search": lambda: Call((step_plans_of(text),)),
        "plot_side_by_side": lambda: Call(
            (pd.DataFrame({text: [1.0, 2.0]}, index=[text, "other"]),),
            {"title": text, "axis": f"{text} (s)", "groups": text},
        ),
        "plot_speedup_map": lambda: Call((replace(LATENCY, name=text), 100.0, Acceptance([0.5, 0.25]))),
        "plot_steps": lambda: Call((trace_of(text),)),
        "plot_steps, several runs": lambda: Call(({text: trace_of(text), "other": trace_of(text)},)),
        "plot_timeline": lambda: Call((trace_of(text),)),
        "plot_timelines": lambda: Call(({text: trace_of(text), "other": trace_of(text, "actor-")},)),
        "plot_two_step_gain": lambda: Call((replace(LATENCY, name=text, kv_bytes_per_token=1e5), 2000)),
        "plot_value_of_information": lambda: Call((informed(text),)),
        "plot_waterfall": lambda: Call((results(text),)),
        "Comparison.plot, a front with drafts": lambda: Call((draft_fronts(text),)),
        "Comparison.plot, a front by learning": lambda: Call((fusion_front_of(text),)),
        "Comparison.plot, variants": lambda: Call((results(text).assign(variant=[text, "other"]),)),
        "Comparison.plot, ways": lambda: Call((ways(text),)),
        "Split.plot": lambda: Call((divisions(text),)),
    }


OF_METHODS: dict[str, Callable[..., DataFigure]] = {
    "Comparison.plot, a front with drafts": plot_fronts, "Comparison.plot, a front by learning": plot_fronts,
    "Comparison.plot, variants": plot_variants, "Comparison.plot, ways": plot_what_ifs, "Split.plot": plot_split,
}  # fmt: skip
"""What draws the figures of methods; the others are in ``plots``."""


def every_plot(text: str) -> dict[str, Callable[[], DataFigure]]:
    """What makes a figure, by the name of the function or method.

    Args:
        text: name of runs, prompts, actors, kinds, events, policies, algorithms, labels of sliders, and whatever else has one.
    """

    def draw(name: str, make: Callable[[], Call]) -> DataFigure:
        call = make()
        return (OF_METHODS.get(name) or getattr(plots, name.partition(",")[0]))(*call.given, **call.named)

    return {name: partial(draw, name, make) for name, make in calls(text).items()}


def part(figure: DataFigure, name: str) -> pd.DataFrame:
    """Rows of one of the tables of a figure."""
    return figure.table[figure.table["table"] == name].reset_index(drop=True)
