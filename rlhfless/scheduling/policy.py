"""The protocol of a scheduling policy: it turns a workload into a plan, with or without a runtime rule.

The types are those of the solver (problem, forecast, plan); engines, logs and results are not used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rlhfless.errors import UserError
from solver.lengths.forecast import LengthForecast
from solver.model.acceptance import Acceptance
from solver.model.errors import PlanningError, as_given
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem, check_problem
from solver.planning.search_options import check_search
from solver.stage_fusion.token_work import TokenWork


class PolicyError(UserError, ValueError):
    """Raised where a policy is unknown or its parameters are wrong; the message says what would be right."""


@dataclass(frozen=True, eq=False)
class PlanningOptions:
    """How a policy plans a problem.

    Attributes:
        time_limit_s, seed: see ``solver.plan_generation``.
        forecast: the predictor's own forecast of the problem's lengths, for policies that re-plan while the step runs; None
            where they use the scenarios of the workload.
        acceptance: the survival of drafts to expect, for policies that decode with drafts; None where it is unknown.
        work: preparation and learning per token, for policies that place them into the step; None where they are no part of it.
        static: the plan of policy ``solver`` for the same problem, where it is made already, for policies that start from it.

    Raises:
        PlanningError: an option is of the wrong type or out of its range; the message names it.
    """

    time_limit_s: float = 1.0
    seed: int = 0
    forecast: LengthForecast | None = None
    acceptance: Acceptance | None = None
    work: TokenWork | None = None
    static: Plan | None = None

    def __post_init__(self) -> None:
        check_search(self.time_limit_s, self.seed)
        if not isinstance(self.forecast, LengthForecast | None):
            raise PlanningError(f"forecast is {as_given(self.forecast)}; a LengthForecast or None is needed")
        if not isinstance(self.acceptance, Acceptance | None):
            raise PlanningError(f"acceptance is {as_given(self.acceptance)}; a solver.Acceptance or None is needed")
        if not isinstance(self.work, TokenWork | None):
            raise PlanningError(f"work is {as_given(self.work)}; a solver.TokenWork or None is needed")


class SchedulingPolicy(Protocol):
    """Turns a planning problem into a plan."""

    @property
    def name(self) -> str:
        """The policy's name on the command line."""
        ...

    @property
    def clairvoyant(self) -> bool:
        """Whether the policy plans with true lengths."""
        ...

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """Return the plan of one step.

        Args:
            problem: with predicted lengths, or true ones for clairvoyant policies; one kind of actors. Policies that take other
                numbers of actors or another release than the problem says describe it.

        Raises:
            PlanningError: an argument is of the wrong type, or the forecast is of another number of responses.
        """
        ...


def check_inputs(problem: Any, options: Any) -> None:
    """Refuse what no policy can plan with: other types, or a forecast of another number of responses (a PlanningError).

    Every policy calls it first, unless the first thing that it does is to let another policy plan.
    """
    check_problem(problem)
    if not isinstance(options, PlanningOptions):
        raise PlanningError(f"options is {as_given(options)}; a PlanningOptions is needed")
    if options.forecast is not None:
        options.forecast.check_size(len(problem.workload))
