"""Plans one step of a log under other settings and simulates it. ``explore`` without its widgets.

Inputs are a log and ``Settings``. The results come in two parts, because the user of a slider waits for the first part. First
comes the plan with its execution, then the policies, the front and the bound to compare it with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import Requests
from rlhfless.errors import InputError
from rlhfless.executor import StepRecord, run_step
from rlhfless.predict import unknown_predictor
from rlhfless.scheduling import make_policy
from rlhfless.simulate import LoggedStep, logged_steps
from rlhfless.simulate.traces import trace_of
from rlhfless.trace import Limits, Trace, TraceError, read_rollouts, read_trace
from rlhfless.widgets.settings import PREDICTORS, Settings, default_settings
from solver.bounds.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.planning.pareto_front import Front, pareto_front
from solver.planning.plan_generation import plan_generation

QUICK_POLICIES = ("static", "least-loaded", "random", "spread", "rlhfless", "oracle")
"""Those that take about 0.1 s each for 2,000 responses, so that a slider does not wait for them."""
POLICIES = (*QUICK_POLICIES, "solver")
"""The policies to compare with; ``simulate`` has those that re-plan while the step runs, too."""
THIS_PLAN = "this plan"
FRONT_POINTS = 16


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A plan of the step for some settings, and its execution with the true lengths.

    Attributes:
        plan: for the predicted lengths. record: of the plan on simulated engines.
        seconds: time that planning and execution took on this machine.
    """

    settings: Settings
    logged: LoggedStep
    plan: Plan
    record: StepRecord
    seconds: float

    @cached_property
    def trace(self) -> Trace:
        """The execution as a trace; row i of its rollouts is response i."""
        return trace_of([(self.record, self.logged)], self.settings.setting, self.plan.policy)

    @cached_property
    def actors(self) -> pd.DataFrame:
        """One row per actor: ``actor, gpus, responses, prompts, shortest_tokens, longest_tokens`` (predicted),
        ``predicted_s, done_s`` (planned and executed end), ``busy_gpu_s``."""
        lengths, began = self.logged.predicted.response_tokens, self.record.start_s
        done: dict[str, float] = {}
        for row in self.record.spans:
            done[row["holder"]] = max(row["end_s"] - began, done.get(row["holder"], 0.0))
        rows = []
        for i, actor in enumerate(self.plan.actors):
            tokens = lengths[list(actor.responses)]
            done_s = done.get(f"actor-{i}", math.nan)
            rows.append(
                {
                    "actor": i,
                    "gpus": ", ".join(map(str, actor.gpu_ids)),
                    "responses": len(tokens),
                    "prompts": len(actor.prompts),
                    "shortest_tokens": int(tokens.min()) if len(tokens) else 0,
                    "longest_tokens": int(tokens.max(initial=0)),
                    "predicted_s": actor.predicted_s,
                    "done_s": done_s,
                    "busy_gpu_s": done_s * len(actor.gpu_ids),
                }
            )
        return pd.DataFrame(rows)

    @property
    def time_s(self) -> float:
        """Seconds that the executed step took."""
        return self.record.end_s - self.record.start_s

    @cached_property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the executed step was billed."""
        return billed(self.record)[0]

    @cached_property
    def cost_usd(self) -> float:
        """Dollars that the executed step was billed."""
        return billed(self.record)[1]


def billed(record: StepRecord) -> tuple[float, float]:
    """Return GPU-seconds and dollars of a step's allocations."""
    held = [(len(row["gpu_ids"]) * (row["end_s"] - row["start_s"]), row["usd_per_gpu_s"]) for row in record.allocations]
    return sum(gpu_s for gpu_s, _ in held), sum(gpu_s * usd for gpu_s, usd in held)


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Policies, front and bound to compare a plan with.

    Attributes:
        results: ``policy, time_s, gpu_seconds, cost_usd, bound_gpu_seconds`` of the plan itself (``this plan``) and every
            policy.
        front: of plans, for the predicted lengths. bound: for the true lengths, by the closed form; no policy is below.
    """

    results: pd.DataFrame
    front: Front
    bound: ClairvoyantBound


class WhatIf:
    """One step of a log, to be planned under any settings.

    Args:
        source: a trace, rollouts, or the path of either.
        step: to plan; the last one when None.
        max_response_tokens: the longest response allowed; the trace's own, or the longest of the log, when None.
        limits: maximal amounts to read of a path; None takes the default.

    Attributes:
        source: the log's path, or the empty text. rollouts, run, steps: of the log. step: the one that is planned.
        default: initial settings.

    Raises:
        TraceError: the log cannot be read, holds several runs, or has no such step.
        InputError: the response limit is no whole number above 0.
    """

    def __init__(
        self,
        source: Trace | pd.DataFrame | str | Path,
        step: int | None = None,
        max_response_tokens: int | None = None,
        *,
        limits: Limits | None = None,
    ) -> None:
        path = str(source) if isinstance(source, str | Path) else ""
        if isinstance(source, str | Path):
            source = read_trace(source, limits) if Path(source).is_dir() else read_rollouts(source, limits)
        if not isinstance(source, Trace | pd.DataFrame):
            raise TraceError(
                f"the log is of type {type(source).__name__}; a trace, a frame of rollouts or the path of either is needed"
            )
        if max_response_tokens is not None and not (isinstance(max_response_tokens, Integral) and max_response_tokens > 0):
            raise InputError(f"max_response_tokens is {max_response_tokens!r:.80}; a whole number above 0 is needed")
        trace = source if isinstance(source, Trace) else Trace(source)  # refuses what are no rollouts
        self.source, self.run, self.rollouts = path or trace.source, trace.run, trace.rollouts
        self.steps = sorted(int(step) for step in self.rollouts["step"].unique())
        if step is not None and step not in self.steps:
            raise TraceError(f"the log has no step {step!r:.80}; its steps are {self.steps[0]} to {self.steps[-1]}")
        self.step = self.steps[-1] if step is None else int(step)
        limit = (
            (trace.meta.get("config") or {}).get("max_response_tokens") if max_response_tokens is None else max_response_tokens
        )
        self.max_response_tokens = None if limit is None else max(int(limit), int(self.rollouts["response_tokens"].max()))
        self.default = default_settings(trace.meta)
        self._logged: dict[str, LoggedStep] = {}
        self._requests: dict[str, Requests] = {}
        self._static: PlannedRun | None = None

    def logged(self, predictor: str) -> LoggedStep:
        """Return the step with the lengths that a predictor gives it from all earlier steps; computed once.

        Raises:
            InputError: there is no such predictor.
        """
        if predictor not in PREDICTORS:
            raise InputError(unknown_predictor(predictor, PREDICTORS))
        if predictor not in self._logged:
            steps = logged_steps(self.rollouts, PREDICTORS[predictor](), self.max_response_tokens, steps=[self.step])
            self._logged[predictor] = next(steps)
        return self._logged[predictor]

    def plan(self, settings: Settings) -> PlannedRun:
        """Plan the step and run the plan on simulated engines with the true lengths.

        Raises:
            PlanningError: the step cannot be planned on this cluster; the message says why.
            InputError: these are no settings.
        """
        if not isinstance(settings, Settings):
            raise InputError(f"settings is a {type(settings).__name__}; Settings(...) is needed")
        began = time.perf_counter()
        logged, setting = self.logged(settings.predictor), settings.setting
        problem = setting.problem(logged.predicted.points)
        plan = plan_generation(problem, time_limit_s=setting.time_limit_s, seed=setting.seed + self.step)
        plan = replace(plan, policy=THIS_PLAN)
        record = self._run(plan, settings)
        return PlannedRun(settings, logged, plan, record, time.perf_counter() - began)

    def static(self, settings: Settings) -> PlannedRun:
        """Return the static schedule of the step on the same cluster: what a run without a planner does.

        Neither the time weight nor tau changes it, so moves of those compute it once.

        Raises:
            PlanningError: the step cannot be planned on this cluster; the message says why.
        """
        same = replace(settings, time_weight=0.0, tau=1.0)
        if self._static is None or self._static.settings != same:
            began = time.perf_counter()
            logged, policy = self.logged(same.predictor), make_policy("static")
            plan = policy.plan(*logged.inputs(same.setting, policy.clairvoyant))
            record = self._run(plan, same)
            self._static = PlannedRun(same, logged, plan, record, time.perf_counter() - began)
        return self._static

    def alternatives(
        self,
        planned: PlannedRun,
        wanted: Callable[[], bool] = lambda: True,
        policies: Sequence[str] = POLICIES,
        known: Alternatives | None = None,
    ) -> Alternatives | None:
        """Run policies under the plan's settings, and compute front and bound.

        Args:
            wanted: called between policies; once it returns False, the rest is left out and None is returned.
            policies: which ones. known: what was computed for the same plan before; only other policies are added to it.

        Raises:
            InputError: ``planned`` is no result of ``plan``.
        """
        if not isinstance(planned, PlannedRun):
            raise InputError(f"planned is a {type(planned).__name__}; the result of WhatIf.plan is needed")
        if known is None:
            setting = planned.settings.setting
            in_gpu_s = replace(setting, objective=Objective())
            front = pareto_front(in_gpu_s.problem(planned.logged.predicted.points), points=FRONT_POINTS)
            bound = clairvoyant_bound(setting.problem(planned.logged.truth), work=0)  # a slider does not wait for the LP
            known = Alternatives(pd.DataFrame([self._row(THIS_PLAN, planned.record, bound)]), front, bound)
        rows = []
        for name in policies:
            if name in set(known.results["policy"]):
                continue
            if not wanted():
                return None
            rows.append(self._row(name, self._record(name, planned), known.bound))
        return replace(known, results=pd.concat([known.results, pd.DataFrame(rows)], ignore_index=True))

    def _record(self, name: str, planned: PlannedRun) -> StepRecord:
        if name == "static":
            return self.static(planned.settings).record
        setting = planned.settings.setting
        policy = make_policy(name, tau=setting.tau)
        return self._run(policy.plan(*planned.logged.inputs(setting, policy.clairvoyant)), planned.settings)

    def _run(self, plan: Plan, settings: Settings) -> StepRecord:
        name, setting = settings.predictor, settings.setting
        if name not in self._requests:
            self._requests[name] = self.logged(name).requests()
        return run_step(
            plan, self._requests[name], SimulatedEngine, setting.latency, setting.cluster,
            run=self.run, step=self.step, phases=setting.phases, admission=setting.admission, migration=setting.migration,
        )  # fmt: skip

    @staticmethod
    def _row(policy: str, record: StepRecord, bound: ClairvoyantBound) -> dict[str, Any]:
        gpu_s, usd = billed(record)
        return {
            "policy": policy, "time_s": record.end_s - record.start_s, "gpu_seconds": gpu_s, "cost_usd": usd,
            "bound_gpu_seconds": bound.gpu_seconds(record.makespan_s),
        }  # fmt: skip
