"""Defines ``StepPlanObjective``: what a step plan is chosen for when GPU-seconds or dollars count beside the period.

Time T is the period. Cost C is what GPUs are held for per step. ``held="calls"`` counts the GPUs of calls and reallocations for
their seconds, so waiting GPUs are free. ``held="step"`` counts all GPUs of the cluster for the whole period.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.layouts.options import CallOptions, FloatArray, IntArray
from solver.model.errors import PlanningError, as_given
from solver.model.objective import Objective

HELD = ("calls", "step")


@dataclass(frozen=True)
class StepPlanObjective:
    """The objective of a step plan: weigh the time per step against cost, or limit one of them.

    Args:
        objective: a time weight, a deadline or a budget. Values are relative to the plan of the shortest period that was found.
        held: ``calls``: GPUs are paid for only while a call or a reallocation uses them; ``step``: all GPUs are paid for all
            the time.

    Raises:
        PlanningError: the objective is none, or ``held`` is unknown.

    Example:
        >>> from solver import Objective
        >>> from solver.layouts import StepPlanObjective
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


def plans_gpu_s(options: CallOptions, plans: IntArray) -> FloatArray:
    """Return (P,) GPU-seconds for which calls and reallocations of a step hold their GPUs."""
    assert not options.freed_early, "costs of generation plans are not counted here"
    return np.asarray((options.durations(plans) * options.meeting(plans)[1]).sum(axis=1))
