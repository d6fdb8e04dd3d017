"""Runs policies on the steps of a log and compares sums of realised time and GPU-seconds, with paired intervals and a bound.

Knows steps as planning sees them, policies and simulated engines; nothing of files, profiles or tables as text. What is
charged and what the intervals mean is said in ``policies.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.scheduling import PolicyError, SchedulingPolicy, make_policy
from rlhfless.scheduling.policy import PlanningTime
from rlhfless.simulate import LoggedStep, SimulationConfig
from rlhfless.trace.metrics.intervals import interval_union_s
from solver import Objective, Workload
from solver.bounds.bound import Bound
from solver.bounds.headroom import summed_bounds
from solver.bounds.schedules import ScheduleBound
from solver.model.runtime_rules import ActorView, Decision, RuntimeRule, StepState, Trigger

POLICIES = (
    "static", "random", "random+tau", "least-loaded", "karmarkar-karp", "lpt", "trl", "rlhfuse", "rlhfless", "spread", "fold",
    "solver", "solver+replan", "oracle", "oracle+replan",
)  # fmt: skip
BASE, RIVALS, OURS = "random", ("random", "random+tau", "fold"), ("solver", "solver+replan")
RESAMPLED = (*RIVALS, *OURS)  # policies that run on resampled prompts as well
GRID = (394, 50.0)  # of the bound: times 1 % apart, up to 50 times the shortest
NUMBERS = (
    "time_s", "gpu_seconds", "idle_gpu_seconds", "bound_gpu_seconds", "planning_s", "deciding_s", "moves", "actors",
    "planning_delay_s",
)  # fmt: skip

# --- one step under one policy -----------------------------------------------------------------------------------------------


@dataclass
class TimedRule:
    """Another rule, with the seconds that it took to decide."""

    rule: RuntimeRule
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The rule's own."""
        return self.rule.name

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``RuntimeRule``."""
        began = time.perf_counter()
        trigger = self.rule.next_trigger(view)
        self.seconds += time.perf_counter() - began
        return trigger

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """See ``RuntimeRule``."""
        began = time.perf_counter()
        decisions = self.rule.decide(now_s, state)
        self.seconds += time.perf_counter() - began
        return decisions


def run(
    logged: LoggedStep, policy: SchedulingPolicy, setting: SimulationConfig, bound: Bound, overlap_s: float
) -> dict[str, float]:
    """``NUMBERS`` of one step under one policy; planning overlaps ``overlap_s`` in which the step before prepares and learns.

    Its workload is as new: no policy profits from what another has worked out.
    """
    problem, options = logged.inputs(setting, policy.clairvoyant)
    problem = replace(problem, workload=replace(problem.workload))
    began = time.perf_counter()
    plan = policy.plan(problem, options)
    planning = PlanningTime.overlapping(time.perf_counter() - began, overlap_s)
    rule = None if plan.rule is None else TimedRule(plan.rule)
    record = run_step(
        replace(plan, rule=rule), logged.requests(), SimulatedEngine,
        setting.latency, setting.cluster, admission=setting.admission, migration=setting.migration,
    )  # fmt: skip
    deciding_s = record.rule.seconds if isinstance(record.rule, TimedRule) else 0.0
    gpu_s = idle_gpu_s = 0.0
    spans: dict[str, list[tuple[float, float]]] = {}
    for span in record.spans:
        if not span["background"]:
            spans.setdefault(span["holder"], []).append((span["start_s"], span["end_s"]))
    for held in record.allocations:
        gpus, seconds = len(held["gpu_ids"]), held["end_s"] - held["start_s"]
        gpu_s += gpus * seconds
        idle_gpu_s += gpus * max(0.0, seconds - interval_union_s(*np.array(spans.get(held["holder"], [(0, 0)])).T))
    curve = bound.gpu_seconds(record.makespan_s)
    delay_s = planning.planning_delay_s
    time_s = record.makespan_s + delay_s + deciding_s
    numbers = (
        time_s, gpu_s, idle_gpu_s, curve, planning.planning_s, deciding_s, record.moves, len(plan.actors), delay_s
    )  # fmt: skip
    return dict(zip(NUMBERS, map(float, numbers), strict=True))


def resampled(logged: LoggedStep, rng: np.random.Generator) -> LoggedStep:
    """The step with whole prompts drawn with replacement; one that is drawn twice counts as two prompts."""
    owner = logged.truth.prompt_of
    drawn = rng.choice(np.unique(owner), len(np.unique(owner)))
    own = [np.flatnonzero(owner == p) for p in drawn]
    rows = np.concatenate(own)
    prompt_of = np.repeat(np.arange(len(drawn)), [len(o) for o in own])

    def pick(work: Workload) -> Workload:
        scenarios = None if work.scenarios is None else work.scenarios[:, rows]
        return Workload(
            work.prompt_tokens[drawn], prompt_of, work.response_tokens[rows],
            max_response_tokens=work.max_response_tokens, scenarios=scenarios,
        )  # fmt: skip

    return replace(logged, rows=logged.rows.iloc[rows], predicted=pick(logged.predicted), truth=pick(logged.truth))


# --- all steps under all policies ------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """Results on one log with one profile.

    Attributes:
        runs: (units, policies, NUMBERS) of every step (and draw of the random split).
        replicates: (replicates, policies, 2) time and GPU-seconds of resampled logs, NaN for policies that are not among
            ``RESAMPLED``; without replicates steps are resampled.
        least: (units, 3) of the bound: time and GPU-seconds where it is least, and a value that nothing is below.
    """

    policies: list[str]
    weight: float
    runs: np.ndarray
    replicates: np.ndarray
    least: np.ndarray

    def values(self, sums: np.ndarray) -> np.ndarray:
        """T^w C^(1-w) of (..., policies, time and GPU-seconds first)."""
        return Objective(self.weight).product(sums[..., 0], sums[..., 1])

    def ratio(self, policy: str, rival: str, of: str = "value") -> tuple[float, float, float]:
        """What ``policy`` takes over what ``rival`` takes, and its interval; NaN where not both ran on resampled prompts.

        Args:
            of: ``value``, ``time_s`` or ``gpu_seconds``.
        """
        mine, other = self.policies.index(policy), self.policies.index(rival)
        column = {"time_s": 0, "gpu_seconds": 1}.get(of)

        def taken(sums: np.ndarray) -> np.ndarray:
            return self.values(sums) if column is None else sums[..., column]

        values = taken(self.runs.sum(axis=0))
        ratio = float(values[mine] / values[other])
        if len(self.replicates):
            logs = np.log(taken(self.replicates))
            more = len(logs) - 1
            student = 1.96 + 2.37 / more + 2.82 / more**2  # the 97.5 % quantile of Student's t
            spread = student * float(np.std(logs[:, mine] - logs[:, other], ddof=1))
            return ratio, ratio * math.exp(-spread), ratio * math.exp(spread)
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, len(self.runs), (2000, len(self.runs)))
        values = taken(self.runs[drawn][..., :2].sum(axis=1))
        low, high = np.percentile(values[:, mine] / values[:, other], [2.5, 97.5])
        return ratio, float(low), float(high)

    def against(self, policy: str) -> dict[str, dict[str, tuple[float, float, float]]]:
        """``ratio`` of ``policy`` to every rival that ran, of the value, the time and the GPU-seconds."""
        rivals = [rival for rival in RIVALS if rival in self.policies]
        return {rival: {of: self.ratio(policy, rival, of) for of in ("value", "time_s", "gpu_seconds")} for rival in rivals}

    def rows(self) -> list[dict[str, Any]]:
        """One row per policy, and the bound. ``generation_value`` leaves planning's delay and deciding out. An interval that is
        not known is None."""
        sums = self.runs.sum(axis=0)
        alone = sums.copy()
        alone[:, 0] -= sums[:, NUMBERS.index("planning_delay_s")] + sums[:, NUMBERS.index("deciding_s")]
        generation = self.values(alone) / self.values(alone)[self.policies.index(BASE)]
        base = self.values(sums)[self.policies.index(BASE)]
        table = []
        for name, own, without in zip(self.policies, sums, generation.tolist(), strict=True):
            value, low, high = self.ratio(name, BASE)
            row = dict(zip(NUMBERS, own.tolist(), strict=True))
            known = (low, high) if math.isfinite(low) else (None, None)
            row |= {"actors": row["actors"] / len(self.runs), "value": value, "low": known[0], "high": known[1]}
            row |= {"generation_value": without, "against": self.against(name) if name in OURS else None}
            table.append({"policy": name, **row, "over_bound": row["gpu_seconds"] / row.pop("bound_gpu_seconds")})
        time_s, gpu_s, value = self.least.sum(axis=0).tolist()
        table.append(
            {"policy": "bound", "time_s": time_s, "gpu_seconds": gpu_s, "value": float(value / base), "over_bound": 1.0}
        )
        return table

    def verdicts(self) -> list[str]:
        """One sentence per policy of ours and rival."""
        said = []
        for mine in (name for name in OURS if name in self.policies):
            for rival, ratios in self.against(mine).items():
                ratio, low, high = ratios["value"]
                word = "beats" if high < 1 else "loses to" if low > 1 else "is not told apart from"
                said.append(f"{mine} {word} {rival}: {ratio:.3f} [{low:.3f}, {high:.3f}]")
        return said


def known_policies(names: Sequence[str], setting: SimulationConfig) -> list[SchedulingPolicy]:
    """Those of ``names`` that exist."""
    found = []
    for name in names:
        try:
            found.append(make_policy(name, tau=setting.tau, static_actors=setting.static_actors, hold=setting.hold))
        except PolicyError:
            continue
    return found


def compare(
    steps: Sequence[LoggedStep],
    setting: SimulationConfig,
    names: Sequence[str] = POLICIES,
    draws: int = 1,
    replicates: int = 0,
    overlap_s: float = 0.0,
) -> Comparison:
    """Run every step under every policy, ``draws`` times, and under ``RESAMPLED`` on ``replicates`` resamples of prompts.

    Args:
        overlap_s: seconds that the step before prepares and learns; only planning that takes longer delays generation.
    """
    policies = known_policies(names, setting)
    runs, least, again = [], [], []
    for logged in steps:
        bound = ScheduleBound(setting.problem(logged.truth), lp_work=setting.bound_work)
        for draw in range(draws):
            drawn = replace(setting, seed=setting.seed + 1000 * draw)
            runs.append([list(run(logged, policy, drawn, bound, overlap_s).values()) for policy in policies])
            best = summed_bounds([bound.curve(*GRID)], setting.objective.time_weight)
            least.append((best.time_s, best.gpu_s, best.value))
    for replicate in range(1, replicates + 1):
        rng, other = np.random.default_rng(replicate), replace(setting, seed=setting.seed + 1000 * replicate)
        sums = np.array([[0.0 if policy.name in RESAMPLED else math.nan] * 2 for policy in policies])
        for logged in steps:
            sample = resampled(logged, rng)
            bound = ScheduleBound(setting.problem(sample.truth), lp_work=setting.bound_work)
            for own, policy in zip(sums, policies, strict=True):
                if policy.name in RESAMPLED:
                    own += list(run(sample, policy, other, bound, overlap_s).values())[:2]
        again.append(sums)
    name = [p.name for p in policies]
    return Comparison(name, setting.objective.time_weight, np.array(runs), np.array(again), np.array(least))
