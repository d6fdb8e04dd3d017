"""Simulates the schedules of the report, the ladder of ideas and the published policies, on some steps of a log.

Input is a log of one run and a ``SimulationConfig``; output are the results as ``Schedules``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields

import pandas as pd

from rlhfless.analysis import evenly
from rlhfless.analysis.framework_defaults import DRAWN
from rlhfless.plots.bound_curve import Bound
from rlhfless.scheduling import POLICY_TABLE, SchedulingPolicy, ladder, policy_names
from rlhfless.simulate import Comparison, LoggedStep, SimulationConfig, simulate
from rlhfless.trace import OpenedLog, Trace, TraceError
from solver.model.objective import NonGenerationPhases

SHOWN = {name: POLICY_TABLE[name].sentence for name in policy_names("dispatch", "published", "simple", "ours", "oracle")}
"""Policies of the simulated section, and what they do."""


MAX_STEPS = 8
"""Steps that are simulated where nobody says how many."""

MAX_RESPONSES = 10_000
"""About a minute of simulation, since hand-overs take time that grows with the responses of a step."""


@dataclass(frozen=True, eq=False, repr=False)
class Schedules(Comparison):
    """Some steps of a log under ``policies`` and the ladder, with their bounds.

    Attributes:
        all_steps: number of steps in the log. phases: the step outside generation.
        ladder: names of its rungs; the first is the run's own dispatch, the base of the comparison.
        time_weight: of the objective.
    """

    all_steps: int = field(kw_only=True)
    phases: NonGenerationPhases = field(kw_only=True)
    ladder: tuple[str, ...] = field(kw_only=True)
    time_weight: float = field(kw_only=True)

    @property
    def policies(self) -> dict[str, str]:
        """The policies that the page compares: ``SHOWN``, and the first rung where it is not among them."""
        first = self.ladder[0]
        return {first: POLICY_TABLE[first].sentence} | SHOWN

    @property
    def shown(self) -> tuple[LoggedStep, ...]:
        """Return the steps that figures sum up: those with history, or all if none has any."""
        return with_history(self.logged)

    def bound_of(self, logged: LoggedStep) -> Bound:
        """Return the least GPU-seconds of a whole chosen step at a given time of the step."""
        of_generation = self.bounds[self.logged.index(logged)]

        def bound(time_s: float) -> float:
            generation_s = time_s - (
                self.phases.seconds if self.phases.learner_gpus else 0.0
            )  # else no GPU is held in the rest
            return self.phases.step_gpu_s(generation_s, of_generation.gpu_seconds(generation_s))

        return bound

    @property
    def has_history(self) -> bool:
        """Whether any chosen step could be predicted from history."""
        return any(step.has_history for step in self.logged)

    def results(self, policies: Sequence[str], step: int | None = None) -> pd.DataFrame:
        """Return the rows of the policies, in the given order, for the steps that figures show or for one step."""
        rows = self.table
        rows = rows[rows["has_history"] == self.has_history] if step is None else rows[rows["step"] == step]
        return pd.concat([rows[rows["policy"] == policy] for policy in policies], ignore_index=True)


def simulated_steps(rollouts: pd.DataFrame, max_steps: int = MAX_STEPS, max_responses: int = MAX_RESPONSES) -> list[int]:
    """Return the steps that are simulated, evenly chosen: in the report and in its figures.

    Args:
        rollouts: of one run. max_steps, max_responses: limits on the steps and (approximately) their responses in all; the last
            step is always used.
    """
    steps = sorted(int(step) for step in rollouts["step"].unique())
    return evenly(steps, min(max_steps, max(1, max_responses * len(steps) // len(rollouts))))


def with_history(logged: Sequence[LoggedStep]) -> tuple[LoggedStep, ...]:
    """Return the steps whose lengths could be predicted from earlier ones, or all if none could: savings are of these."""
    any_has = any(step.has_history for step in logged)
    return tuple(step for step in logged if step.has_history == any_has)


def refuse_requests_without_steps(log: OpenedLog) -> None:
    """Refuse a log that is one step of very many requests, each to a prompt of its own: nobody trains on such a step.

    A trace that says when GPUs were allocated has the steps that ran, and so have scalars of which lengths were drawn: those
    do not say which responses share a prompt.

    Raises:
        TraceError: it is.
    """
    rollouts = log.trace.rollouts
    if len(log.trace.allocations) or DRAWN in log.trace.meta:
        return
    if len(log.trace.steps) == 1 and len(rollouts) > MAX_RESPONSES and rollouts["prompt_id"].nunique() == len(rollouts):
        raise TraceError(
            f"{log.trace.source or 'the log'}: has one step of {len(rollouts):,} requests, each to a prompt of its own; say "
            "how many are a step, such as 128 with --map step=row/128, as what GPUs wait for depends on it"
        )


def simulate_schedules(
    trace: Trace,
    setting: SimulationConfig,
    max_steps: int,
    max_responses: int = MAX_RESPONSES,
    *,
    dispatch: str = "static",
    further: Sequence[SchedulingPolicy] = (),
    only: Collection[str] | None = None,
) -> Schedules:
    """Simulate the ladder and the published policies on some steps, evenly chosen.

    Args:
        trace: of one run. setting: cluster, latency and objective; with ``drafts`` the ladder has a rung for speculation.
        max_steps, max_responses: see ``simulated_steps``.
        dispatch: how the run assigned its responses; see ``ladder``.
        further: additional policies to simulate. only: names of those that are simulated; all when None.
    """
    rollouts = trace.rollouts
    steps = simulated_steps(rollouts, max_steps, max_responses)
    rungs = ladder(dispatch, drafting=setting.drafts is not None)
    names = tuple(rung.name for rung in rungs)
    others = (name for name in SHOWN if name not in names)
    policies: list[str | SchedulingPolicy] = [*others, *rungs, *further]  # rungs that re-plan start from plans of the others
    if only is not None:
        policies = [one for one in policies if (one if isinstance(one, str) else one.name) in only]
    found = simulate(rollouts, setting, policies, steps=steps)
    return Schedules(
        **{one.name: getattr(found, one.name) for one in fields(found)},
        all_steps=int(rollouts["step"].nunique()),
        phases=setting.phases,
        ladder=names,
        time_weight=setting.objective.time_weight,
    )
