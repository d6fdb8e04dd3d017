"""Best-first search over makespans and numbers of actors on several offers: proves the bound and proposes actor lists to fill.

Inputs: the two relaxations and the value of a time and a cost. A node is an interval [M_low, M_high] of makespans and a box of
actor counts. Every plan in it has a makespan of at least M_low. Its cost is at least the relaxed cost at M_high, which never
rises with the makespan. So its value is at least value(M_low, cost(M_high)). The search splits the node with the least bound.
It splits the makespan where the width of the interval weakens the bound. Otherwise it also solves the linear programme, and
splits a number of actors that is fractional in its solution. The least bound of all open nodes is below every plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solver.model.workload import FloatArray
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.lp_bound import Box, LpRelaxed, Relaxation
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.mixed_kinds.step_value import PlanValue
from solver.planning.mixed_kinds.work_budget import WorkBudget

NARROW = 1e-7  # relative width of makespans below which an interval is not halved any more
WHOLE = 1e-5
SHARE = 0.05  # of the gap that is left: what an interval may lose before it is halved


@dataclass(frozen=True, eq=False)
class SearchInterval:
    """Makespans in [low_s, high_s] with actor counts in ``box``.

    ``cost`` is a lower bound for them; ``relaxed`` the solution of the linear programme, once solved; ``cut`` whether some
    sequences were not followed; ``actors`` the (offer, position) list of the best sequence.
    """

    bound: float
    low_s: float
    high_s: float
    box: Box
    cost: float
    relaxed: LpRelaxed | None
    cut: bool
    actors: tuple[tuple[int, int], ...]


class BoundSearch:
    """State of the best-first search.

    Args:
        sequences, relaxation: the two relaxations; the second is built when it is first needed.
        first_s, last_s: no relevant plan has a makespan below the first; from the last on the relaxed cost is constant.
    """

    def __init__(
        self, sequences: Sequences, relaxation: Callable[[], Relaxation], worth: PlanValue, first_s: float, last_s: float
    ) -> None:
        self.sequences, self.worth = sequences, worth
        self._relaxation = relaxation
        self.asked = 0  # linear programmes
        self.closed = math.inf  # the least bound of nodes that cannot be split any more
        self._heap: list[tuple[float, int, SearchInterval]] = []
        self._arrivals = 0
        self._first_s, self._last_s = first_s, max(first_s, last_s)

    def start(self, grid: list[float], enough: float) -> list[SearchInterval]:
        """Open one node per interval between the makespans of ``grid`` (those between the first and the last)."""
        edges = sorted({self._first_s, self._last_s, *(m for m in grid if self._first_s < m < self._last_s)})
        low, nodes = self._first_s, []
        for high in edges[1:] or edges:
            nodes.append(self._open(low, high, 0.0, enough))
            low = high
        return [node for node in nodes if node is not None]

    @property
    def lower_bound(self) -> float:
        """Return a lower bound on the value of any plan; infinite if there is no plan."""
        return min(self.closed, self._heap[0][0] if self._heap else math.inf)

    def split(self, enough: float, linear: bool = True) -> list[SearchInterval] | None:
        """Split the node with the least bound and return the new nodes; an empty list if it only got a better bound.

        Returns None if its bound is ``enough`` or more, or no node is left to split. ``linear``: whether the linear programme
        may be solved.
        """
        if not self._heap or self._heap[0][0] >= enough:
            return None
        _, _, node = heapq.heappop(self._heap)
        lost = self.worth.value(node.high_s, node.cost) - node.bound
        wide = node.high_s - node.low_s > NARROW * node.high_s
        known = math.isinf(enough)
        ask = node.relaxed is None and linear
        if wide and not (ask and node.cut) and (known or not linear or not lost <= SHARE * (enough - node.bound)):
            return self._halve(node, enough)
        if ask:
            self._ask(node, node.box)
            return []
        key, number = self._fractional(node.relaxed) if node.relaxed is not None else (None, 0.0)
        if key is None or not linear:
            if wide:
                return self._halve(node, enough)
            self.closed = min(self.closed, node.bound)
            return []
        limits = dict(node.box)
        old = limits.get(key, (-math.inf, math.inf))
        children = []
        for low, high in ((-math.inf, math.floor(number)), (math.ceil(number), math.inf)):
            box = tuple(sorted({**limits, key: (max(low, old[0]), min(high, old[1]))}.items()))
            children.append(self._ask(node, box))
        return [child for child in children if child is not None]

    def _halve(self, node: SearchInterval, enough: float) -> list[SearchInterval]:
        middle = (node.low_s + node.high_s) / 2
        if node.high_s > 2 * node.low_s > 0:
            middle = math.sqrt(node.low_s * node.high_s)
        upper = self._add(replace(node, low_s=middle, bound=max(node.bound, self.worth.value(middle, node.cost))))
        lower = self._open(node.low_s, middle, node.bound, enough, node)
        return [child for child in (upper, lower) if child is not None]

    def _open(
        self, low_s: float, high_s: float, known: float, enough: float, parent: SearchInterval | None = None
    ) -> SearchInterval | None:
        """Return a node with the bound of the sequences, and of the linear programme if the parent had solved it."""
        cost = parent.cost if parent is not None else 0.0
        found = self.sequences.at(high_s, self.worth.most_cost(enough, low_s), low_s)
        cost = max(cost, found.cost)
        relaxed = None
        if parent is not None and parent.relaxed is not None and self._bound(low_s, cost, known) < enough:
            self.asked += 1
            relaxed = self._relaxation().at(high_s, parent.box, low_s)
            cost = max(cost, relaxed.cost)
        box = parent.box if parent is not None else ()
        return self._add(
            SearchInterval(self._bound(low_s, cost, known), low_s, high_s, box, cost, relaxed, found.cut, found.actors)
        )

    def _ask(self, node: SearchInterval, box: Box) -> SearchInterval | None:
        """Return the node with this box, bounded by the linear programme as well."""
        self.asked += 1
        relaxed = self._relaxation().at(node.high_s, box, node.low_s)
        cost = max(node.cost, relaxed.cost)
        bound = self._bound(node.low_s, cost, node.bound)
        return self._add(replace(node, bound=bound, box=box, cost=cost, relaxed=relaxed))

    def _bound(self, low_s: float, cost: float, known: float) -> float:
        return math.inf if math.isinf(cost) else max(known, self.worth.value(low_s, cost))

    def _add(self, node: SearchInterval) -> SearchInterval | None:
        if math.isinf(node.bound):
            return None
        # equal bounds are taken in order of arrival, so that the search is the same in every run
        self._arrivals += 1
        heapq.heappush(self._heap, (node.bound, self._arrivals, node))
        return node

    def _fractional(self, relaxed: LpRelaxed) -> tuple[tuple[int, int] | None, float]:
        """Return the count to branch on: that of all actors up to a class, of all of an offer, then of an offer up to
        a class."""
        actors = relaxed.actors
        prefix = np.cumsum(actors, axis=1)
        everyone = prefix.sum(axis=0)

        def distance(values: FloatArray) -> FloatArray:
            return np.asarray(np.abs(values - np.round(values)))

        last = actors.shape[1] - 1
        far = distance(prefix[:, last])
        if far.max() > 0.1:
            r = int(np.argmax(far))
            return (r, last), float(prefix[r, last])
        far = distance(everyone)
        if far.max() > 0.1:
            k = int(np.argmax(far))
            return (-1, k), float(everyone[k])
        far = distance(prefix)
        r, k = divmod(int(np.argmax(far)), far.shape[1])
        if far[r, k] > WHOLE:
            return (r, k), float(prefix[r, k])
        return None, 0.0


def floor_of(work: MixedWork, worth: PlanValue) -> float:
    """Return a bound below every plan of ``work``, without any search.

    No plan is faster than its slowest item, and every item costs its load and its share of the slots on its cheapest offer.
    """
    paid = work.rate[:, None] * (work.load + (work.step_s / work.slots)[:, None] * work.steps)
    cost = float(np.where(work.allowed, paid, np.inf).min(axis=0).sum()) if worth.held_after_s is None else 0.0
    return max(0.0, worth.value(work.shortest_makespan_s, cost * (1 - 1e-9)))


def bound_of(
    work: MixedWork,
    worth: PlanValue,
    known: float,
    effort: WorkBudget,
    *,
    min_actors: int = 1,
    max_actors: int | None = None,
) -> float:
    """Return a bound below every plan of ``work`` from sequences alone, as tight as the work budget allows.

    Args:
        known: value of some plan, or any number above which the bound need not be tightened.
    """
    sequences = Sequences(
        work, min_actors=min_actors, max_actors=max_actors, release=worth.release, after_s=worth.phases.seconds,
        effort=effort,
    )  # fmt: skip

    def none() -> Relaxation:
        raise AssertionError("sequences are enough here")

    search = BoundSearch(sequences, none, worth, work.shortest_makespan_s, work.longest_makespan_s)
    search.start([], known)
    while not effort.over and search.split(known * (1 - 1e-6), linear=False) is not None:
        pass
    return max(0.0, min(search.lower_bound, known))
