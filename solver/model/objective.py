"""Defines the objective that plans are compared by, and time and cost of the phases outside generation.

Time is makespan in seconds; cost is GPU-seconds or dollars.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray

COSTS = ("gpu_s", "usd")
TIME_WEIGHT = 0.7  # w in T^w C^(1-w) of plans, where nobody states one; that of the RLHFless paper (lambda)
TOLERANCE = 1e-9  # relative, by which a limit may be missed: times are sums of rounded numbers
EXCESS = 5.0  # power of the factor by which a mean exceeds its limit, in ``soft_values``


@dataclass(frozen=True)
class Objective:
    """What a plan minimises: ``T^w C^(1-w)`` of time T and cost C, or one of them with a limit on the other.

    Over scenarios it is the mean, or the mean over the worst scenarios. If time falls by one per cent, the product falls by w
    per cent. Values are relative to a reference plan. All code that weighs time against cost uses this class.

    Args:
        time_weight: w in ``T^w C^(1-w)``, from 0 (cost only) to 1 (time only).
        deadline_s: minimise cost with ``T <= deadline_s`` instead.
        budget_gpu_s, budget_usd: minimise time with ``C <= budget`` instead.
        cost: unit of C, ``gpu_s`` or ``usd`` (implied by ``budget_usd``).
        cvar_alpha: conditional value at risk: the mean of the value over the worst share ``cvar_alpha`` of the
            scenarios. Under a limit, of time and cost each. 1 is the mean over all of them.

    Raises:
        PlanningError: a weight or share lies outside its range, several limits are given, or one is not above 0.
    """

    time_weight: float = TIME_WEIGHT
    deadline_s: float | None = None
    budget_gpu_s: float | None = None
    budget_usd: float | None = None
    cost: str = "gpu_s"
    cvar_alpha: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.time_weight, 0) and self.time_weight <= 1.0):
            raise PlanningError(
                f"time_weight is {as_given(self.time_weight)}; a number from 0 (cost only) to 1 (time only) is needed"
            )
        if not (is_number(self.cvar_alpha) and 0.0 < self.cvar_alpha <= 1.0):
            raise PlanningError(
                f"cvar_alpha is {as_given(self.cvar_alpha)}; a share of the scenarios above 0 and up to 1 (their "
                f"mean) is needed"
            )
        if not isinstance(self.cost, str) or self.cost not in COSTS:
            raise PlanningError(f"cost {as_given(self.cost)} is unknown; choose one of {', '.join(COSTS)}")
        given = [name for name in ("deadline_s", "budget_gpu_s", "budget_usd") if getattr(self, name) is not None]
        if len(given) > 1:
            raise PlanningError(f"{' and '.join(given)} are given together; choose one of them")
        for name in given:
            value = getattr(self, name)
            if not (is_number(value) and value > 0):
                raise PlanningError(f"{name} is {as_given(value)}; a finite number above 0 is needed")
        if self.budget_gpu_s is not None and self.cost == "usd":
            raise PlanningError("budget_gpu_s limits GPU-seconds, but cost is 'usd'; give budget_usd instead")
        if self.budget_usd is not None:
            object.__setattr__(self, "cost", "usd")

    def generation_within_s(self, phases: NonGenerationPhases) -> float:
        """Return the latest makespan of generation that meets the deadline, including the small tolerance that
        ``value`` also allows."""
        assert self.deadline_s is not None
        return self.deadline_s * (1 + 0.9 * TOLERANCE) - phases.seconds

    @property
    def budget(self) -> float | None:
        """Return the limit on cost, in the unit of ``cost``."""
        return self.budget_gpu_s if self.budget_usd is None else self.budget_usd

    def in_gpu_s(self, usd_per_gpu_s: float) -> Objective:
        """Return the objective with cost in GPU-seconds, for GPUs that all have one price.

        Raises:
            PlanningError: there is a budget in USD, and the price is not above 0.
        """
        if self.budget_usd is None:
            return replace(self, cost="gpu_s")
        if not usd_per_gpu_s > 0:
            raise PlanningError(f"budget_usd is {self.budget_usd:g}, but the GPUs have no price; give usd_per_gpu_hour")
        return replace(self, budget_usd=None, budget_gpu_s=self.budget_usd / usd_per_gpu_s, cost="gpu_s")

    def with_slack(self, factor: float) -> Objective:
        """Return the objective with its limit multiplied by a factor, itself if it has none."""
        for name in ("deadline_s", "budget_gpu_s", "budget_usd"):
            if (limit := getattr(self, name)) is not None:
                return replace(self, **{name: factor * limit})
        return self

    @property
    def limit(self) -> float | None:
        """Return the deadline or the budget, None without one."""
        return self.budget if self.deadline_s is None else self.deadline_s

    @property
    def limited(self) -> bool:
        """Return whether the objective has a deadline or a budget."""
        return self.deadline_s is not None or self.budget is not None

    @property
    def cost_unit(self) -> str:
        """Return the unit of cost in words."""
        return "USD" if self.cost == "usd" else "GPU-seconds"

    def product(self, time_s: ArrayLike, cost: ArrayLike) -> FloatArray:
        """Return ``T^w C^(1-w)`` of times and costs, whatever the limits; arrays broadcast."""
        w = self.time_weight
        return np.asarray(np.asarray(time_s, dtype=float) ** w * np.asarray(cost, dtype=float) ** (1.0 - w))

    def values(self, time_s: ArrayLike, cost: ArrayLike, reference: tuple[float, float] = (1.0, 1.0)) -> FloatArray:
        """Return ``value`` for arrays of plans; times and costs broadcast. Values never fall if time or cost grows, so lower
        bounds on both give a lower bound on the value.
        """
        times, costs = np.asarray(time_s, dtype=float), np.asarray(cost, dtype=float)
        if self.deadline_s is not None:
            return np.asarray(np.where(times <= self.deadline_s * (1 + TOLERANCE), costs, math.inf))
        if self.budget is not None:
            return np.asarray(np.where(costs <= self.budget * (1 + TOLERANCE), times, math.inf))
        time_ref, cost_ref = reference
        return self.product(times / time_ref, costs / cost_ref)

    def soft_values(self, time_s: ArrayLike, cost: ArrayLike) -> FloatArray:
        """Return (..., S) numbers of plans, from their times and costs in S scenarios. The plan with the least mean is best.

        Under a limit it is the cost or the time in each scenario. Where a plan's mean exceeds the limit, all of its numbers
        are multiplied by ``(mean / limit)^5``, so the nearest miss is best where no plan keeps it. ``key`` orders plans so,
        too; these numbers compare two plans in every scenario, as ``held_out`` does.

        Example:
            >>> Objective(deadline_s=2.0).soft_values([[1.0, 3.0], [3.0, 5.0]], [[7.0, 7.0], [1.0, 1.0]]).tolist()
            [[7.0, 7.0], [32.0, 32.0]]
        """
        times, costs = np.asarray(time_s, dtype=float), np.asarray(cost, dtype=float)
        if self.deadline_s is not None:
            return np.asarray(costs * _excess(times, self.deadline_s))
        if self.budget is not None:
            return np.asarray(times * _excess(costs, self.budget))
        return self.product(times, costs)

    def value(self, time_s: float, cost: float, reference: tuple[float, float] = (1.0, 1.0)) -> float:
        """Return the number to minimise for a plan of ``time_s`` and ``cost``; infinite if it breaks the limit.

        Without a limit it is ``T^w C^(1-w)`` divided by that of ``reference``, a time and a cost above 0. Under a deadline it
        is the cost, under a budget the time.

        Example:
            >>> Objective(time_weight=0.5).value(4.0, 9.0, reference=(1.0, 4.0))
            3.0
        """
        return float(self.values(time_s, cost, reference))

    def most_cost(self, value: float, time_s: float, reference: tuple[float, float] = (1.0, 1.0)) -> float:
        """Return the largest cost with which a plan that takes ``time_s`` can still have a value below ``value``."""
        if self.deadline_s is not None:
            return value
        if self.budget is not None:
            return self.budget * (1 + 2 * TOLERANCE) if time_s < value else 0.0
        time_ref, cost_ref = reference
        return _other_factor(value, time_s / time_ref, self.time_weight) * cost_ref

    def most_time(self, value: float, cost: float, reference: tuple[float, float] = (1.0, 1.0)) -> float:
        """Return the largest time with which a plan that costs ``cost`` can still have a value below ``value``."""
        if self.deadline_s is not None:
            return self.deadline_s * (1 + 2 * TOLERANCE) if cost < value else 0.0
        if self.budget is not None:
            return value
        time_ref, cost_ref = reference
        return _other_factor(value, cost / cost_ref, 1.0 - self.time_weight) * time_ref

    def cost_of_a_second(self, time_s: float, cost: float) -> float:
        """Return the cost that one second is worth at this time and cost, ``w C / ((1-w) T)``: taking a second longer for that
        much less cost leaves ``T^w C^(1-w)`` unchanged. Infinite if only time counts.
        """
        w = self.time_weight
        return w * cost / ((1.0 - w) * time_s) if w < 1.0 and time_s > 0 else math.inf

    def value_over(self, time_s: ArrayLike, cost: ArrayLike, reference: tuple[float, float] = (1.0, 1.0)) -> float:
        """Return the number to minimise for (S,) times and costs of equally likely scenarios.

        That is the risk of their values; under a limit, the value of the risks of time and of cost.
        """
        if self.limited:
            return self.value(self.risk(np.asarray(time_s)), self.risk(np.asarray(cost)), reference)
        return self.risk(self.values(time_s, cost, reference))

    def key(self, time_s: ArrayLike, cost: ArrayLike) -> tuple[float, float]:
        """Return a sort key, which is least for the best plan, from a number or (S,) times and costs.

        The key is first the amount by which a limit is broken, then the minimised value; so if no plan meets the limit, the
        nearest miss is best.
        """
        times, costs = np.atleast_1d(np.asarray(time_s, dtype=float)), np.atleast_1d(np.asarray(cost, dtype=float))
        if self.deadline_s is not None:
            return max(0.0, self.risk(times) - self.deadline_s * (1 + TOLERANCE)), self.risk(costs)
        if self.budget is not None:
            return max(0.0, self.risk(costs) - self.budget * (1 + TOLERANCE)), self.risk(times)
        return 0.0, self.risk(self.product(times, costs))

    def risk(self, values: FloatArray) -> float:
        """Return the mean of the worst share ``cvar_alpha`` of equally likely values; the last of them counts in part."""
        worst = np.sort(values)[::-1]
        share = np.clip(self.cvar_alpha * len(worst) - np.arange(len(worst)), 0.0, 1.0)
        return float(dot(worst, share) / share.sum())


def _excess(numbers: FloatArray, limit: float) -> FloatArray:
    """Return (..., 1) factors of the numbers of plans whose mean over S scenarios exceeds a limit; 1 for the others."""
    return np.asarray(np.maximum(numbers.mean(axis=-1, keepdims=True) / limit, 1.0) ** EXCESS)


def _other_factor(value: float, factor: float, exponent: float) -> float:
    """Return x with ``factor^exponent x^(1-exponent) = value``; infinite where no x is too large."""
    if exponent >= 1.0 or math.isinf(value):
        return math.inf
    if value <= 0.0:
        return 0.0
    if factor <= 0.0:
        return value if exponent == 0.0 else math.inf
    logarithm = (math.log(value) - exponent * math.log(factor)) / (1.0 - exponent)
    return math.exp(logarithm) if logarithm < 700 else math.inf


@dataclass(frozen=True)
class NonGenerationPhases:
    """Preparation and learning of a step, which add to the time and cost of every plan.

    ``learner_gpus`` GPUs are allocated for the whole step in addition to the actors', so a longer generation also costs idle
    learner GPUs. With the generation makespan T, the step takes ``T + prepare_s + learn_s`` and costs ``C + learner_gpus * (T +
    prepare_s + learn_s)``, times their price if cost is in dollars.

    Args:
        usd_per_gpu_hour: price of the learner's GPUs; that of the cluster's first pool when None.
    """

    prepare_s: float = 0.0
    learn_s: float = 0.0
    learner_gpus: int = 0
    usd_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        for name in ("prepare_s", "learn_s"):
            if not is_number(getattr(self, name), 0):
                raise PlanningError(
                    f"NonGenerationPhases.{name} is {as_given(getattr(self, name))}; a finite number of 0 or more is needed"
                )
        if not is_whole(self.learner_gpus, 0):
            raise PlanningError(
                f"NonGenerationPhases.learner_gpus is {as_given(self.learner_gpus)}; a whole number of GPUs of 0 or "
                f"more is needed"
            )
        object.__setattr__(self, "learner_gpus", int(self.learner_gpus))
        if self.usd_per_gpu_hour is not None and not is_number(self.usd_per_gpu_hour, 0):
            raise PlanningError(
                f"NonGenerationPhases.usd_per_gpu_hour is {as_given(self.usd_per_gpu_hour)}; a finite price of 0 or "
                f"more is needed"
            )

    @property
    def seconds(self) -> float:
        """Return the seconds of the step outside generation: ``prepare_s + learn_s``."""
        return self.prepare_s + self.learn_s

    def step_time_s(self, generation_s: float) -> float:
        """Return the seconds of the whole step."""
        return generation_s + self.seconds

    def step_gpu_s(self, generation_s: float, generation_gpu_s: float) -> float:
        """Return the GPU-seconds of the whole step."""
        return generation_gpu_s + self.learner_gpus * self.step_time_s(generation_s)

    def learner_rate(self, cost: str, usd_per_gpu_s: float) -> float:
        """Return the learner's cost per second of the step, in the unit ``cost``, at its own price or else
        ``usd_per_gpu_s``."""
        if cost == "gpu_s":
            return float(self.learner_gpus)
        price = usd_per_gpu_s if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour / 3600.0
        return self.learner_gpus * price
