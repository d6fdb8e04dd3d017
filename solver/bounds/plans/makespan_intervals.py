"""Intervals of makespans that together contain every plan, each with a lower bound on the cost of the plans in it.

**Bound.** A plan whose makespan is in the interval [M_low, M_high] has at least the makespan M_low and the bounded cost at
M_high, as that cost never rises with the makespan. So its value is at least value(M_low, cost(M_high)), for every value that
rises with both. The least of these over all intervals is below every plan. Halving the interval where it is least makes the
bound tighter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from solver.bounds.plans.cost_bound import CostBound
from solver.model.workload import FloatArray
from solver.timing.step_cost import StepObjective

NARROW = 1e-7  # relative width of makespans below which an interval is not halved any more


class MakespanIntervals:
    """The intervals for one set of lengths, between the least makespan and ``last_s``.

    Args:
        goal: says when actors release their GPUs.
        grid: makespans at which the first intervals meet, besides the ends.
        last_s: above it no plan is relevant; by default the longest makespan of ``bound``, from which on none costs less.
        known: value from which on a bound of ``goal`` need not be tighter; infinite where other values are asked for, too.
    """

    def __init__(
        self,
        bound: CostBound,
        goal: StepObjective,
        grid: Iterable[float],
        last_s: float = math.inf,
        known: float = math.inf,
    ) -> None:
        self.bound, self.goal, self.known = bound, goal, known
        first_s = bound.shortest_makespan_s
        last_s = max(first_s, min(last_s, bound.longest_makespan_s))
        edges = sorted({first_s, last_s, *(m for m in grid if first_s < m < last_s)})
        self._low = edges[:-1] or edges
        self._high = edges[1:] or edges
        self._cost = [self._bounded(*ends) for ends in zip(self._low, self._high, strict=True)]

    def _bounded(self, low_s: float, high_s: float) -> float:
        return self.bound.at(high_s, self.goal.most_cost(self.known, low_s), low_s)

    @property
    def ends(self) -> tuple[FloatArray, FloatArray]:
        """Return the least makespan of every interval, and its bound on the cost of generation: infinite without plans."""
        return np.array(self._low), np.array(self._cost)

    def halve(self, i: int) -> bool:
        """Halve the i-th interval, and return whether it was wide enough for that."""
        low, high, cost = self._low[i], self._high[i], self._cost[i]
        if high - low <= NARROW * high:
            return False
        middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
        # the bound on the cost of the upper half is known where it does not depend on its least makespan
        upper = cost if self.goal.held_after_s is None else max(cost, self._bounded(middle, high))
        self._low.append(middle)
        self._high.append(high)
        self._cost.append(upper)
        self._high[i], self._cost[i] = middle, max(cost, self._bounded(low, middle))
        return True

    def least_value(self, halvings: int) -> float:
        """Return the lower bound on the value of ``goal`` of any plan, after so many halvings; infinite if there is no plan."""
        values = [self._value(i) for i in range(len(self._low))]
        for _ in range(halvings):
            i = int(np.argmin(values))
            if values[i] >= self.known * (1 - 1e-6) or not self.halve(i):
                break
            values[i] = self._value(i)
            values.append(self._value(len(values)))
        return min(values)

    def _value(self, i: int) -> float:
        return math.inf if math.isinf(self._cost[i]) else self.goal.value(self._low[i], self._cost[i])
