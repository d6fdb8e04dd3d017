"""Best-first search over the makespan: finds the plan and proves the bound for one GPU kind, without OR-Tools.

The bound is that of ``solver.planning.bound_search``: the interval of makespans with the least bound is halved until it meets
the best plan. Plans come from rounding at the makespans between.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.planning.bound_search import BoundSearch
from solver.planning.single_kind.fill import MOST_FILLED, fill
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.late_opening import LateOpening
from solver.planning.single_kind.rounding import at_least, next_fit
from solver.planning.single_kind.slot_waves import waves
from solver.planning.work_budget import WorkBudget
from solver.timing.group_times import Split
from solver.timing.step_cost import Pricing

GRID = 12  # intervals at the start
FINER = 64  # how much narrower than for plans intervals of makespans become for the bound
MOST_LOST = 3  # makespans in a row at which next-fit may find nothing better before it is left out
LATE = 1e-3  # relative to a makespan, of plans that aim at it: more means that there are too few actors
NARROW = 1e-12  # relative width of makespans down to which the bound may be tightened
NEAR = 0.05  # relative width of an interval in which large plans are looked at
FILLED_EVERY = 4e-3  # relative distance of the makespans at which leftovers are filled around the best one
POLISHES, POLISHED = 3, 2e-3  # looks at both neighbours of the best makespan, unless they are this near


@dataclass
class MakespanSearch:
    """State of the search: the best split, its value, and the bound below every plan.

    Args:
        work: the sorted workload; pricing: defines the value of a plan.
        busy_of: (1, N) seconds of the groups of a split; ``exact``, or ``least`` for a quick lower bound.
        exact: if False, groups that share their slots in waves are valued by the waves' approximate times. They are timed
            exactly only where the plan may be near the best, because that is slow.
        work_budget: the clock at which to stop; a search that it stops is ``late`` in it.
        best_value: of a plan that is known already; only better splits are kept.
        per_count: the most promising split for every number of actors, by a value that may be a lower bound.
    """

    work: SortedWork
    pricing: Pricing
    busy_of: Callable[[Split, str], FloatArray]
    exact: bool = True
    work_budget: WorkBudget = field(default_factory=WorkBudget)
    best_value: float = math.inf
    best: Split | None = None
    lower_bound: float = 0.0
    per_count: dict[int, tuple[float, Split]] = field(default_factory=dict)
    _bounds: BoundSearch | None = None
    _tried: dict[bytes, float] = field(default_factory=dict)
    _value_at: dict[float, float] = field(default_factory=dict)
    _try_s: float = 0.0  # what the last try of a makespan took
    _waves_better: int = 0  # makespans in a row at which waves were better than next-fit
    _too_few_s: float = 0.0  # a makespan that actors as many as there are do not keep

    def run(self, gap: float, halvings: int, *, filling: bool = False, width: float = 1e-9) -> None:
        """Search until the relative gap is reached, ``halvings`` run out, or the clock stops it.

        At least one makespan is tried, and the bound, which takes a small part of the
        time, is improved all the same. Another call continues the search.

        Args:
            filling: also fill up the leftovers of groups, which takes longer.
            width: intervals narrower than this, relative to their makespan, are not searched for plans any more.
        """
        bounds = self._bounds or self._begin(filling)
        if bounds is None:
            return
        if not self.work.refills:
            self._polish(filling)
        for _ in range(halvings):
            lowest = bounds.lowest
            if lowest is None or lowest.bound >= self.best_value * (1 - gap):
                break
            a, b = lowest.low_s, lowest.high_s
            if b - a <= width * b / FINER:
                break
            late = bool(self._value_at) and self._late()
            bounds.split()
            if not late and self._near_best(a, b, width):
                self._try((a + b) / 2, filling)
        if self.exact and self.work.refills and bounds.lower_bound < self.best_value * (1 - gap):
            self._polish(filling)
        self.lower_bound = min(bounds.lower_bound, self.best_value)

    def fill_best(self, around: int) -> None:
        """Fill up leftovers at the makespan whose plan is best so far, and at ``around`` makespans on either side.

        Of equal makespans the longest is used, which leaves most room. Neighbours are tried because the result of filling
        depends on where slots happen to be free.
        """
        if not self._value_at:
            return
        low, high = self._range()
        best = min(self._value_at, key=lambda m: (self._value_at[m], -m))
        for step in sorted(range(-around, around + 1), key=abs):
            makespan_s = best * (1 + FILLED_EVERY * step)
            if self._late():
                return
            if low <= makespan_s <= high:
                self._try(makespan_s, filling=True)

    def bound_beyond(self, actors: int, stop_above: float, halvings: int = 60) -> float:
        """Return a lower bound on the value of any plan with more than ``actors`` actors; the search for it stops at
        ``stop_above``."""
        low, high = self._range()
        if high < low:
            return math.inf
        search = BoundSearch(LateOpening(self.work, self.pricing, actors + 1), self.pricing, high, NARROW)
        search.start()
        while halvings and search.split(stop_above) is not None:
            halvings -= 1
        return search.lower_bound

    def _begin(self, filling: bool) -> BoundSearch | None:
        """Try a first grid of makespans; None if the deadline is too early. The clock does not stop it before one plan is
        known."""
        low, high = self._range()
        if high < low:
            self.lower_bound = math.inf
            return None
        grid = [low * (high / low) ** (i / GRID) for i in range(1, GRID)] if high > low > 0 else []
        self._bounds = BoundSearch(LateOpening(self.work, self.pricing), self.pricing, high, NARROW)
        nodes = self._bounds.start(grid)
        for node in sorted(nodes, key=lambda node: (node.bound, node.low_s)):
            if node.bound >= self.best_value or not (self.exact or not self.work.refills or math.isinf(self.best_value)):
                break
            if (self.best is not None or self._value_at) and self.best_value < math.inf and self._late():
                break
            self._try(node.high_s, filling)
        else:
            if nodes and nodes[0].low_s == low:
                self._try(low, filling)
        return self._bounds

    def _polish(self, filling: bool) -> None:
        """Try makespans between the best one and its neighbours.

        The bound leads to where no plan is excluded, but the best plans are where the rounding finds any.
        """
        for _ in range(POLISHES):
            if not self._value_at:
                return
            if self._late():
                return
            tried = sorted(self._value_at)
            at = min(range(len(tried)), key=lambda i: self._value_at[tried[i]])
            between = [(tried[at] + tried[i]) / 2 for i in (at - 1, at + 1) if 0 <= i < len(tried)]
            for makespan_s in between:
                if abs(makespan_s - tried[at]) > POLISHED * tried[at]:
                    self._try(makespan_s, filling)

    def _range(self) -> tuple[float, float]:
        """Return the makespans between which the best plan is; empty (low above high) when the deadline is too early."""
        low, high = self.work.shortest_makespan_s, self.work.longest_makespan_s * (1 + 1e-9)
        if self.pricing.objective.deadline_s is not None:
            high = min(high, self.pricing.objective.generation_within_s(self.pricing.phases))
        return low, high

    def _try(self, makespan_s: float, filling: bool) -> None:
        """Round at this makespan, and keep the plan found if it is better."""
        began = time.perf_counter()
        values = [math.inf]
        shared = None if not self.work.refills or makespan_s < self._too_few_s else waves(self.work, makespan_s)
        if shared is not None:
            groups, about_s = shared
            values.append(self._keep_groups(groups, None if self.exact else about_s))
            if about_s.max() + self.work.ready_of(0) > makespan_s * (1 + LATE):
                self._too_few_s = max(self._too_few_s, makespan_s)
        edges = next_fit(self.work, makespan_s) if shared is None or (self.exact and self._waves_better < MOST_LOST) else None
        if edges is not None:
            groups = [np.arange(a, b) for a, b in itertools.pairwise(edges.tolist())]
            if len(groups) >= self.work.min_actors and len(self.work.edge) == len(self.work.order) + 1:
                values.append(self.keep(Split(self.work.order, edges)))
            else:
                values.append(self._keep_groups(groups))
            self._waves_better = self._waves_better + 1 if values[-1] >= min(values[:-1]) else 0
        if filling and len(self.work) <= MOST_FILLED:
            filled = fill(self.work, makespan_s)
            if filled is not None:
                values.append(self._keep_groups(filled))
        self._value_at[makespan_s] = min(values)
        self._try_s = time.perf_counter() - began

    def _late(self) -> bool:
        """Return whether the clock stops another try, if it takes as long as the last one."""
        return self.work_budget.late_after(self._try_s)

    def _near_best(self, a: float, b: float, width: float) -> bool:
        """Return whether to round in the middle of this interval. If rounding is slow, only near the best and half as
        densely."""
        if self.exact or not self.work.refills:
            return b - a > width * b
        return 2 * width * b < b - a <= NEAR * b and (a + b) / 2 > self._too_few_s

    def _keep_groups(self, groups: list[IntArray], about_s: FloatArray | None = None) -> float:
        """Keep groups of items as a split, with at least the required number of actors, and return its value."""
        if len(groups) < self.work.min_actors:
            groups, about_s = at_least(groups, self.work.min_actors), None
        return self.keep(self.split_of(groups), about_s)

    def split_of(self, groups: list[IntArray]) -> Split:
        """Return groups of items as a split."""
        responses = [self.work.responses(group) for group in groups]
        return Split(np.concatenate(responses), np.cumsum([0, *map(len, responses)]))

    def keep(self, split: Split, about_s: FloatArray | None = None) -> float:
        """Return the value of the split and keep it if it is the best.

        The value is exact where the split could be the best, unless its approximate time is known.
        """
        key = split.edges.tobytes() + (b"" if split.order is self.work.order else split.order.tobytes())
        if key in self._tried:
            return self._tried[key]
        value = self.pricing.value_of(self.busy_of(split, "least") if about_s is None else about_s[None])
        if value < self.best_value and about_s is None:
            value = self.pricing.value_of(self.busy_of(split, "exact"))
        count = len(split.edges) - 1
        if count not in self.per_count or value < self.per_count[count][0]:
            self.per_count[count] = (value, split)
        if value < self.best_value:
            self.best_value, self.best = value, split
        self._tried[key] = value
        return value
