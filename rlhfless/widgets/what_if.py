"""Plans one step of a run under other settings and simulates it: ``run.explore()`` without its widgets.

Inputs are a loaded run and ``Settings``. Plan, execution and bound are those of ``run.plan(step)`` and its ``compare``, so that
a step has the same numbers wherever it is shown. The results come in two parts, because the user of a slider waits for the
first part. First comes the plan with its execution, beside the static schedule and a random split; then the other policies and
the front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import pandas as pd

from rlhfless.analysis import ProfileScale
from rlhfless.errors import InputError
from rlhfless.predict import unknown_predictor
from rlhfless.scheduling import policy_names
from rlhfless.simulate import (
    Comparison,
    LoggedStep,
    SimulationConfig,
    bound_of_plan,
    logged_steps,
    simulate_steps,
)
from rlhfless.simulate.variants import joined
from rlhfless.trace import Trace
from rlhfless.widgets.loaded_run import LoadedRun, RunWithTimes
from rlhfless.widgets.settings import PREDICTORS, Settings
from solver.bounds.bound import Bound
from solver.generation.pareto_front import Front, pareto_front
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem

PLANNER = "solver"
"""The policy that plans the step, as in ``run.plan``."""
REFERENCES = ("static", "random")
"""What every plan stands beside from the start: what a run without a planner does, and what needs no prediction."""
POLICIES = policy_names("dispatch", "simple", "published", "oracle", "ours", typical=True)
"""The policies to compare with, the planner last; ``simulate`` has all."""
FRONT_POINTS = 16
TIE = 1e-9  # share of T^w C^(1-w)


@dataclass(frozen=True, eq=False, repr=False)
class WhatIfPlan(Comparison):
    """The step as planned for some settings, beside ``REFERENCES``; all run with the true lengths. ``WhatIf.plan`` makes it.

    Attributes:
        settings: that it was planned for, with what was None taken from the run.
        setting: the same, with the profile scaled to the run's own times.
    """

    settings: Settings = field(kw_only=True)
    setting: SimulationConfig = field(kw_only=True)

    @property
    def plan(self) -> Plan:
        """The plan, made for the predicted lengths."""
        return self.plans[PLANNER][0]

    @property
    def trace(self) -> Trace:
        """The execution as a trace that begins at 0 s; row i of its rollouts is response i."""
        return self.traces[PLANNER]

    @property
    def bound(self) -> Bound | None:
        """The lower bound of any policy whose actors have one size, for the true lengths; None where the plan mixes sizes."""
        return bound_of_plan(self.setting, self.logged[0], self.plan)

    @cached_property
    def executed(self) -> pd.Series:
        """The executed plan, a row of ``table``."""
        return self.executed_under(PLANNER)

    def executed_under(self, policy: str) -> pd.Series:
        """Return the executed step under the planner or one of ``REFERENCES``, a row of ``table``."""
        return self.table.set_index("policy").loc[policy]

    def worse_than(self, policy: str) -> float:
        """Return by which share ``T^w C^(1-w)`` of the plan is above that of one of ``REFERENCES``, once both are executed; 0.0
        where it is not."""
        own, other = self.executed, self.executed_under(policy)
        value = Objective(self.setting.objective.time_weight).value
        reached, of_other = (value(float(row["time_s"]), float(row["gpu_seconds"])) for row in (own, other))
        if reached <= of_other * (1 + TIE):
            return 0.0
        return reached / of_other - 1 if of_other > 0 else math.inf

    def executed_on(self, response: int) -> int:
        """Return the actor that completed a response, which another one may have handed over to it."""
        return int(str(self.trace.rollouts["actor"].iloc[response]).removeprefix("actor-"))

    @cached_property
    def actors(self) -> pd.DataFrame:
        """One row per actor: ``actor, gpus, responses, prompts, shortest_tokens, longest_tokens`` (assigned, predicted),
        ``predicted_s, done_s`` (planned and executed end), ``busy_gpu_s``."""
        lengths, done = self.logged[0].predicted.response_tokens, self.trace.spans.groupby("holder")["end_s"].max()
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


class WhatIf:
    """One step of a run, to be planned under any settings.

    Args:
        run: as of ``rlhfless.load``. step: to plan; the last one when None.
        scale: of latency profiles, to the run's own times; that of the run when None.

    Attributes:
        run: the run. step: the one that is planned.

    Raises:
        InputError: this is no loaded run, or it has no such step.
        LogWithoutResponses: the log has none.
    """

    def __init__(self, run: RunWithTimes, step: int | None = None, *, scale: ProfileScale | None = None) -> None:
        if not isinstance(run, LoadedRun):
            raise InputError(f"run is of type {type(run).__name__}; what rlhfless.load returns is needed")
        if step is not None and step not in run.steps:
            raise InputError(f"the log has no step {step!r:.80}; its steps are {run.steps[0]} to {run.steps[-1]}")
        self.run, self.rollouts = run, run.trace.rollouts
        self.step = run.steps[-1] if step is None else int(step)
        self._logged: dict[str, LoggedStep] = {}
        self._scale = scale

    @property
    def scale(self) -> ProfileScale:
        """How latency profiles are scaled to the run's own times.

        Raises:
            InputError: nobody states on how many GPUs it ran.
            PlanningError: the responses fit on no actor of the run's settings.
        """
        return self.run.times.scale if self._scale is None else self._scale

    def logged(self, predictor: str) -> LoggedStep:
        """Return the step with the lengths that a predictor gives it from all earlier steps; computed once.

        Raises:
            InputError: there is no such predictor.
        """
        if predictor not in PREDICTORS:
            raise InputError(unknown_predictor(predictor, PREDICTORS))
        if predictor not in self._logged:
            steps = logged_steps(self.rollouts, PREDICTORS[predictor](), self.run.max_response_tokens, steps=[self.step])
            self._logged[predictor] = next(steps)
        return self._logged[predictor]

    def plan(self, settings: Settings) -> WhatIfPlan:
        """Plan the step, and run the plan, the static schedule and a random split on simulated engines with the true lengths.

        What the settings leave None is as in the run.

        Planning is by counted work, so equal settings give equal plans however busy the machine is.

        Raises:
            PlanningError: the step cannot be planned on this cluster; the message says why.
            InputError: these are no settings.
        """
        if not isinstance(settings, Settings):
            raise InputError(f"settings is of type {type(settings).__name__}; Settings(...) is needed")
        settings = settings.of_run(self.run)
        given = settings.setting
        sizes = self.scale.sizes_of(settings.profile or self.run.profile) if settings.any_size else ()
        setting = replace(given, latency=self.scale.of(given.latency), sizes=sizes)
        found = simulate_steps([self.logged(settings.predictor)], setting, [*REFERENCES, PLANNER])
        shown = {one.name: getattr(found, one.name) for one in fields(found)} | {"times": self.scale.words(given.latency.name)}
        return WhatIfPlan(**shown, settings=settings, setting=setting)

    def alternatives(
        self, planned: WhatIfPlan, wanted: Callable[[], bool] = lambda: True, policies: Sequence[str] = POLICIES
    ) -> Comparison | None:
        """Return the plan beside further policies under its settings, all run with the true lengths; the planner is the last.

        Args:
            wanted: called between policies; once it returns False, the rest is left out and None is returned.
            policies: which ones; the plan's own results are not computed again.

        Raises:
            InputError: ``planned`` is no result of ``plan``.
        """
        _refuse_no_plan(planned)
        found: dict[str, tuple[Comparison, str]] = {}
        for name in dict.fromkeys((*policies, PLANNER)):
            if name in (*REFERENCES, PLANNER):
                found[name] = planned, name
            elif wanted():
                found[name] = simulate_steps(planned.logged, planned.setting, [name]), name
            else:
                return None
        return joined(found, {}, same=True)

    def front(self, planned: WhatIfPlan) -> Front:
        """Return the front of plans that know the true lengths, with actors of the plan's sizes.

        Raises:
            InputError: ``planned`` is no result of ``plan``.
        """
        _refuse_no_plan(planned)
        return pareto_front(_problem_of_front(planned.setting, planned), points=FRONT_POINTS)


def _refuse_no_plan(planned: object) -> None:
    if not isinstance(planned, WhatIfPlan):
        raise InputError(f"planned is of type {type(planned).__name__}; the result of WhatIf.plan is needed")


def _problem_of_front(setting: SimulationConfig, planned: WhatIfPlan) -> PlanningProblem:
    """Return the step with its true lengths and actors of the plan's size, or of all sizes where the plan mixes them."""
    used = {len(actor.gpu_ids) for actor in planned.plan.actors}
    in_gpu_s = replace(setting, objective=Objective())
    for alone in in_gpu_s.each_size:
        if {alone.cluster.gpus_per_actor} == used:
            return alone.problem(planned.logged[0].truth)
    cluster, latency = setting.offered
    return replace(in_gpu_s.problem(planned.logged[0].truth), cluster=cluster, latency=latency)
