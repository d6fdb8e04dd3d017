"""A planned step of a log, and how it compares with the same step under other schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rlhfless.plots.style import clean
from rlhfless.run.arguments import known_arguments
from rlhfless.scheduling import PolicyError, PolicyFunction, SchedulingPolicy, as_policy
from rlhfless.simulate import Comparison, LoggedStep, SimulationConfig, simulate_steps
from solver.model.plan import Plan


@dataclass(frozen=True, eq=False, repr=False)
class PlannedStep:
    """One step of a log as a policy plans it; ``Run.plan`` makes it.

    Attributes:
        logged: the step, with predicted and true lengths.
        setting: GPUs, profile and objective.
        policy: the policy that plans it.
        assumed: assumptions about facts that are not stated, one sentence each.
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

    @known_arguments
    def compare(self, *others: str | SchedulingPolicy | PolicyFunction) -> Comparison:
        """Simulate the step with its true lengths under other policies, and under this one, which comes last.

        Args:
            others: policies to compare with: names, objects or functions; ``static`` if none is given.

        Raises:
            PolicyError: a policy is unknown, or is the planned one.
            PlanningError: a policy cannot plan the step.
        """
        own = self._policy
        policies: Sequence[str | SchedulingPolicy | PolicyFunction] = others or ("static",)
        if own.name in [as_policy(other).name for other in policies]:
            raise PolicyError(f"the plan is by {own.name}; compare it with another policy, such as 'static'")
        return replace(simulate_steps([self.logged], self.setting, [*policies, own]), assumed=self.assumed)

    @property
    def _lines(self) -> list[str]:
        return [
            *filter(None, [str(self.plan.notes.get("why", "")), self.logged.guess]),
            *(f"Assumed: {sentence}." for sentence in self.assumed),
        ]

    def __repr__(self) -> str:
        return "\n".join([repr(self.plan), *self._lines])

    def _repr_html_(self) -> str:
        return with_notes(self.plan._repr_html_(), self._lines)


def with_notes(shown: str, notes: Iterable[str]) -> str:
    """Return HTML with sentences below it."""
    return "".join([shown, *(f"<div>{clean(note, 800)}</div>" for note in notes)])
