"""Runs the project through its public names and returns what the golden record holds, as plain data by item.

The files ``produce*.py`` are all of the record that knows names of the project: modules, classes, arguments, fields. A
renaming changes them; where a *field or column* is renamed, ``NAMES`` maps its new name to the recorded one, and no recorded
file changes. Searches end by counted work, so neither a slow machine nor other work on it changes a plan. Texts for people
(hover texts, sentences of the report) are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plain import Names, plain
from produce_findings import ASKED, in_recorded_order, lines, recorded_counts
from produce_findings import ITEMS as FINDINGS
from report_setting import sixteen_l40s

import solver
from rlhfless.analysis import Assumptions
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.latency import load_profile
from rlhfless.latency.effects import Contention, Effects, Outages, StartDelays, Stragglers
from rlhfless.predict import make_predictor
from rlhfless.report.study import Findings, study
from rlhfless.scheduling import POLICIES
from rlhfless.simulate import Comparison, LoggedStep, SimulationConfig, logged_steps, simulate_steps
from rlhfless.trace import OpenedLog, Trace, read_trace
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, Plan
from solver.prefix_sharing.deduplicate import Deduplication, deduplicate

NAMES = Names(
    recorded_as={"true_bound": "least"},
    left_out=frozenset(
        {"solve_s", "at_s", "planning_s", "planning_delay_s", "hover", "assumed", "exact"}
    ),  # times of the machine, texts for people; why a factor is what it is
    only_whether=frozenset({"missing"}),  # why there is nothing to show, in a sentence
)
DATA = Path(__file__).parents[2] / "data"
STEPS = tuple(range(0, 60, 5))
GIVEN = ("run", "step", "epoch", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason", "reward",
         "weights_version")  # fmt: skip
"""Columns of rollouts that come from the log; the others are what execution makes."""


@cache
def shipped_run() -> Trace:
    """The run that is shipped: 60 steps of 32 prompts x 8 samples."""
    return read_trace(DATA / "traces" / "arithmetic-grpo")


@cache
def settings() -> Mapping[str, tuple[SimulationConfig, str, tuple[int, ...]]]:
    """Settings that between them use every path of the simulated executor: with the predictor and the steps of each.

    ``plain``: the GPUs that a report assumes, with few slots, so that one actor is not the best. ``tight``: fewer slots and
    little memory, so that responses wait and are evicted, plans over scenarios, GPUs held for the step, a learner beside them,
    KV caches moved. ``disturbed``: what may happen to actors of large clusters, prompts fed in chunks.
    """
    report = sixteen_l40s()
    plain_ = replace(report, latency=replace(report.latency, max_batch=24))
    cpu = load_profile("cpu-tiny-qwen2")
    tight = SimulationConfig(
        Cluster(2, 8, 1, cpu.kind, 0.5, prewarmed=4),
        replace(cpu, max_batch=12, kv_capacity_tokens=2500),
        Objective(0.5, cvar_alpha=0.5),
        NonGenerationPhases(prepare_s=0.02, learn_s=0.05, learner_gpus=2),
        hold="step",
        admission="preempt",
        migration="move",
        seed=3,
    )
    effects = Effects(Stragglers(0.3, 0.5), StartDelays(1.0), Outages(60.0, 2.0), Contention(1.0), seed=1)
    linked = Cluster(2, 8, 2, "l40s", 1.8, node_bytes_per_s=5e10, network_bytes_per_s=5e9)
    mixed_prefill = plain_.latency.with_mixed_prefill(64)
    disturbed = replace(
        plain_, cluster=linked, latency=mixed_prefill, effects=effects, migration="recompute", tau=0.5, static_actors=6
    )
    return {
        "plain": (plain_, "last", STEPS[0::3]),
        "tight": (tight, "last", STEPS[1::3]),
        "disturbed": (disturbed, "inflight", STEPS[2::3]),
    }


@cache
def steps_of(name: str) -> tuple[LoggedStep, ...]:
    """The predicted steps of a setting."""
    setting, predictor, steps = settings()[name]
    return tuple(logged_steps(shipped_run().rollouts, make_predictor(predictor), setting.max_response_tokens, steps=steps))


@cache
def simulated(policy: str, name: str, count: int | None = None) -> Comparison:
    """The first ``count`` steps of a setting (all for None) under a policy."""
    return simulate_steps(steps_of(name)[:count], settings()[name][0], [policy])


def of_policy(policy: str, count: int | None = None) -> Any:
    """Plans, traces and sums of the steps of every setting under a policy: ``{setting: {step: ...}}``."""
    found = {}
    for name in settings():
        result = simulated(policy, name, count)
        trace = result.traces[policy]
        found[name] = {
            str(plan["step"]): {
                "sums": result.table[result.table["step"] == plan["step"]].drop(columns=ASKED).to_dict("records")[0],
                "plan": plan,
                **tables(trace, plan["step"]),
            }
            for plan in trace.plans
        }
    return plain(found, NAMES)


def tables(trace: Trace, step: int) -> dict[str, Any]:
    """The tables of a step, of rollouts only what execution makes of them."""
    found = {}
    for name in ("rollouts", "allocations", "spans", "events"):
        table = getattr(trace, name)
        table = table[table["step"] == step].drop(columns=["run", "step"])
        found[name] = table.drop(columns=[*GIVEN, "predicted_tokens"], errors="ignore") if name == "rollouts" else table
    return found


def predictions() -> Any:
    """What policies are given: predicted lengths and scenarios, and the bound of every step."""
    found: dict[str, Any] = {}
    for name, (setting, _, _) in settings().items():
        for one in steps_of(name):
            bound = solver.bound(
                solver.PlanningProblem(one.truth, setting.cluster, setting.latency, admission=setting.admission)
            )
            least_s = bound.shortest_s()
            found[f"{name}, step {one.step}"] = {
                "has_history": one.has_history,
                "predicted": one.predicted.response_tokens,
                "scenarios": one.predicted.scenarios,
                "shortest_s": least_s,
                "least_gpu_s": [bound.gpu_seconds(least_s * times) for times in (1.0, 1.1, 1.5, 3.0)],
            }
    for predictor in ("last", "inflight"):
        (step,) = logged_steps(shipped_run().rollouts, make_predictor(predictor), steps=[59])
        found[predictor] = {"predicted": step.predicted.response_tokens, "scenarios": step.predicted.scenarios}
    return plain(found, NAMES)


def saved(found: Findings) -> dict[str, Any]:
    """What a report says that schedules would have saved."""
    return {"reserved": found.reserved, "given_back": in_recorded_order(found.given_back)}


def first_steps(count: int) -> Trace:
    """The first steps of the shipped run."""
    run = shipped_run()
    of = {name: getattr(run, name) for name in ("rollouts", "allocations", "spans", "events")}
    return replace(run, **{name: t[t["step"] < count] for name, t in of.items()}, plans=run.plans[:count])


def report_of_executed() -> Any:
    """Findings of ``rlhfless report`` on the first steps of the shipped run."""
    cpu = load_profile("cpu-tiny-qwen2")
    setting = SimulationConfig(Cluster(2, 8, 1, cpu.kind), cpu, max_response_tokens=320)
    found = study(OpenedLog(first_steps(8), pd.DataFrame({"step": []}), ""), setting, None, 3)
    return plain(
        {**saved(found), "took": found.took, "calibrated": found.times.calibrated, "checks": found.times.checks,
         "schedules": found.schedules.table.drop(columns=ASKED)}, NAMES,
    )  # fmt: skip


def account_of(found: Findings) -> dict[str, Any]:
    """GPU-seconds of a logged run."""
    account, gpus = found.account, found.times.setting.cluster.gpus + found.times.setup.counted_learner_gpus
    return {"lines": lines(account), "steps": account.steps, "slot_idle_gpu_s": account.slot_idle_gpu_s, "gpus": gpus}


def report_of_logged() -> Any:
    """Findings of ``rlhfless report`` on the lengths alone of the same steps, as if verl had logged them with some times."""
    steps = pd.DataFrame({"step": range(8), "generate_s": np.linspace(9.0, 6.0, 8), "learn_s": 4.0, "prepare_s": 1.0})
    log = OpenedLog(Trace(first_steps(8).rollouts[list(GIVEN)]), steps, "verl")
    found = study(log, sixteen_l40s(), Assumptions(prices={"spot": 0.9}), 3)
    times = found.times
    return plain(
        {**saved(found), "setup": times.setup, "rest": times.phases, "account": account_of(found), "planned": found.planned,
         "gpu_counts": recorded_counts(found.gpu_counts), "calibrated": times.calibrated, "checks": times.checks,
         "router": found.router, "schedules": found.schedules.table.drop(columns=ASKED)}, NAMES,
    )  # fmt: skip


def rows_of(record: StepRecord) -> dict[str, Any]:
    """What an executed step leaves behind, but for tokens."""
    return {
        "plan": record.plan.to_dict(),
        "took": {"makespan_s": record.makespan_s, "end_s": record.end_s, "moves": record.moves},
        "rollouts": pd.DataFrame([record.rollout_times(i) for i in range(len(record.completions))]),
        **{name: pd.DataFrame(getattr(record, name)) for name in ("allocations", "spans", "events")},
    }


def mixed() -> tuple[solver.MixedCluster, dict[tuple[str, int], LatencyModel]]:
    """Two kinds of GPUs, one of them in two markets, and actors of two sizes on one of them."""
    names = ("l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1", "h100-qwen2.5-3b-tp2")
    models = {(m.kind, m.gpus_per_actor): replace(m, max_batch=24) for m in map(load_profile, names)}
    pools = [
        solver.GpuPool("l40s", 1, 4, 1.8),
        solver.GpuPool("h100", 1, 2, 4.0),
        solver.GpuPool("h100", 1, 1, 2.0, "preemptible"),
    ]
    return solver.MixedCluster(pools), models


@cache
def mixed_plans() -> Mapping[str, Plan]:
    """Plans on two kinds of GPUs, by what they want."""
    cluster, models = mixed()
    work = steps_of("plain")[-1].predicted
    return {
        name: solver.plan(solver.PlanningProblem(work, cluster, models, objective))
        for name, objective in (("usd", Objective(0.3, cost="usd")), ("deadline", Objective(deadline_s=2.0)))
    }


@cache
def deduplicated() -> Mapping[str, Deduplication]:
    """Plans of one step whose prompts are computed once, by the policy that made them."""
    setting, one = settings()["plain"][0], steps_of("plain")[-1]
    long_prompts = replace(one.predicted, prompt_tokens=one.predicted.prompt_tokens + 2000)
    where = replace(setting.cluster, node_bytes_per_s=2e11, network_bytes_per_s=4e10)
    half = replace(where, nodes=1)
    plans = {
        name: solver.random_split(solver.PlanningProblem(long_prompts, half, setting.latency), seed=i)
        for i, name in enumerate(("random", "other"))
    }
    return {
        name: deduplicate(plan, solver.PlanningProblem(long_prompts, where, setting.latency), share_in_actors=name == "other")
        for name, plan in plans.items()
    }


def further_plans() -> Any:
    """Plans that no policy makes, executed: several kinds of GPUs, prefill computed once, shared links of nodes."""
    setting, one = settings()["plain"][0], steps_of("plain")[-1]
    cluster, models = mixed()
    found: dict[str, Any] = {
        f"mixed {name}": rows_of(run_step(plan, one.requests(), SimulatedEngine, models, cluster, links=NodeLinks(1.0)))
        for name, plan in mixed_plans().items()
    }
    tokens = one.truth.prompt_tokens + 2000
    longer = [replace(r, prompt_tokens=int(tokens[r.prompt])) for r in one.requests()]
    for name, dedup in deduplicated().items():
        ran = run_step(dedup.plan, longer, SimulatedEngine, setting.latency, setting.cluster, migration="recompute")
        found[f"prefill {name}"] = {**rows_of(ran), "how": dedup.how, "tokens": [dedup.tokens_before, dedup.tokens_after]}
    return plain(found, NAMES)


def info_frames() -> Any:
    """See ``produce_plots.info_frames``; plotly is loaded when it is asked for."""
    from produce_plots import info_frames

    return info_frames()


def retimed_step() -> Any:
    """See ``produce_torch.retimed_step``; torch is loaded when it is asked for."""
    from produce_torch import retimed_step

    return retimed_step()


ITEMS: dict[str, Callable[[], Any]] = {
    **{f"policy-{name}": partial(of_policy, name) for name in POLICIES},
    "predictions": predictions,
    "report-executed": report_of_executed,
    "report-logged": report_of_logged,
    "further-plans": further_plans,
    "info-frames": info_frames,
    "retimed-step": retimed_step,
    **FINDINGS,
}
"""What is recorded, by the name of its file."""
