"""A planned step of a log, and how it compares with the same step under other schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots import plot_before_after
from rlhfless.plots.before_after import fallback_of
from rlhfless.plots.style import clean
from rlhfless.scheduling import PolicyError, PolicyFunction, SchedulingPolicy, as_policy
from rlhfless.simulate import LoggedStep, Simulation, SimulationConfig, simulate_steps
from solver.model.plan import Plan


@dataclass(frozen=True, eq=False, repr=False)
class PlannedStep:
    """One step of a log as a policy plans it; ``Run.plan`` makes it.

    Attributes:
        logged: the step, with the lengths predicted before it and its true ones. setting: GPUs, profile and objective.
        policy: the policy that plans it. assumed: what nobody stated and is assumed, one sentence each.
    """

    logged: LoggedStep
    setting: SimulationConfig
    policy: str | SchedulingPolicy | PolicyFunction
    assumed: tuple[str, ...] = ()

    @cached_property
    def plan(self) -> Plan:
        """The plan, made for the predicted lengths."""
        policy = self._policy
        return policy.plan(*self.logged.inputs(self.setting, policy.clairvoyant))

    @property
    def _policy(self) -> SchedulingPolicy:
        return as_policy(self.policy, tau=self.setting.tau)

    def compare(self, *others: str | SchedulingPolicy | PolicyFunction) -> StepComparison:
        """Run the step with its true lengths under other policies and under this one, on simulated engines.

        Args:
            others: names, objects or functions; ``static`` if none is given.

        Raises:
            PolicyError: a policy is unknown, or is the planned one.
            PlanningError: a policy cannot plan the step.
        """
        own = self._policy
        policies: Sequence[str | SchedulingPolicy | PolicyFunction] = others or ("static",)
        if own.name in [as_policy(other).name for other in policies]:
            raise PolicyError(f"the plan is by {own.name}; compare it with another policy, such as 'static'")
        return StepComparison(simulate_steps([self.logged], self.setting, [*policies, own]), self.assumed)

    @property
    def _lines(self) -> list[str]:
        return [*filter(None, [self.logged.guess]), *(f"Assumed: {sentence}." for sentence in self.assumed)]

    def __repr__(self) -> str:
        return "\n".join([repr(self.plan), *self._lines])

    def _repr_html_(self) -> str:
        return with_notes(self.plan._repr_html_(), self._lines)


def with_notes(shown: str, notes: Iterable[str]) -> str:
    """Return HTML with sentences below it."""
    return "".join([shown, *(f"<div>{clean(note, 240)}</div>" for note in notes)])


@dataclass(frozen=True, eq=False, repr=False)
class StepComparison:
    """One step under several schedules, the planned one last.

    Attributes:
        simulation: its results, traces and bound. assumed: as of ``PlannedStep``.
    """

    simulation: Simulation
    assumed: tuple[str, ...] = ()

    @property
    def results(self) -> pd.DataFrame:
        """One row per schedule: ``policy, actors, time_s, gpu_seconds, idle_gpu_seconds, cost_usd, bound_gpu_seconds``."""
        columns = ["policy", "actors", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "bound_gpu_seconds"]
        return self.simulation.steps[columns].reset_index(drop=True)

    def plot(self) -> go.Figure:
        """Return the timelines on one time axis, the planned one below, and the cost of each beside the bound.

        The title names the step, as the run's other steps differ.
        """
        fig = plot_before_after(self.simulation.traces, bound=self.simulation.bounds[0].gpu_seconds)
        (step,) = self.simulation.logged
        return fig.update_layout(title_text=fig.layout.title.text.replace("After (", f"Step {step.step}: after (", 1))

    @property
    def _lines(self) -> list[str]:
        """What of the lengths is a guess, and what is assumed; which schedules run a fallback, and why, one line each."""
        (step,) = self.simulation.logged
        said = {name: fallback_of(trace, step.step) for name, trace in self.simulation.traces.items()}
        assumed = (f"Assumed: {sentence}." for sentence in self.assumed)
        return [*filter(None, [step.guess]), *assumed, *(f"{name} ran {words}" for name, words in said.items() if words)]

    def __repr__(self) -> str:
        return "\n".join([repr(self.simulation), *(f"  {line}" for line in self._lines)])

    def _repr_html_(self) -> str:
        return with_notes(self.simulation._repr_html_(), self._lines)
