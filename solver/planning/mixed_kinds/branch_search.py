"""Best-first search over makespans and numbers of actors on several offers: adds the linear programme.

Inputs: the two relaxations and the value of a makespan and a cost. A node is an interval of makespans and a box of actor
counts. The search splits the node with the least bound. It splits the makespan where the width of the interval weakens the
bound. Otherwise it also solves the linear programme, and splits a number of actors that is fractional in its solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solver.model.workload import FloatArray
from solver.planning.bound_search import BoundSearch, Box, SearchInterval
from solver.planning.mixed_kinds.lp_bound import LpRelaxed, Relaxation
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.timing.step_cost import StepObjective

WHOLE = 1e-5
SHARE = 0.05  # of the gap that is left: what an interval may lose before it is halved


class BranchSearch:
    """State of the search.

    Args:
        relaxation: builds the linear programme, when it is first needed.
        last_s: no relevant plan has a longer makespan.

    Attributes:
        intervals: the open nodes. programmes: linear programmes solved so far.
    """

    def __init__(self, sequences: Sequences, relaxation: Callable[[], Relaxation], goal: StepObjective, last_s: float) -> None:
        self.intervals = BoundSearch(sequences, goal, last_s, tightened=self._tightened)
        self._relaxation = relaxation
        self.programmes = 0

    @property
    def lower_bound(self) -> float:
        """Return a lower bound on the value of any plan; infinite if there is no plan."""
        return self.intervals.lower_bound

    def split(self, stop_above: float = math.inf, linear: bool = True) -> list[SearchInterval] | None:
        """Split the node with the least bound and return the new nodes; an empty list if it only got a better bound.

        Returns None if its bound is ``stop_above`` or more, or no node is left to split. ``linear``: whether the linear
        programme may be solved.
        """
        intervals, node = self.intervals, self.intervals.lowest
        if not linear or node is None or node.bound >= stop_above:
            return intervals.split(stop_above)
        intervals.pop()
        lost = intervals.goal.value(node.high_s, node.cost) - node.bound
        solve = node.relaxed is None
        small = not math.isinf(stop_above) and lost <= SHARE * (stop_above - node.bound)
        if intervals.wide(node) and not (solve and node.loose) and not small:
            return intervals.halve(node, stop_above)
        if solve:
            intervals.add(self._solved(node, node.box))
            return []
        key, number = self._fractional(node.relaxed)
        if key is None:
            return intervals.halve(node, stop_above)
        limits = dict(node.box)
        old = limits.get(key, (-math.inf, math.inf))
        children = []
        for low, high in ((-math.inf, math.floor(number)), (math.ceil(number), math.inf)):
            box = tuple(sorted({**limits, key: (max(low, old[0]), min(high, old[1]))}.items()))
            children.append(intervals.add(self._solved(node, box)))
        return [child for child in children if child is not None]

    def _tightened(self, node: SearchInterval, parent: SearchInterval, stop_above: float) -> SearchInterval:
        """Return the node bounded by the linear programme as well, if that was solved for its parent and may help."""
        if parent.relaxed is None:
            return node
        return self._solved(node, parent.box) if node.bound < stop_above else replace(node, box=parent.box)

    def _solved(self, node: SearchInterval, box: Box) -> SearchInterval:
        """Return the node with this box, bounded by the linear programme as well."""
        self.programmes += 1
        relaxed = self._relaxation().at(node.high_s, box, node.low_s)
        cost = max(node.cost, relaxed.cost)
        bound = self.intervals.value(node.low_s, cost, node.bound)
        return replace(node, bound=bound, box=box, cost=cost, relaxed=relaxed)

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
