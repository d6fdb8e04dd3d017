"""Simulates the schedules of the report, the ladder of ideas and the published policies, on some steps of a log.

Input is a log of one run and a ``SimulationConfig``; output are the results as ``Schedules``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from rlhfless.analysis import evenly
from rlhfless.plots.bound_curve import Bound
from rlhfless.scheduling import SchedulingPolicy, ladder
from rlhfless.simulate import LoggedStep, Simulation, SimulationConfig, simulate
from rlhfless.trace import OpenedLog, Trace, TraceError
from solver.model.objective import NonGenerationPhases

SHOWN = {
    "static": "all actors; equal chunks of prompts in the given order; GPUs allocated until the last response",
    "least-loaded": "all actors; the next prompt goes to the actor with the fewest responses in flight",
    "rlhfuse": "as static; when few responses are left, they all migrate at once (global cut)",
    "rlhfless": "groups of equal count, sorted by predicted length; an actor's last responses migrate (local cut)",
    "random": "right-sized number of actors; prompts assigned at random; GPUs released when an actor is done",
    "spread": "as random, with the responses of each prompt spread over the actors, round-robin",
    "fold": "as spread; nearly empty actors hand their responses over to others during the step; needs no predictions",
    "solver": "assigns responses by predicted lengths where this also helps on lengths it did not plan with, else as random",
    "solver+replan": "as solver; responses migrate during the step where the lengths observed so far make it pay off",
    "oracle+replan": "as solver+replan with the true lengths, which are unknown beforehand in practice",
    "oracle": "as solver with the true lengths, without migration",
}
"""Policies of the simulated section, and what they do."""


MAX_STEPS = 8
"""Steps that are simulated where nobody says how many."""

MAX_RESPONSES = 10_000
"""About a minute of simulation, since hand-overs take time that grows with the responses of a step."""

HELD = {"least-loaded, held": "as least-loaded; GPUs allocated until the last response"}
"""The same of first rungs that are in no other list."""


@dataclass(frozen=True, eq=False)
class Schedules:
    """Simulated schedules of some steps of a log.

    Attributes:
        simulation: the results of ``policies`` and the ladder, with the chosen steps and their bounds.
        all_steps: number of steps in the log. phases: the step outside generation.
        ladder: names of its rungs; the first is the run's own dispatch, the base of the comparison.
        time_weight: of the objective.
    """

    simulation: Simulation
    all_steps: int
    phases: NonGenerationPhases
    ladder: tuple[str, ...]
    time_weight: float

    @property
    def policies(self) -> dict[str, str]:
        """The policies that the page compares: ``SHOWN``, and the first rung where it is not among them."""
        first = self.ladder[0]
        return SHOWN if first in SHOWN else {first: HELD[first], **SHOWN}

    @property
    def logged(self) -> tuple[LoggedStep, ...]:
        """The chosen steps."""
        return self.simulation.logged

    @property
    def shown(self) -> tuple[LoggedStep, ...]:
        """Return the steps that figures sum up: those with history, or all if none has any."""
        return with_history(self.logged)

    def bound_of(self, logged: LoggedStep) -> Bound:
        """Return the least GPU-seconds of a whole chosen step at a given time of the step."""
        of_generation = self.simulation.bounds[self.logged.index(logged)]

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
        rows = self.simulation.steps
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

    Raises:
        TraceError: it is.
    """
    rollouts = log.trace.rollouts
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
) -> Schedules:
    """Simulate the ladder and the published policies on some steps, evenly chosen.

    Args:
        trace: of one run. setting: cluster, latency and objective; with ``drafts`` the ladder has a rung for speculation.
        max_steps, max_responses: see ``simulated_steps``.
        dispatch: how the run assigned its responses; see ``ladder``.
        further: additional policies to simulate.
    """
    rollouts = trace.rollouts
    steps = simulated_steps(rollouts, max_steps, max_responses)
    rungs = ladder(dispatch, drafting=setting.drafts is not None)
    baselines = ("static", "least-loaded", "rlhfuse", "rlhfless", "solver", "oracle", "oracle+replan")
    names = tuple(rung.name for rung in rungs)
    others = (name for name in baselines if name not in names)
    policies: list[str | SchedulingPolicy] = [*others, *rungs, *further]  # rungs that re-plan start from plans of the others
    result = simulate(rollouts, setting, policies, steps=steps)
    return Schedules(result, int(rollouts["step"].nunique()), setting.phases, names, setting.objective.time_weight)
