"""Searches for the plan of least period, and proves how far a better one can be.

**Descents** change one call at a time to the option with the least period, from several starts, until nothing improves.

**Exact search**, depth first. First every call gets a mesh, the slowest call first, and counts with the fastest strategy there.
Then every call gets its strategy. A block of partial plans is extended at a time (``mesh_step.py``, ``strategy_step.py``). A
partial plan is dropped if its bound is not below the best period by the gap that is asked for, or if its calls need too many
bytes. The bound is that of ``bound.py``, with what ``least_sent.py`` knows of reallocations. Whole plans that are not dropped
are timed with calls in both orders. They count with their bounds, not with their periods: another order may be shorter still.
What is left open when the counted work is used up counts, too. Gaps are proven one after the other, the largest first: a search
for much better plans is short, and what it finds shortens the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from solver.layouts.bound import period_bound_s
from solver.layouts.descent import descend, perturbed
from solver.layouts.mesh_step import MeshStep
from solver.layouts.options import CallOptions, FloatArray, IntArray
from solver.layouts.plan_space import PlanSpace
from solver.layouts.schedule import ORDERS, Order, periods_s
from solver.layouts.strategy_step import StrategyStep

STARTS = 2  # descents from perturbed plans
CHANGED = 3  # calls of a plan that are perturbed
BLOCK = 256  # partial plans that are extended at once


@dataclass
class Found:
    """The best plan so far.

    Attributes:
        plan: (K,) option of every call; None while none that fits is known. period_s: of it, with ready calls in ``order``.
        bound_s: no plan has less.
        evaluated: plans whose times were computed. bounded: partial plans whose bounds were. history: (evaluated, period_s).
    """

    plan: IntArray | None = None
    period_s: float = math.inf
    order: Order = ORDERS[0]
    bound_s: float = 0.0
    evaluated: int = 0
    bounded: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)

    def take(self, plans: IntArray, period_s: FloatArray, order: Order) -> bool:
        """Keep the best of these plans if it is better; return whether it is.

        Args:
            plans: (P, K). period_s: (P,) of them in this order.
        """
        self.evaluated += len(plans)
        if not len(plans) or not period_s.min() < self.period_s * (1 - 1e-12):
            return False
        best = int(period_s.argmin())
        self.plan, self.period_s, self.order = plans[best].copy(), float(period_s[best]), order
        self.history.append((self.evaluated, self.period_s))
        return True


class Search:
    """A search over the plans of ``options`` whose GPUs need at most ``limit_bytes``; ready calls start in ``order``."""

    def __init__(self, options: CallOptions, limit_bytes: float, seed: int = 0, order: Order = "longest path") -> None:
        self.options, self.limit_bytes, self.order = options, limit_bytes, order
        self.space = PlanSpace(options.bounding, limit_bytes)
        self.rng = np.random.default_rng(seed)
        self.found = Found()

    def start(self, most: int) -> None:
        """Descend from every call's fastest option; time at most ``most`` plans in all."""
        self.descend(np.array([int(seconds.argmin()) for seconds in self.options.seconds]), most)

    def improve(self, most: int) -> None:
        """Descend from the best plan, and from random plans near it."""
        for changes in (0, *[CHANGED] * STARTS):
            if self.found.plan is not None:
                self.descend(perturbed(self.options, self.found.plan, changes, self.rng), most)

    def descend(self, start: IntArray, most: int) -> None:
        """Improve one call at a time from ``start``, while it does and at most ``most`` plans are timed in all."""
        descend(self.options, start, math.inf, self._best_of, lambda: self.found.evaluated < most)

    def _best_of(self, plans: IntArray, below_s: float) -> tuple[IntArray | None, float]:
        """Return the plan of least period that fits and may be below ``below_s``, with its period; keep it if it is best."""
        tried = plans[self.options.peak_bytes(plans).max(axis=1) <= self.limit_bytes]
        tried = tried[period_bound_s(self.options, tried) < below_s]
        if not len(tried):
            return None, math.inf
        periods = periods_s(self.options, tried, self.order)
        self.found.take(tried, periods, self.order)
        best = int(periods.argmin())
        return tried[best].copy(), float(periods[best])

    def prove(self, gap: float, most: int) -> bool:
        """Search the whole space for a period more than ``gap`` below the best, and return whether the search has ended.

        Args:
            most: partial plans that may be bounded, those of earlier calls included.
        """
        found, space = self.found, self.space
        leaf_s = math.inf  # least bound of whole plans: another order, or another plan of generation, may reach it
        if not space.some_plan:
            return True
        depths = range(space.calls)
        steps: list[MeshStep | StrategyStep] = [MeshStep(space, depth) for depth in depths]
        steps += [StrategyStep(space, depth) for depth in depths]
        open_: list[tuple[IntArray, FloatArray, int]] = [(np.full((1, space.calls), -1), np.zeros(1), 0)]
        while open_ and found.bounded < most:
            rows, bounds, depth = open_.pop()
            alive = bounds < found.period_s * (1 - gap)
            rows, bounds = rows[alive], bounds[alive]
            if len(rows) > BLOCK:
                open_.append((rows[BLOCK:], bounds[BLOCK:], depth))
                rows = rows[:BLOCK]
            if not len(rows):
                continue
            step = steps[depth]
            extended, bounded = step.extend(rows, bounds[: len(rows)], found.period_s * (1 - gap))
            found.bounded += bounded
            extended = extended.where(np.argsort(extended.bound_s, kind="stable"))
            children = extended.rows(rows, step.call)
            if depth + 1 < len(steps):
                open_.append((children, extended.bound_s, depth + 1))
            elif len(children):
                bound_s = extended.bound_s
                if self.options.freed_early:  # relaxed options have no bytes of generation
                    fits = self.options.peak_bytes(children).max(axis=1) <= self.limit_bytes
                    children, bound_s = children[fits], np.maximum(bound_s[fits], period_bound_s(self.options, children[fits]))
                leaf_s = min(leaf_s, float(bound_s.min(initial=math.inf)))
                for order in ORDERS:
                    found.take(children, periods_s(self.options, children, order), order)
        left = [float(bounds.min()) for _, bounds, _ in open_ if len(bounds)]
        found.bound_s = max(found.bound_s, min([found.period_s * (1 - gap), leaf_s, *left]))
        return not open_
