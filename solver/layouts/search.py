"""Searches for the plan of least value, an ``Objective`` of its period and its GPU-seconds, and bounds how far a better one is.

**Descents** change one call at a time to the option of least value, from several starts, until nothing improves.

**Exact search**, depth first. First every call gets a mesh, the slowest call first, and counts with the fastest strategy there.
Then every call gets its strategy. A block of partial plans is extended at a time (``branching.py``). A partial plan is dropped
if its bound (``bound.py``) is not below the best value by the gap that is asked for, or if its calls need too many bytes.
Whole plans that are not dropped are timed with calls in both orders. They count with their bounds, not with their values:
another order may be shorter still. What is left open when the counted work is used up counts, too. Gaps are proven one after
the other, the largest first: a search for much better plans is short, and what it finds shortens the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from solver.layouts.bound import PlanSpace, gpu_s_bound, period_bound_s
from solver.layouts.branching import steps
from solver.layouts.costs import CallOptions, FloatArray, IntArray
from solver.layouts.plan import TIME_ONLY
from solver.layouts.times import ORDERS, Order, periods_s
from solver.model.objective import TOLERANCE, Objective

STARTS = 2  # descents from perturbed plans
CHANGED = 3  # calls of a plan that are perturbed
LEAST_GAIN = 1e-9  # share by which a change of a descent has to be better
BLOCK = 256  # partial plans that are extended at once
FIRST_GAP = 0.2  # that is proven before plans are improved
GAPS = (0.1, 0.05, 0.02)  # that are proven before the one that is asked for
FINER = 0.1  # share of the proven gap that is then searched for
MORE, MORE_BOUNDED = 0.5, 200_000  # with at most this share of the work again, or so many bounds
BOUNDED_PER_EVALUATED = 100  # a plan's times take as long as so many bounds
EQUAL = 1e-12  # share by which a bound may be off by rounding


class Value(NamedTuple):
    """What a search minimises.

    Attributes:
        objective: whose cost is in GPU-seconds. reference: the period and the GPU-seconds that values are relative to.
    """

    objective: Objective = TIME_ONLY
    reference: tuple[float, float] = (1.0, 1.0)

    @property
    def counts_cost(self) -> bool:
        """Whether GPU-seconds matter; otherwise the value is the period."""
        return self.objective.limited or self.objective.time_weight < 1

    def of(self, options: CallOptions, plans: IntArray, period_s: FloatArray) -> FloatArray:
        """Return (P,) values of plans with these periods."""
        return self.objective.values(period_s, options.gpu_s(plans), self.reference) if self.counts_cost else period_s

    def bound(self, options: CallOptions, plans: IntArray) -> FloatArray:
        """Return (P,) lower bounds on the values of plans, for every order of their calls."""
        period_s = period_bound_s(options, plans)
        return self.objective.values(period_s, gpu_s_bound(options, plans), self.reference) if self.counts_cost else period_s


PERIOD = Value()


@dataclass
class Found:
    """The best plan so far.

    Attributes:
        plan: (K,) option of every call; None while none within the limits is known. order: of its ready calls.
        value: of it. bound: no plan has a lower value.
        evaluated: plans whose times were computed. bounded: partial plans whose bounds were. history: (evaluated, value).
    """

    plan: IntArray | None = None
    value: float = math.inf
    order: Order = ORDERS[0]
    bound: float = 0.0
    evaluated: int = 0
    bounded: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)


class Search:
    """A search over the plans of ``options`` whose GPUs need at most ``limit_bytes``."""

    def __init__(self, options: CallOptions, limit_bytes: float, value: Value = PERIOD, seed: int = 0) -> None:
        self.options, self.limit_bytes, self.value = options, limit_bytes, value
        self.space = PlanSpace(options.bounding, limit_bytes)
        self.rng = np.random.default_rng(seed)
        self.found = Found()

    @property
    def fastest(self) -> IntArray:
        """(K,) the fastest option of every call."""
        return np.array([int(seconds.argmin()) for seconds in self.options.seconds])

    def run(self, starts: Iterable[IntArray], gap: float, work: int) -> bool:
        """Search to a gap, and return whether all plans were searched.

        Args:
            starts: (K,) plans from which it descends. work: limit on partial plans that are bounded.
        """
        found, most = self.found, work // BOUNDED_PER_EVALUATED
        for start in starts:
            self.descend(start, most)
        ended = self.prove(max(FIRST_GAP, gap), work)  # finds a first plan, if descents did not
        for changes in (0, *[CHANGED] * STARTS):
            if found.plan is not None:
                self.descend(self._perturbed(found.plan, changes), most)
        ended = ended and all(self.prove(one, work) for one in (*(one for one in GAPS if one > gap), gap))
        if ended:
            self.prove(gap * FINER, min(work, found.bounded + max(MORE_BOUNDED, int(MORE * found.bounded))))
        for order in ORDERS:
            # the search leaves out what is slower on the same GPUs; in the list schedule's order it may fit in better
            if found.plan is not None and not self.proven(gap):
                self.descend(found.plan, found.evaluated + most, order)
        return ended

    def proven(self, gap: float) -> bool:
        """Return whether the best plan is within this gap of the bound."""
        return self.found.value <= self.found.bound / (1 - gap) * (1 + EQUAL)

    def take(self, plans: IntArray, order: Order) -> FloatArray:
        """Return (P,) values of plans with calls in this order, and keep the best one if it is better than all before."""
        if not len(plans):
            return np.zeros(0)
        values, found = self.value.of(self.options, plans, periods_s(self.options, plans, order)), self.found
        found.evaluated += len(plans)
        if values.min() < found.value * (1 - EQUAL):
            best = int(values.argmin())
            found.plan, found.value, found.order = plans[best].copy(), float(values[best]), order
            found.history.append((found.evaluated, found.value))
        return values

    def descend(self, start: IntArray, most: int, order: Order = ORDERS[0]) -> None:
        """Change one call at a time to its best option, while that is better and at most ``most`` plans are timed in all.

        The first call takes its best option, whatever the value of ``start``, which may need too many bytes.
        """
        plan, value, unchanged, call = start.copy(), math.inf, 0, 0
        while unchanged < len(plan) and self.found.evaluated < most:
            plans = np.repeat(plan[None], len(self.options.seconds[call]), axis=0)
            plans[:, call] = np.arange(len(plans))
            plans = plans[self.options.peak_bytes(plans).max(axis=1) <= self.limit_bytes]
            plans = plans[self.value.bound(self.options, plans) < value]
            values = self.take(plans, order)
            unchanged += 1
            if len(values) and values.min() < value * (1 - LEAST_GAIN):
                best = plans[int(values.argmin())].copy()
                unchanged = unchanged if plan[call] == best[call] else 0
                plan, value = best, float(values.min())
            call = (call + 1) % len(plan)

    def prove(self, gap: float, most: int) -> bool:
        """Search the whole space for a value more than ``gap`` below the best, and return whether the search has ended.

        Args:
            most: partial plans that may be bounded, those of earlier calls included.
        """
        found, space = self.found, self.space
        if not space.possible:
            return True
        leaf = math.inf  # least bound of whole plans: another order, or another plan of generation, may reach it
        choices = steps(space)
        none = np.full((1, space.calls), -1)
        open_: list[tuple[IntArray, FloatArray, FloatArray, int]] = [(none, np.zeros(1), np.zeros(1), 0)]
        while open_ and found.bounded < most:
            rows, bound_s, values, depth = open_.pop()
            target = found.value * (1 - gap)
            alive = values < target
            rows, bound_s, values = rows[alive], bound_s[alive], values[alive]
            if len(rows) > BLOCK:
                open_.append((rows[BLOCK:], bound_s[BLOCK:], values[BLOCK:], depth))
                rows, bound_s = rows[:BLOCK], bound_s[:BLOCK]
            if not len(rows):
                continue
            target_s = self._period_below(target)
            extended, bounded = choices[depth].extend(rows, bound_s, target_s)
            found.bounded += bounded
            children, bound_s, depth = extended.rows(rows, choices[depth].call), extended.bound_s, depth + 1
            whole = depth == len(choices)
            if whole and self.options.released_early:  # relaxed options have no bytes of generation
                fits = self.options.peak_bytes(children).max(axis=1) <= self.limit_bytes
                children = children[fits]
                bound_s = np.maximum(bound_s[fits], period_bound_s(self.options, children))
            values = self._bounds(children, bound_s, depth, target_s)
            kept = np.flatnonzero(values < target)
            kept = kept[np.argsort(values[kept], kind="stable")]
            children, bound_s, values = children[kept], bound_s[kept], values[kept]
            if not whole:
                open_.append((children, bound_s, values, depth))
            elif len(children):
                leaf = min(leaf, float(values[0]))
                for order in ORDERS:
                    self.take(children, order)
        left = [float(values.min()) for _, _, values, _ in open_ if len(values)]
        found.bound = max(found.bound, min([found.value * (1 - gap), leaf, *left]))
        return not open_

    def _bounds(self, rows: IntArray, bound_s: FloatArray, depth: int, target_s: float) -> FloatArray:
        """Return (P,) bounds on the values of partial plans after ``depth`` choices; ``bound_s`` are those on their periods."""
        if not self.value.counts_cost:
            return bound_s
        whole = depth == 2 * self.space.calls
        gpu_s = gpu_s_bound(self.options, rows) if whole else self.space.gpu_seconds.of(rows, depth, target_s)
        return self.value.objective.values(bound_s, gpu_s, self.value.reference)

    def _period_below(self, value: float) -> float:
        """Return a number of seconds that the bound on the period of no plan reaches whose value is below this one.

        That bound is at most the sum of the seconds of all tasks, and each of them has a GPU at least. So it is at most the
        GPU-seconds.
        """
        objective, reference = self.value.objective, self.value.reference
        if not self.value.counts_cost:
            return value
        longest_s = objective.most_time(value, self.space.gpu_seconds.of_any, reference)
        most_gpu_s = objective.most_cost(value, float(self.space.least_s.max()), reference)
        return min(longest_s, most_gpu_s) * (1 + TOLERANCE)

    def _perturbed(self, plan: IntArray, changes: int) -> IntArray:
        """Return the plan with so many calls at random options."""
        other = plan.copy()
        for call in self.rng.choice(len(plan), min(changes, len(plan)), replace=False):
            other[call] = self.rng.integers(len(self.options.seconds[call]))
        return other
