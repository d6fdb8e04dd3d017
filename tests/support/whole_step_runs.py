"""Random whole steps, executed by random policies with any levers, and the bound on each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.engine.simulated.accepted_runs import DrawnRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import EngineFactory, phase_work_items
from rlhfless.scheduling.assignments import Random, Spread, Static
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.scheduling.rules import Fold
from rlhfless.simulate import LoggedStep, SimulationConfig, logged_steps
from rlhfless.simulate.whole_steps.generated import executed, executed_record, requests_of
from solver import Cluster, LatencyModel, Objective, Plan, PlanningProblem, Workload
from solver.bounds.drafts import DraftedBound
from solver.bounds.schedules import ScheduleBound
from solver.model.acceptance import Acceptance
from solver.model.drafting import Drafting
from solver.step.bound import WholeStepBound, whole_step_bound
from solver.step.charges import Charges
from solver.step.work import Learner, TokenWork

DRAFTS = 4


def visited_twice(responses: int, mean_log: float, sd_log: float, limit: int) -> LoggedStep:
    """Return the second of two steps with the same prompts, four samples each, whose lengths differ by a tenth from visit to
    visit.

    Args:
        mean_log, sd_log: of the logarithms of lengths. limit: the longest response, in tokens.
    """
    rng = np.random.default_rng(0)
    rows = [
        {"run": "log", "step": visit, "epoch": visit, "prompt_id": f"p{i // 4}", "sample": i % 4, "prompt_tokens": 40,
         "finish_reason": "stop", "response_tokens": int(np.clip(tokens * rng.lognormal(0, 0.1), 1, limit))}
        for visit in (0, 1) for i, tokens in enumerate(np.random.default_rng(1).lognormal(mean_log, sd_log, responses))
    ]  # fmt: skip
    (logged,) = logged_steps(pd.DataFrame(rows), max_response_tokens=limit, steps=[1])
    return logged


@dataclass(frozen=True)
class WholeStepRun:
    """An executed step: seconds and GPU-seconds by its totals and by the executor's record, and the bound."""

    totals: tuple[float, float]
    recorded: tuple[float, float]
    bound: WholeStepBound

    @property
    def ratio(self) -> float:
        """Return the bound over the executed GPU-seconds; above 1 is a violation, infinite if the time is below the bound."""
        return self.bound.gpu_seconds(self.totals[0] * (1 + 1e-9)) / self.totals[1]


def whole_step_run(seed: int, sized: bool = False) -> WholeStepRun:
    """Return a random step of 2 to 60 responses on 1 to 5 actors, as some policy executes it.

    Args:
        sized: charges differ between sizes of the learner without any order.
    """
    rng = np.random.default_rng(seed)
    problem = _problem(rng)
    cluster, latency = problem.one_kind
    setting = SimulationConfig(cluster, latency, problem.objective)
    per_token_s = float(rng.choice([1e-5, 2e-4, 2e-3]))
    most = cluster.max_actors
    charges = Charges.by_formula(
        most, int(rng.integers(1, 4)), float(rng.choice([0.0, 0.1, 0.3])), float(rng.choice([0.0, 0.3])),
        float(rng.choice([0, 0.2])),
    )  # fmt: skip
    if sized:
        charges = Charges(*(tuple(rng.uniform(low, high, most).tolist()) for low, high in ((1, 2), (0, 0.4), (0, 0.4))))
    costs = TokenWork(per_token_s, float(rng.choice([0.5, 3.0])) * per_token_s, str(rng.choice(["group", "response"])), charges)
    work = costs.of(problem.workload, cluster.gpus_per_actor)
    plan = _plan(problem, rng)
    engines: EngineFactory = SimulatedEngine
    generation = ScheduleBound(problem, lp_work=int(rng.choice([0, 20_000])))
    if rng.random() < 0.3:
        runs = DrawnRuns(Acceptance(np.sort(rng.uniform(0, 0.9, DRAFTS))[::-1]), int(rng.integers(1000)), 0.35)
        plan = replace(plan, drafting=Drafting(max_draft_tokens=DRAFTS, length=[2, "adaptive"][int(rng.integers(2))]))
        engines = DraftedEngineFactory(plan.drafting, runs, None)
        accepted = [runs.of(i, tokens).accepted for i, tokens in enumerate(problem.workload.response_tokens.tolist())]
        generation = DraftedBound(problem, accepted, lp_work=0)
    requests = requests_of(problem.workload)
    generated = executed(plan, requests, setting, engines=engines)
    learner = _learner(generated.makespan_s, len(plan.actors), most, rng)
    items = phase_work_items(work, learner, cluster, len(plan.actors))
    record = executed_record(plan, requests, setting, latency, engines, items)
    gpu_s = sum(len(row["gpu_ids"]) * (row["end_s"] - row["start_s"]) for row in record.allocations)
    return WholeStepRun(generated.step_totals(work, learner), (record.end_s, gpu_s), whole_step_bound(generation, work))


def _problem(rng: np.random.Generator) -> PlanningProblem:
    samples, prompts, gpus = int(rng.integers(1, 4)), int(rng.integers(2, 21)), int(rng.integers(1, 3))
    owner = np.repeat(np.arange(prompts), samples)
    lengths = np.clip(rng.lognormal(float(rng.uniform(2.5, 5)), float(rng.uniform(0.1, 1)), len(owner)), 1, 2000).astype(int)
    latency = LatencyModel(
        "mine", gpus, base_s=5e-3, per_response_s=float(rng.choice([0, 1e-4, 1e-3])),
        per_kv_token_s=float(rng.choice([0, 1e-6])),
        prefill_per_token_s=float(rng.choice([0, 1e-4])), start_s=float(rng.choice([0, 0.3])), sync_s=0.05,
        max_batch=int(rng.choice([4, 64])), kv_capacity_tokens=64 * 2100,
    )  # fmt: skip
    workload = Workload(rng.integers(1, 200, prompts), owner, lengths, max_response_tokens=2000)
    cluster = Cluster(1, int(rng.integers(1, 6)) * gpus, gpus)
    return PlanningProblem(workload, cluster, latency, Objective(float(rng.choice([0.2, 0.7, 1.0]))))


def _plan(problem: PlanningProblem, rng: np.random.Generator) -> Plan:
    """Return the plan of a random policy, which may have a rule and may share prefill."""
    options, prompts = PlanningOptions(seed=int(rng.integers(1000))), len(problem.workload.prompt_tokens)
    actors = int(rng.integers(1, min(problem.one_kind[0].max_actors, prompts) + 1))
    kind = int(rng.integers(5))
    if kind == 0:
        return Static(actors, hold="done").plan(problem, options)
    if kind == 1:
        return Random().plan(replace(problem, share_prefill=bool(rng.random() < 0.5)), options)
    spread = Spread(actors=actors)
    if kind == 2:
        return Fold(spread).plan(problem, options)
    plan, total = spread.plan(problem, options), len(problem.workload)
    return plan if kind == 3 or actors < 2 else replace(plan, rule=GlobalCut(max(1, total // 3), total, keep=1))


def _learner(makespan_s: float, actors: int, most: int, rng: np.random.Generator) -> Learner:
    """Return a random learner that has at most all servers, with the actors'."""
    own = int(rng.integers(0, most - actors + 1))
    streams = bool(rng.random() < 0.5)
    from_s = float(rng.choice([0.0, rng.uniform(0, 1.2)])) * makespan_s if own else 0.0
    return Learner(own, from_s, bool(rng.random() < 0.5) or not own, streams, streams or bool(rng.random() < 0.5))
