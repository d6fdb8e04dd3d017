"""Interface of the lower bounds on the cost of plans within a makespan, and what follows from any of them.

Two classes implement it: ``single_kind.late_opening`` for one kind of actors, which takes microseconds, and
``mixed_kinds.sequence_bound`` for several offers. Both bound the cost of generation of every plan whose makespan is in an
interval; that cost never rises with the upper end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from solver.model.problem import PlanningProblem
from solver.planning.work_budget import WorkBudget
from solver.timing.step_cost import StepObjective

HALVINGS = 40
NARROW = 1e-9  # relative width of makespans at which bisection ends


@dataclass(frozen=True)
class CostBound:
    """A lower bound on the cost of generation of the plans with makespans in an interval.

    Attributes:
        cost: infinite when there is no such plan.
        loose: whether some combinations of actors count with a rough bound only.
        actors: (offer, opening position among the sorted items) of actors that may make a good plan; empty if unknown.
    """

    cost: float
    loose: bool = False
    actors: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class PlanLimits:
    """Limits on plans that a bound counts with: numbers of actors, and when actors release their GPUs.

    Attributes:
        after_s: seconds of the step after generation, for which ``release="step"`` holds the GPUs; else 0.
    """

    min_actors: int = 1
    max_actors: int | None = None
    release: str = "done"
    after_s: float = 0.0

    @classmethod
    def of_problem(cls, problem: PlanningProblem, min_actors: int | None = None) -> PlanLimits:
        """Return the limits of a problem; ``min_actors`` replaces the least number of actors that it needs."""
        least = problem.needed_actors if min_actors is None else min_actors
        return cls(least, problem.max_actors, problem.release, problem.phases.seconds if problem.release == "step" else 0.0)


class Bound(Protocol):
    """Lower bound on the cost of generation as a function of the makespan, for one set of lengths."""

    work_budget: WorkBudget

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan of every plan."""

    @property
    def longest_makespan_s(self) -> float:
        """Return a makespan from which on the bound no longer falls."""

    def at(self, makespan_s: float, stop_above: float = math.inf, low_s: float = 0.0) -> CostBound:
        """Return the bound for plans with makespans between ``low_s`` and ``makespan_s``, or ``stop_above`` if it is higher."""


def least_makespan_s(bound: Bound) -> float:
    """Return a lower bound on the makespan, by bisection as far as the work budget lasts; infinite when there is no plan."""
    low, high = bound.shortest_makespan_s, bound.longest_makespan_s
    for _ in range(HALVINGS):
        if bound.work_budget.over or high - low <= NARROW * high:
            break
        middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
        low, high = (low, middle) if math.isfinite(bound.at(middle).cost) else (middle, high)
    impossible = high == bound.longest_makespan_s and math.isinf(bound.at(high).cost)
    return math.inf if impossible else low


def least_step(bound: Bound, goal: StepObjective) -> float:
    """Return a lower bound on what the objective limits: time of the step under a deadline, cost under a budget."""
    if goal.objective.deadline_s is not None:
        return goal.phases.step_time_s(least_makespan_s(bound))
    cheapest = bound.at(bound.longest_makespan_s).cost
    return float(goal.step(bound.shortest_makespan_s, cheapest if math.isfinite(cheapest) else 0.0)[1])
