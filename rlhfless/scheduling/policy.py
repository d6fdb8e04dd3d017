"""The protocol of a scheduling policy: it turns a workload into a plan, with or without a runtime rule; options and errors.

The types are those of the solver (problem, forecast, plan); engines, logs and results are not used here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Protocol

from rlhfless.errors import UserError
from solver.generation.random_split import check_seed
from solver.lengths.forecast import LengthForecast
from solver.model.acceptance import Acceptance
from solver.model.errors import PlanningError, as_given, check_flags
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem, check_problem
from solver.step.work import Learner, TokenWork


class PolicyError(UserError, ValueError):
    """A policy is unknown, or its parameters are wrong; the message says what would be right."""


@dataclass(frozen=True, eq=False)
class PlanningOptions:
    """Options of planning, which a policy gets together with the problem.

    Attributes:
        quick, seed: see ``solver.plan``.
        forecast: the predictor's length forecast, for policies that re-plan while the step runs; None: they use the scenarios
            of the workload.
        acceptance: expected acceptance of drafted tokens, for policies with speculative decoding; None if unknown.
        work: preparation and learning per token, for policies that overlap them with generation; None if they are not part of
            the step. learner: on which GPUs they run.
        sizes: latency models of actors of other sizes (same language model and GPUs), which policy ``solver`` may also start.
        static: the plan of policy ``solver`` for the same problem, if it has been made already, for policies that start from
            it.

    Raises:
        PlanningError: an option is of the wrong type or out of its range; the message names it.
    """

    quick: bool = False
    seed: int = 0
    forecast: LengthForecast | None = None
    acceptance: Acceptance | None = None
    work: TokenWork | None = None
    learner: Learner = field(default_factory=Learner)
    sizes: tuple[LatencyModel, ...] = ()
    static: Plan | None = None

    def __post_init__(self) -> None:
        check_flags(quick=self.quick)
        check_seed(self.seed)
        if not isinstance(self.forecast, LengthForecast | None):
            raise PlanningError(f"forecast is {as_given(self.forecast)}; a LengthForecast or None is needed")
        if not isinstance(self.acceptance, Acceptance | None):
            raise PlanningError(
                f"acceptance is {as_given(self.acceptance)}; an Acceptance (solver.model.acceptance) or None is needed"
            )
        if not isinstance(self.work, TokenWork | None):
            raise PlanningError(f"work is {as_given(self.work)}; a TokenWork (solver.step.work) or None is needed")
        if not isinstance(self.learner, Learner):
            raise PlanningError(f"learner is {as_given(self.learner)}; a Learner (solver.step.work) is needed")
        if not isinstance(self.sizes, tuple) or not all(isinstance(model, LatencyModel) for model in self.sizes):
            raise PlanningError(f"sizes is {as_given(self.sizes)}; a tuple of LatencyModels is needed")


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
            problem: the step, with predicted lengths (true lengths for clairvoyant policies) and one kind of actors. A policy
                that uses another number of actors or another release rule than the problem states says so in its own
                documentation.

        Raises:
            PlanningError: an argument is of the wrong type, or the forecast has another number of responses.
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


def check_takes(name: str, function: Callable[..., Any]) -> None:
    """Refuse a policy's function, or method ``plan``, that cannot be called with ``(problem, options)`` (a PolicyError)."""
    try:
        takes = signature(function)
    except ValueError:  # a function of C may not say what it takes
        return
    try:
        takes.bind(None, None)
    except TypeError:
        raise PolicyError(f"policy {name!r} takes {takes}; a policy takes (problem, options)") from None


PolicyFunction = Callable[[PlanningProblem, PlanningOptions], Plan]
"""Returns the plan of one step; it plans with predicted lengths."""


@dataclass(frozen=True)
class FunctionPolicy:
    """A policy made from a function ``(problem, options) -> Plan``.

    Args:
        function: returns a ``Plan``, as ``solver.random_split`` and ``solver.plan`` do.
        name: name in plans, results and traces.
        clairvoyant: the function gets the true lengths.

    Raises:
        PolicyError: the function cannot be called with these two arguments.
    """

    function: PolicyFunction
    name: str
    clairvoyant: bool = False

    def __post_init__(self) -> None:
        check_takes(self.name, self.function)

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``.

        Raises:
            PolicyError: the function returned no plan.
        """
        check_inputs(problem, options)
        made = self.function(problem, options)
        if not isinstance(made, Plan):
            raise PolicyError(
                f"policy {self.name!r} returned {as_given(made)}; a Plan is needed, such as solver.random_split's"
            )
        return replace(made, policy=self.name)


@dataclass(frozen=True)
class PlanningTime:
    """Seconds of one step's planning, measured on this machine, and the part of it that delays generation.

    A step can be planned as soon as the generation of the step before has ended: predictions are made from lengths known by
    then. So planning overlaps preparation and learning of that step, and only what is left of it delays generation.

    Attributes:
        planning_s: of predicting and planning.
        planning_delay_s: of these, by how many generation starts later.
    """

    planning_s: float
    planning_delay_s: float

    @classmethod
    def overlapping(cls, planning_s: float, step_before_s: float) -> PlanningTime:
        """Return the time of planning that overlaps the step before.

        Args:
            step_before_s: seconds that the step before prepares and learns after its generation; 0 for the first step.
        """
        return cls(planning_s, max(0.0, planning_s - step_before_s))
