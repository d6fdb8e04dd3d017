"""What a whole step is planned for: least ``T^w C^(1-w)``, least cost by a deadline, or least time within a budget.

A speed relative to another plan is a deadline in every scenario. Long responses delay both plans, so that their ratio is surer
than either time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.objective import Objective
from solver.model.workload import FloatArray, IntArray

EXCESS = 5.0
"""Power of the factor by which a mean exceeds its limit. It multiplies the value: plans that keep the limit come first."""


@dataclass(frozen=True)
class Aim:
    """What is minimised; give exactly one of the three.

    Args:
        time_weight: w of ``T^w C^(1-w)``, as in ``solver.Objective``. deadline_s: minimise cost with at most this mean time.
        budget_gpu_s: minimise time with at most this mean cost. A deadline or budget may be one number per scenario; their mean
            is then the limit.

    Raises:
        PlanningError: not exactly one is given, or its value is out of range.
    """

    time_weight: float | None = None
    deadline_s: float | Sequence[float] | FloatArray | None = None
    budget_gpu_s: float | Sequence[float] | FloatArray | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            raise PlanningError(f"{' and '.join(given) or 'nothing'} is given; give a time weight, a deadline or a budget")
        ((name, value),) = given.items()
        if name == "time_weight":
            if not is_number(value, 0) or value > 1:
                raise PlanningError(f"{name} is {as_given(value)}; a number from 0 to 1 is needed")
            return
        limits = value if isinstance(value, list | tuple | np.ndarray) else [value]
        if not len(limits) or not all(is_number(limit, 0) and limit for limit in limits):
            raise PlanningError(f"{name} is {as_given(value)}; a finite number above 0, or one per scenario, is needed")

    def on(self, scenarios: IntArray) -> Aim:
        """Return the aim on some of the scenarios."""
        deadline_s, budget_gpu_s = (
            limit if limit is None or not np.ndim(limit) else np.asarray(limit)[scenarios]
            for limit in (self.deadline_s, self.budget_gpu_s)
        )
        return replace(self, deadline_s=deadline_s, budget_gpu_s=budget_gpu_s)

    def values(self, times_s: FloatArray, gpu_s: FloatArray) -> FloatArray:
        """Return (N, S) numbers to minimise in the mean, from (N, S) seconds and GPU-seconds of N plans in S scenarios."""
        if self.time_weight is not None:
            return Objective(self.time_weight).product(times_s, gpu_s)
        if self.deadline_s is not None:
            return np.asarray(gpu_s * _excess(times_s, self.deadline_s))
        assert self.budget_gpu_s is not None
        return np.asarray(times_s * _excess(gpu_s, self.budget_gpu_s))

    def value(self, time_s: float, gpu_s: float) -> float:
        """Return the number to minimise of one plan that took these seconds and GPU-seconds."""
        return float(self.values(np.array([[time_s]]), np.array([[gpu_s]]))[0, 0])


def _excess(numbers: FloatArray, limit: float | Sequence[float] | FloatArray) -> FloatArray:
    """Return (N, 1) factors of the values of plans whose means exceed a limit; 1 for the others."""
    return np.asarray(np.maximum(numbers.mean(axis=1, keepdims=True) / np.mean(limit), 1.0) ** EXCESS)
