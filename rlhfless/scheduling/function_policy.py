"""A plain function as a scheduling policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature

from rlhfless.scheduling.policy import PlanningOptions, PolicyError, check_inputs
from solver.model.errors import as_given
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem

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
        try:
            takes = signature(self.function)
        except ValueError:  # a function of C may not say what it takes
            return
        try:
            takes.bind(None, None)
        except TypeError:
            raise PolicyError(f"policy {self.name!r} takes {takes}; a policy takes (problem, options)") from None

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
