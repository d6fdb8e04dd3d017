"""Defines ``StepPlanObjective``: what a step plan is chosen for when GPU-seconds or dollars count beside the period.

Time T is the period. Cost C is what GPUs are held for per step. ``held="calls"`` counts the GPUs of calls and reallocations for
their seconds, so waiting GPUs are free. ``held="step"`` counts all GPUs of the cluster for the whole period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.dataflow.options import CallOptions, FloatArray, IntArray
from solver.model.errors import PlanningError, as_given
from solver.model.objective import Objective

HELD = ("calls", "step")
TOLERANCE = 1e-9  # share by which limits may be exceeded, as in Objective.value


@dataclass(frozen=True)
class StepPlanObjective:
    """Weighs the period of steps against their cost, or limits one of them.

    Args:
        objective: weights, a deadline or a budget. Its reference is the plan of the shortest period that was found.
        held: ``calls``: GPUs of a call or a reallocation are held for its seconds. ``step``: all GPUs are held all the time.

    Raises:
        PlanningError: the objective is none, or ``held`` is unknown.

    Example:
        >>> from solver import Objective
        >>> from solver.dataflow import StepPlanObjective
        >>> StepPlanObjective(Objective(deadline_s=30.0)).held
        'calls'
    """

    objective: Objective
    held: str = "calls"

    def __post_init__(self) -> None:
        if not isinstance(self.objective, Objective):
            raise PlanningError(f"objective is {as_given(self.objective)}; an Objective is needed")
        if not isinstance(self.held, str) or self.held not in HELD:
            raise PlanningError(f"held is {as_given(self.held)}; choose one of {', '.join(HELD)}")


@dataclass(frozen=True)
class StepPlanValue:
    """The number to minimise, for arrays of periods and costs: ``Objective.value``.

    Attributes:
        objective: as given. reference: period and cost that weights refer to.
    """

    objective: Objective
    reference: tuple[float, float]

    def of(self, period_s: FloatArray, cost: FloatArray) -> FloatArray:
        """Return (P,) values, infinite beyond a limit. Lower bounds on period and cost give lower bounds on the value."""
        objective = self.objective
        if objective.deadline_s is not None:
            return np.asarray(np.where(period_s <= objective.deadline_s * (1 + TOLERANCE), cost, math.inf))
        if objective.budget is not None:
            return np.asarray(np.where(cost <= objective.budget * (1 + TOLERANCE), period_s, math.inf))
        time_ref, cost_ref = self.reference
        return np.asarray(
            objective.time_weight * period_s / time_ref + (1.0 - objective.time_weight) * cost / cost_ref, dtype=float
        )

    def longest_s(self, value: float, least_cost: float) -> float:
        """Return a period that no plan reaches whose value is below this one and whose cost is at least ``least_cost``."""
        objective = self.objective
        if objective.deadline_s is not None:
            return objective.deadline_s * (1 + 2 * TOLERANCE)
        if objective.budget is not None:
            return value
        time_ref, cost_ref = self.reference
        if objective.time_weight == 0:
            return math.inf
        rest = value - (1.0 - objective.time_weight) * least_cost / cost_ref
        return rest * time_ref / objective.time_weight * (1 + TOLERANCE)

    def dearest(self, value: float) -> float:
        """Return a cost that no plan exceeds whose value is below this one."""
        objective = self.objective
        if objective.deadline_s is not None:
            return value
        if objective.budget is not None:
            return objective.budget * (1 + TOLERANCE)
        if objective.time_weight == 1:
            return math.inf
        return value * self.reference[1] / (1.0 - objective.time_weight)


def plans_gpu_s(options: CallOptions, plans: IntArray) -> FloatArray:
    """Return (P,) GPU-seconds for which calls and reallocations of a step hold their GPUs."""
    assert not options.freed_early, "costs of generation plans are not counted here"
    return np.asarray((options.durations(plans) * options.meeting(plans)[1]).sum(axis=1))
