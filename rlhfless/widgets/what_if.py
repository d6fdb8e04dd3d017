"""Plans one step of a log under other settings and simulates it. ``explore`` without its widgets.

Inputs are a log and ``Settings``. Plan, execution and bound are those of ``run.plan(step)`` and its ``compare``, so that a step
has the same numbers wherever it is shown. The results come in two parts, because the user of a slider waits for the first part.
First comes the plan with its execution, beside the static schedule and a random split; then the other policies and the front.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless.analysis import ProfileScale, own_times
from rlhfless.errors import InputError
from rlhfless.predict import unknown_predictor
from rlhfless.simulate import LoggedStep, Simulation, SimulationConfig, logged_steps, simulate_steps
from rlhfless.trace import Limits, OpenedLog, Trace, TraceError, read_rollouts, read_trace
from rlhfless.widgets.settings import PREDICTORS, Settings, own_settings, stated_settings
from solver.bounds.clairvoyant import ClairvoyantBound
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.planning.pareto_front import Front, pareto_front

PLANNER = "solver"
"""The policy that plans the step, as in ``run.plan``."""
REFERENCES = ("static", "random")
"""What every plan stands beside from the start: what a run without a planner does, and what needs no prediction."""
POLICIES = (*REFERENCES, "least-loaded", "spread", "rlhfless", "oracle", PLANNER)
"""The policies to compare with, the planner last; ``simulate`` has those that re-plan while the step runs, too."""
RESULT_COLUMNS = ["policy", "time_s", "gpu_seconds", "cost_usd", "bound_gpu_seconds", "bound_method"]
FRONT_POINTS = 16
TIE = 1e-9  # of the logarithm of T^w C^(1-w)


@dataclass(frozen=True)
class Outcome:
    """The executed step under one policy, as ``run.plan(step).compare(policy)`` has it.

    Attributes:
        actors, time_s, gpu_seconds, cost_usd: that the step took and was billed. predicted_makespan_s: the plan's own time.
        bound_gpu_seconds: the least GPU-seconds of any policy in this time.
    """

    actors: int
    time_s: float
    gpu_seconds: float
    cost_usd: float
    predicted_makespan_s: float
    bound_gpu_seconds: float

    @property
    def above_bound(self) -> float:
        """Share by which the GPU-seconds lie above the bound; NaN where the bound is 0."""
        return self.gpu_seconds / self.bound_gpu_seconds - 1 if self.bound_gpu_seconds > 0 else math.nan


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A plan of the step for some settings, and its execution with the true lengths.

    Attributes:
        setting: of ``settings``, with the profile scaled to the run's own times. times: which profile that is, in words.
        simulation: the step under the planner and ``REFERENCES``.
        seconds: time that all of it took on this machine.
    """

    settings: Settings
    setting: SimulationConfig
    times: str
    logged: LoggedStep
    simulation: Simulation
    seconds: float

    @property
    def plan(self) -> Plan:
        """The plan, made for the predicted lengths."""
        return self.simulation.plans[PLANNER][0]

    @property
    def trace(self) -> Trace:
        """The execution as a trace that begins at 0 s; row i of its rollouts is response i."""
        return self.simulation.traces[PLANNER]

    @property
    def bound(self) -> ClairvoyantBound:
        """The lower bound of any policy, for the true lengths."""
        return self.simulation.bounds[0]

    @cached_property
    def outcome(self) -> Outcome:
        """The executed plan."""
        return self.outcome_of(PLANNER)

    def outcome_of(self, policy: str) -> Outcome:
        """Return the executed step under the planner or one of ``REFERENCES``."""
        row = self.simulation.steps.set_index("policy").loc[policy]
        return Outcome(int(row["actors"]), *(float(row[field.name]) for field in fields(Outcome)[1:]))

    @property
    def time_s(self) -> float:
        """Seconds that the executed step took."""
        return self.outcome.time_s

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that the executed step was billed."""
        return self.outcome.gpu_seconds

    @property
    def cost_usd(self) -> float:
        """Dollars that the executed step was billed."""
        return self.outcome.cost_usd

    @property
    def loses_to_random(self) -> bool:
        """Whether a random split has the smaller ``T^w C^(1-w)`` once both are executed."""
        w = self.settings.time_weight

        def value(of: Outcome) -> float:
            return w * math.log(max(of.time_s, 1e-12)) + (1 - w) * math.log(max(of.gpu_seconds, 1e-12))

        return value(self.outcome) > value(self.outcome_of("random")) + TIE

    def executed_on(self, response: int) -> int:
        """Return the actor that completed a response, which another one may have handed over to it."""
        return int(str(self.trace.rollouts["actor"].iloc[response]).removeprefix("actor-"))

    @cached_property
    def actors(self) -> pd.DataFrame:
        """One row per actor: ``actor, gpus, responses, prompts, shortest_tokens, longest_tokens`` (assigned, predicted),
        ``predicted_s, done_s`` (planned and executed end), ``busy_gpu_s``."""
        lengths, done = self.logged.predicted.response_tokens, self.trace.spans.groupby("holder")["end_s"].max()
        rows = []
        for i, actor in enumerate(self.plan.actors):
            tokens = lengths[np.array(actor.responses, dtype=np.int64)]
            done_s = float(done.get(f"actor-{i}", math.nan))
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


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Policies, front and bound to compare a plan with, all for the true lengths.

    Attributes:
        results: ``policy, time_s, gpu_seconds, cost_usd, bound_gpu_seconds, bound_method`` of every policy, the planner last.
        front: of plans that know the true lengths. bound: no policy is below.
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
        scale: of latency profiles, to the run's own times; by those of the log, on the GPUs of ``own``, when None.

    Attributes:
        source: the log's path, or the empty text. rollouts, run, steps: of the log. step: the one that is planned.
        stated: settings that the log states. own: the run's GPUs and profile, on which it is compared with its own times; where
            the log does not state them, those of the first plan.

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
        scale: ProfileScale | None = None,
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
        self.stated = stated_settings(trace.meta)
        self.own = own_settings(self.stated)
        self._logged: dict[str, LoggedStep] = {}
        self._trace, self._scale = trace, scale

    @property
    def scale(self) -> ProfileScale:
        """How latency profiles are scaled to the run's own times; computed once, where it was not given.

        Raises:
            InputError: neither the log nor a plan says on which GPUs it ran.
            PlanningError: the responses fit on no actor of the run's settings.
        """
        if self._scale is None:
            if self.own is None:
                source = self.source or "the log"
                raise InputError(f"{source}: does not say which GPUs and profile the run had; call plan(Settings(...)) first")
            log = OpenedLog(self._trace, pd.DataFrame({"step": []}), str(self._trace.meta.get("framework") or ""))
            setting = replace(self.own.setting, max_response_tokens=self.max_response_tokens)
            self._scale = own_times(log, setting).scale
        return self._scale

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
        """Plan the step, and run the plan, the static schedule and a random split on simulated engines with the true lengths.

        Planning is by counted work, so equal settings give equal plans however busy the machine is. Of a log that does not
        state its GPUs and profile, the first settings that are planned count as the run's own.

        Raises:
            PlanningError: the step cannot be planned on this cluster; the message says why.
            InputError: these are no settings.
        """
        if not isinstance(settings, Settings):
            raise InputError(f"settings is a {type(settings).__name__}; Settings(...) is needed")
        self.own = self.own or settings
        given = settings.setting
        setting = replace(given, latency=self.scale.of(given.latency))
        began = time.perf_counter()
        logged = self.logged(settings.predictor)
        simulation = simulate_steps([logged], setting, [*REFERENCES, PLANNER])
        times = self.scale.words(given.latency.name)
        return PlannedRun(settings, setting, times, logged, simulation, time.perf_counter() - began)

    def alternatives(
        self, planned: PlannedRun, wanted: Callable[[], bool] = lambda: True, policies: Sequence[str] = POLICIES
    ) -> Alternatives | None:
        """Run further policies under the plan's settings, and compute the front.

        Args:
            wanted: called between policies; once it returns False, the rest is left out and None is returned.
            policies: which ones; the plan's own results are not computed again.

        Raises:
            InputError: ``planned`` is no result of ``plan``.
        """
        if not isinstance(planned, PlannedRun):
            raise InputError(f"planned is a {type(planned).__name__}; the result of WhatIf.plan is needed")
        setting = planned.setting
        known = planned.simulation.steps.set_index("policy", drop=False)
        rows = []
        for name in dict.fromkeys((*policies, PLANNER)):
            if name in known.index:
                rows.append(known.loc[[name]])
                continue
            if not wanted():
                return None
            rows.append(simulate_steps([planned.logged], setting, [name]).steps)
        in_gpu_s = replace(setting, objective=Objective())
        front = pareto_front(in_gpu_s.problem(planned.logged.truth), points=FRONT_POINTS)
        return Alternatives(pd.concat(rows, ignore_index=True)[RESULT_COLUMNS], front, planned.bound)
