"""Searches for the step plan of least value, where cost counts beside the period, and proves how far a better one can be.

It is the search of ``search.py`` with two bounds per partial plan: the same one on the period, and that of ``least_cost.py`` on
cost. The value of both bounds is a bound on the value, which never falls where period or cost grows.

The rules that leave out strategies hold for cost, too. An option that is left out is no faster than a kept one on the same
mesh, and weights are sent to it no faster. So every plan that is left out costs as much as a kept one, or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.layouts.bound import period_bound_s
from solver.layouts.descent import descend, perturbed
from solver.layouts.least_cost import LeastCost
from solver.layouts.mesh_step import MeshStep
from solver.layouts.options import CallOptions, FloatArray, IntArray
from solver.layouts.plan_objective import plans_gpu_s
from solver.layouts.plan_space import PlanSpace
from solver.layouts.schedule import ORDERS, Order, periods_s
from solver.layouts.search import BLOCK, CHANGED, STARTS
from solver.layouts.strategy_step import StrategyStep
from solver.model.objective import TOLERANCE, Objective


@dataclass
class LeastValue:
    """The plan of least value so far.

    Attributes:
        plan: (K,) option of every call; None while none within the limits is known.
        value: of it, with ready calls in ``order``.
        bound: no plan has a lower value.
        evaluated: plans whose times were computed. bounded: partial plans whose bounds were.
    """

    plan: IntArray | None = None
    value: float = math.inf
    order: Order = ORDERS[0]
    bound: float = 0.0
    evaluated: int = 0
    bounded: int = 0


class WeighedSearch:
    """A search over the plans of ``options`` whose GPUs need at most ``limit_bytes``.

    Args:
        objective: to minimise. reference: period and cost that values are relative to. price: cost of a GPU-second.
    """

    def __init__(
        self, options: CallOptions, limit_bytes: float, objective: Objective, reference: tuple[float, float], price: float,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.options, self.limit_bytes, self.price = options, limit_bytes, price
        self.objective, self.reference = objective, reference
        self.space = PlanSpace(options, limit_bytes)
        self.rng = np.random.default_rng(seed)
        self.found = LeastValue()
        self.least = LeastCost(self.space)
        self.least_cost = price * self.least.gpu_s
        self.least_s = float(self.space.least_s.max())  # of any period: one call after another is never faster than one call

    def improve(self, starts: list[IntArray], most: int) -> None:
        """Descend from these plans, from every call's cheapest option, and from random plans near the best.

        Args:
            most: plans that may be timed in all.
        """
        for start in starts:
            for order in ORDERS:
                self._taken(start[None], order)
        for start in (*starts, np.array([own[0] for own in self.least.cheapest])):
            self.descend(start, most)
        for _ in range(STARTS):
            if self.found.plan is not None:
                self.descend(perturbed(self.options, self.found.plan, CHANGED, self.rng), most)

    def descend(self, start: IntArray, most: int, order: Order = ORDERS[0]) -> None:
        """Improve one call at a time from ``start``, while it does and at most ``most`` plans are timed in all."""
        value = self._taken(start[None], order)[1]
        descend(
            self.options,
            start,
            value,
            lambda plans, below: self._taken(plans, order, below),
            lambda: self.found.evaluated < most,
        )

    def prove(self, gap: float, most: int) -> bool:
        """Search the whole space for a value more than ``gap`` below the best, and return whether the search has ended.

        Args:
            most: partial plans that may be bounded, those of earlier calls included.
        """
        found, space = self.found, self.space
        leaf = math.inf  # least bound of whole plans: another order may reach it
        steps: list[MeshStep | StrategyStep] = [MeshStep(space, depth) for depth in range(space.calls)]
        steps += [StrategyStep(space, depth) for depth in range(space.calls)]
        start = np.full((1, space.calls), -1), np.zeros(1), self._values(np.full(1, self.least_s), np.full(1, self.least_cost))
        open_: list[tuple[IntArray, FloatArray, FloatArray, int]] = [(*start, 0)]
        while open_ and found.bounded < most:
            rows, bounds_s, values, depth = open_.pop()
            alive = values < found.value * (1 - gap)
            rows, bounds_s, values = rows[alive], bounds_s[alive], values[alive]
            if len(rows) > BLOCK:
                open_.append((rows[BLOCK:], bounds_s[BLOCK:], values[BLOCK:], depth))
                rows, bounds_s = rows[:BLOCK], bounds_s[:BLOCK]
            if not len(rows):
                continue
            target_s = self._target_s(found.value * (1 - gap))
            extended, bounded = steps[depth].extend(rows, bounds_s, target_s)
            found.bounded += bounded
            children, bounds_s = extended.rows(rows, steps[depth].call), extended.bound_s
            whole = depth + 1 == len(steps)
            cost = self._costs(children) if whole else self.price * self.least.of(children, depth + 1, target_s)
            values = self._values(bounds_s, cost)
            kept = np.flatnonzero(values < found.value * (1 - gap))
            kept = kept[np.argsort(values[kept], kind="stable")]
            children, bounds_s, values = children[kept], bounds_s[kept], values[kept]
            if not whole:
                open_.append((children, bounds_s, values, depth + 1))
            elif len(children):
                leaf = min(leaf, float(values.min()))
                for order in ORDERS:
                    self._taken(children, order)
        left = [float(values.min()) for _, _, values, _ in open_ if len(values)]
        found.bound = max(found.bound, min([found.value * (1 - gap), leaf, *left]))
        return not open_

    def _target_s(self, value: float) -> float:
        """Return a number of seconds that the bound on the period of no plan reaches whose value is below this one.

        That bound is at most the sum of the seconds of all tasks, and each of them has a GPU at least. So it is at most the
        GPU-seconds.
        """
        longest_s = self.objective.most_time(value, self.least_cost, self.reference)
        most_cost = self.objective.most_cost(value, self.least_s, self.reference)
        return min(longest_s, most_cost / self.price) * (1 + TOLERANCE)

    def _taken(self, plans: IntArray, order: Order, below: float = math.inf) -> tuple[IntArray | None, float]:
        """Return the best of the plans that fit and may have a value below ``below``, with its value; keep it if it is best."""
        plans = plans[self.options.peak_bytes(plans).max(axis=1) <= self.limit_bytes]
        plans = plans[self._values(period_bound_s(self.options, plans), self._costs(plans)) < below] if len(plans) else plans
        if not len(plans):
            return None, math.inf
        values = self._values(periods_s(self.options, plans, order), self._costs(plans))
        best, found = int(values.argmin()), self.found
        found.evaluated += len(plans)
        if values[best] < found.value * (1 - 1e-12):
            found.plan, found.value, found.order = plans[best].copy(), float(values[best]), order
        return plans[best].copy(), float(values[best])

    def _values(self, period_s: FloatArray, cost: FloatArray) -> FloatArray:
        """Return (P,) values of these periods and costs."""
        return self.objective.values(period_s, cost, self.reference)

    def _costs(self, plans: IntArray) -> FloatArray:
        """Return (P,) costs of whole plans."""
        return self.price * plans_gpu_s(self.options, plans)
