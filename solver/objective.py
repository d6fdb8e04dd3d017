"""What a plan is judged by: the objective, and the part of the step outside generation.

Knows nothing of workloads or GPUs. Time is makespan in seconds; cost is GPU-seconds (dollars follow from the price).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solver.errors import PlanningError


@dataclass(frozen=True)
class Objective:
    """Weighted time and cost, or a deadline, or a budget.

    Args:
        time_weight: w in ``w * T / T_ref + (1 - w) * C / C_ref``, with the right-sized random split of the same workload
            as reference.
        deadline_s: least cost with ``T <= deadline_s`` instead.
        budget_gpu_s: least time with ``C <= budget_gpu_s`` instead.

    Raises:
        PlanningError: the weight lies outside 0..1, both limits are given, or a limit is not above 0.
    """

    time_weight: float = 0.7
    deadline_s: float | None = None
    budget_gpu_s: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.time_weight <= 1.0:
            raise PlanningError(f"time_weight is {self.time_weight}; a number from 0 (cost only) to 1 (time only) is needed")
        if self.deadline_s is not None and self.budget_gpu_s is not None:
            raise PlanningError("deadline_s and budget_gpu_s are both given; choose one of them")
        for name in ("deadline_s", "budget_gpu_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise PlanningError(f"{name} is {value}; a finite number above 0 is needed")

    def value(self, time_s: float, gpu_s: float, reference: tuple[float, float]) -> float:
        """The number to minimise for a plan of ``time_s`` and ``gpu_s``; infinite when it breaks the limit."""
        if self.deadline_s is not None:
            return gpu_s if time_s <= self.deadline_s * (1 + 1e-9) else math.inf
        if self.budget_gpu_s is not None:
            return time_s if gpu_s <= self.budget_gpu_s * (1 + 1e-9) else math.inf
        time_ref, gpu_ref = reference
        return self.time_weight * time_s / time_ref + (1.0 - self.time_weight) * gpu_s / gpu_ref


@dataclass(frozen=True)
class StepRest:
    """The step outside generation: it shifts time and cost of every plan by constants.

    ``learner_gpus`` GPUs beside the actors are held for the whole step, so a longer generation also costs idle learner
    GPUs: with T the generation makespan, step time is ``T + prepare_s + learn_s`` and step cost is
    ``C + learner_gpus * (T + prepare_s + learn_s)``.
    """

    prepare_s: float = 0.0
    learn_s: float = 0.0
    learner_gpus: int = 0

    def __post_init__(self) -> None:
        for name in ("prepare_s", "learn_s", "learner_gpus"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise PlanningError(f"StepRest.{name} is {value}; a finite number of 0 or more is needed")

    @property
    def seconds(self) -> float:
        """Seconds of the step after generation."""
        return self.prepare_s + self.learn_s

    def step_time_s(self, generation_s: float) -> float:
        """Seconds of the whole step."""
        return generation_s + self.seconds

    def step_gpu_s(self, generation_s: float, generation_gpu_s: float) -> float:
        """GPU-seconds of the whole step."""
        return generation_gpu_s + self.learner_gpus * self.step_time_s(generation_s)
