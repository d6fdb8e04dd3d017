"""Best-first search over makespans: proves a bound below the value of every plan.

Inputs: a ``Bound`` and the value of a makespan and a cost. A plan whose makespan is in the interval [M_low, M_high] has at
least the makespan M_low and the bounded cost at M_high. That cost never rises with the makespan. Its value is thus at least
value(M_low, cost(M_high)). The search halves the interval with the least such bound. The least bound of all open intervals is
below every plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from solver.planning.bound import Bound
from solver.timing.step_cost import StepObjective

Box = tuple[tuple[tuple[int, int], tuple[float, float]], ...]
"""Limits on counts: ((offer or -1 for all, class), (least, most)) for the actors whose longest item is up to the class."""

NARROW = 1e-7


@dataclass(frozen=True, eq=False)
class SearchInterval:
    """Plans with makespans in [low_s, high_s].

    Attributes:
        bound: below their value. cost: below their cost of generation. loose, actors: as in ``CostBound``.
        box, relaxed: limits on numbers of actors and the linear programme's solution, where a search branches on these, too
            (``mixed_kinds.branch_search``).
    """

    bound: float
    low_s: float
    high_s: float
    cost: float
    loose: bool
    actors: tuple[tuple[int, int], ...]
    box: Box = ()
    relaxed: Any = None


class BoundSearch:
    """State of the search.

    Args:
        last_s: above it no plan is relevant, or none costs less; by default the longest makespan of ``bound``.
        narrow: relative width of makespans below which an interval is not halved any more.
        tightened: bounds a new interval further, given the one that it was cut from and ``stop_above``.
    """

    def __init__(
        self, bound: Bound, goal: StepObjective, last_s: float | None = None, narrow: float = NARROW,
        tightened: Callable[[SearchInterval, SearchInterval, float], SearchInterval] | None = None,
    ) -> None:  # fmt: skip
        self.bound, self.goal, self.narrow, self.tightened = bound, goal, narrow, tightened
        self.closed = math.inf  # the least bound of intervals that cannot be split any more
        self._heap: list[tuple[float, int, SearchInterval]] = []
        self._arrivals = 0
        self._first_s = bound.shortest_makespan_s
        self._last_s = max(self._first_s, bound.longest_makespan_s if last_s is None else last_s)

    def start(self, grid: Iterable[float] = (), stop_above: float = math.inf) -> list[SearchInterval]:
        """Open one interval between each two makespans of ``grid``, the first and the last; return those that have plans.

        Args:
            stop_above: value from which on a bound need not be tightened.
        """
        edges = sorted({self._first_s, self._last_s, *(m for m in grid if self._first_s < m < self._last_s)})
        low, nodes = self._first_s, []
        for high in edges[1:] or edges:
            nodes.append(self._open(low, high, 0.0, stop_above))
            low = high
        return [node for node in nodes if node is not None]

    @property
    def lowest(self) -> SearchInterval | None:
        """Return the open interval with the least bound; None if there is none."""
        return self._heap[0][2] if self._heap else None

    @property
    def lower_bound(self) -> float:
        """Return a lower bound on the value of any plan; infinite if there is no plan."""
        return min(self.closed, self._heap[0][0] if self._heap else math.inf)

    def split(self, stop_above: float = math.inf) -> list[SearchInterval] | None:
        """Halve the interval with the least bound and return the new ones that have plans.

        Returns None if its bound is ``stop_above`` or more, or no interval is left.
        """
        if not self._heap or self._heap[0][0] >= stop_above:
            return None
        return self.halve(self.pop(), stop_above)

    def pop(self) -> SearchInterval:
        """Take out the interval with the least bound; the caller puts back what covers it."""
        return heapq.heappop(self._heap)[2]

    def wide(self, node: SearchInterval) -> bool:
        """Return whether an interval may be halved."""
        return node.high_s - node.low_s > self.narrow * node.high_s

    def halve(self, node: SearchInterval, stop_above: float) -> list[SearchInterval]:
        """Put back both halves of an interval that was taken out, and return those that have plans."""
        if not self.wide(node):
            self.closed = min(self.closed, node.bound)
            return []
        middle = (node.low_s + node.high_s) / 2
        if node.high_s > 2 * node.low_s > 0:
            middle = math.sqrt(node.low_s * node.high_s)
        if self.goal.held_after_s is None:  # the bound on cost of the upper half is known
            upper = self.add(replace(node, low_s=middle, bound=max(node.bound, self.goal.value(middle, node.cost))))
        else:
            upper = self._open(middle, node.high_s, node.bound, stop_above, node)
        lower = self._open(node.low_s, middle, node.bound, stop_above, node)
        return [child for child in (upper, lower) if child is not None]

    def _open(
        self, low_s: float, high_s: float, known: float, stop_above: float, parent: SearchInterval | None = None
    ) -> SearchInterval | None:
        """Return an interval with its bound, at least ``known`` and that of its ``parent``; None if it has no plan."""
        cost_bound = self.bound.at(high_s, self.goal.most_cost(stop_above, low_s), low_s)
        cost = cost_bound.cost if parent is None else max(parent.cost, cost_bound.cost)
        node = SearchInterval(self.value(low_s, cost, known), low_s, high_s, cost, cost_bound.loose, cost_bound.actors)
        return self.add(node if self.tightened is None or parent is None else self.tightened(node, parent, stop_above))

    def value(self, low_s: float, cost: float, known: float) -> float:
        """Return the bound on the value for a least makespan and cost, at least ``known``; infinite where there is no plan."""
        return math.inf if math.isinf(cost) else max(known, self.goal.value(low_s, cost))

    def add(self, node: SearchInterval) -> SearchInterval | None:
        """Put an interval in; return it, or None if it has no plan."""
        if math.isinf(node.bound):
            return None
        # equal bounds are taken in order of arrival, so that the search is the same in every run
        self._arrivals += 1
        heapq.heappush(self._heap, (node.bound, self._arrivals, node))
        return node


def lower_bound_of(bound: Bound, goal: StepObjective, known: float = math.inf, most_halvings: float = math.inf) -> float:
    """Return a lower bound on the value of every plan, as tight as the work budget and the halvings allow.

    Args:
        known: value of some plan, or any number above which the bound need not be tightened.
    """
    search = BoundSearch(bound, goal)
    search.start((), known)
    while most_halvings > 0 and not bound.work_budget.over and search.split(known * (1 - 1e-6)) is not None:
        most_halvings -= 1
    return max(0.0, min(search.lower_bound, known))
