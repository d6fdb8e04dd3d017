"""Best-first search over the makespan: finds the plan and proves the bound for one GPU kind, without OR-Tools.

For every makespan M the relaxation is a lower bound on the cost of any plan within M, and the rounding gives a plan. Let the
makespan of a plan be between two values M_q <= M_{q+1}. As the relaxed cost C never rises with M, the plan's value is at least

    w * M_q / T_ref + (1 - w) * C(M_{q+1}) / C_ref .

The interval with the least bound is halved until the bound meets the best plan. Where actors hold their GPUs until the end of
generation or of the step, N actors cost at least N times that.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.planning.single_kind.fill import MOST_FILLED, fill
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.relaxation import relaxed
from solver.planning.single_kind.rounding import at_least, next_fit
from solver.planning.single_kind.slot_waves import waves
from solver.timing.group_times import Split
from solver.timing.step_cost import Pricing

GRID = 12  # intervals at the start
FINER = 64  # how much narrower than for plans intervals of makespans become for the bound
MOST_LOST = 3  # makespans in a row at which next-fit may find nothing better before it is left out
LATE = 1e-3  # relative to a makespan, of plans that aim at it: more means that there are too few actors
NARROW = 0.05  # relative width of one in which large plans are looked at
FILLED_EVERY = 4e-3  # relative distance of the makespans at which leftovers are filled around the best one
POLISHES, POLISHED = 3, 2e-3  # looks at both neighbours of the best makespan, unless they are this near


@dataclass
class MakespanSearch:
    """State of the search: the best split, its value, and the bound below every plan.

    Args:
        work: the sorted workload; pricing, norms: define the value of a plan.
        busy_of: (1, N) seconds of the groups of a split; ``exact``, or ``least`` for a quick lower bound.
        exact: if False, groups that share their slots in waves are valued by the waves' approximate times. They are timed
            exactly only where the plan may be near the best, because that is slow.
        best_value: of a plan that is known already; only better splits are kept.
        per_count: the most promising split for every number of actors, by a value that may be a lower bound.
    """

    work: SortedWork
    pricing: Pricing
    norms: tuple[float, float]
    busy_of: Callable[[Split, str], FloatArray]
    exact: bool = True
    best_value: float = math.inf
    best: Split | None = None
    lower_bound: float = 0.0
    stopped: bool = False
    per_count: dict[int, tuple[float, Split]] = field(default_factory=dict)
    _intervals: list[tuple[float, float, float]] = field(default_factory=list)
    _tried: dict[bytes, float] = field(default_factory=dict)
    _value_at: dict[float, float] = field(default_factory=dict)
    _look_s: float = 0.0  # what the last look at a makespan took
    _lost: int = 0  # makespans in a row at which waves were better than next-fit
    _too_few_s: float = 0.0  # a makespan that actors as many as there are do not keep

    def run(self, gap: float, deadline: float, halvings: int, *, filling: bool = False, width: float = 1e-9) -> None:
        """Search until the relative gap is reached, ``halvings`` run out, or the clock (perf_counter) reaches ``deadline``.

        Reaching ``deadline`` sets ``stopped``; at least one makespan is tried. Another call continues the search.

        Args:
            filling: also fill up the leftovers of groups, which takes longer.
            width: intervals narrower than this, relative to their makespan, are not searched for plans any more.
        """
        if not self._intervals and not self._begin(deadline, filling):
            return
        if self._slots_fit():
            self._polish(deadline, filling)
        for _ in range(halvings):
            bound, a, b = self._intervals[0]
            if bound >= self.best_value * (1 - gap) or b - a <= width * b / FINER:
                break
            if self._value_at and self._late(deadline):
                self.stopped = True
                break
            heapq.heappop(self._intervals)
            middle = (a + b) / 2
            if self._worth_a_look(a, b, width):
                self._try(middle, filling)
            for x, y in ((a, middle), (middle, b)):
                heapq.heappush(self._intervals, (max(bound, self._interval_bound(x, y)), x, y))
        if self.exact and not self._slots_fit() and self._intervals[0][0] < self.best_value * (1 - gap):
            self._polish(deadline, filling)
        self.lower_bound = min(self._intervals[0][0], self.best_value)

    def fill_best(self, around: int, deadline: float) -> None:
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
            if self._late(deadline):
                self.stopped = True
                return
            if low <= makespan_s <= high:
                self._try(makespan_s, filling=True)

    def bound_beyond(self, actors: int, enough: float, halvings: int = 60) -> float:
        """Return a lower bound on the value of any plan with more than ``actors`` actors; the search for it stops at
        ``enough``."""
        low, high = self._range()
        intervals = [(self._interval_bound(low, high, actors + 1), low, high)] if low <= high else [(math.inf, low, high)]
        for _ in range(halvings):
            bound, a, b = intervals[0]
            if bound >= enough or b - a <= 1e-9 * b:
                break
            heapq.heappop(intervals)
            middle = (a + b) / 2
            for x, y in ((a, middle), (middle, b)):
                heapq.heappush(intervals, (max(bound, self._interval_bound(x, y, actors + 1)), x, y))
        return intervals[0][0]

    def _begin(self, deadline: float, filling: bool) -> bool:
        """Try a first grid of makespans. The clock does not stop this until one plan is known."""
        low, high = self._range()
        if high < low:
            self.lower_bound = math.inf
            return False
        grid = [low * (high / low) ** (i / GRID) for i in range(GRID + 1)] if high > low > 0 else [low, high]
        grid[-1] = high
        self._intervals = [(self._interval_bound(a, b), a, b) for a, b in itertools.pairwise(grid)]
        heapq.heapify(self._intervals)
        for bound, _, b in sorted(self._intervals):
            if bound >= self.best_value or not (self._slots_fit() or self.exact or math.isinf(self.best_value)):
                break
            self._try(b, filling)
            if self.best_value < math.inf and self._late(deadline):
                self.stopped = True
                break
        else:
            self._try(low, filling)
        return True

    def _polish(self, deadline: float, filling: bool) -> None:
        """Try makespans between the best one and its neighbours.

        The bound leads to where no plan is excluded, but the best plans are where the rounding finds any.
        """
        for _ in range(POLISHES):
            if not self._value_at:
                return
            if self._late(deadline):
                self.stopped = True
                return
            tried = sorted(self._value_at)
            at = min(range(len(tried)), key=lambda i: self._value_at[tried[i]])
            beside = [(tried[at] + tried[i]) / 2 for i in (at - 1, at + 1) if 0 <= i < len(tried)]
            for makespan_s in beside:
                if abs(makespan_s - tried[at]) > POLISHED * tried[at]:
                    self._try(makespan_s, filling)

    def _range(self) -> tuple[float, float]:
        """Return the makespans between which the best plan is; empty (low above high) when the deadline is too early."""
        low, high = self.work.shortest_makespan_s, self.work.longest_makespan_s * (1 + 1e-9)
        if self.pricing.objective.deadline_s is not None:
            high = min(high, self.pricing.objective.generation_within_s(self.pricing.phases))
        return low, high

    def _interval_bound(self, low_s: float, high_s: float, min_actors: int = 1) -> float:
        """Return a lower bound on the value of any plan (of ``min_actors`` or more) whose makespan is in [low_s, high_s].

        Infinite when there is no such plan.
        """
        least = relaxed(self.work, high_s, min_actors)
        if least is None:
            return math.inf
        pricing, phases = self.pricing, self.pricing.phases
        held = least.actor_s
        if pricing.release != "done":
            held = max(held, least.actors * low_s) + (least.actors * phases.seconds if pricing.release == "step" else 0.0)
        time_s = phases.step_time_s(low_s)
        return pricing.objective.value(time_s, pricing.actor_rate * held + pricing.learner_rate * time_s, self.norms)

    def _try(self, makespan_s: float, filling: bool) -> None:
        """Round at this makespan, and keep the plan found if it is better."""
        began = time.perf_counter()
        values = [math.inf]
        shared = None if self._slots_fit() or makespan_s < self._too_few_s else waves(self.work, makespan_s)
        if shared is not None:
            groups, about_s = shared
            values.append(self._keep_groups(groups, None if self.exact else about_s))
            if about_s.max() + self.work.ready_of(0) > makespan_s * (1 + LATE):
                self._too_few_s = max(self._too_few_s, makespan_s)
        edges = next_fit(self.work, makespan_s) if shared is None or (self.exact and self._lost < MOST_LOST) else None
        if edges is not None:
            groups = [np.arange(a, b) for a, b in itertools.pairwise(edges.tolist())]
            if len(groups) >= self.work.min_actors and len(self.work.edge) == len(self.work.order) + 1:
                values.append(self._keep(Split(self.work.order, edges)))
            else:
                values.append(self._keep_groups(groups))
            self._lost = self._lost + 1 if values[-1] >= min(values[:-1]) else 0
        if filling and len(self.work) <= MOST_FILLED:
            filled = fill(self.work, makespan_s)
            if filled is not None:
                values.append(self._keep_groups(filled))
        self._value_at[makespan_s] = min(values)
        self._look_s = time.perf_counter() - began

    def _late(self, deadline: float) -> bool:
        """Return whether another try would end after the deadline (perf_counter), if it takes as long as the last one."""
        return time.perf_counter() + self._look_s > deadline

    def _worth_a_look(self, a: float, b: float, width: float) -> bool:
        """Return whether to round in the middle of this interval. If rounding is slow, only near the best and half as
        densely."""
        if self.exact or self._slots_fit():
            return b - a > width * b
        return 2 * width * b < b - a <= NARROW * b and (a + b) / 2 > self._too_few_s

    def _slots_fit(self) -> bool:
        """Return whether all responses fit into one batch, so that no plan refills."""
        return len(self.work.order) <= self.work.slots

    def _keep_groups(self, groups: list[IntArray], about_s: FloatArray | None = None) -> float:
        """Keep groups of items as a split, with at least the required number of actors, and return its value."""
        if len(groups) < self.work.min_actors:
            groups, about_s = at_least(groups, self.work.min_actors), None
        responses = [self.work.responses(group) for group in groups]
        return self._keep(Split(np.concatenate(responses), np.cumsum([0, *map(len, responses)])), about_s)

    def _keep(self, split: Split, about_s: FloatArray | None = None) -> float:
        """Return the value of the split and keep it if it is the best.

        The value is exact where the split could be the best, unless its approximate time is known.
        """
        key = split.edges.tobytes() + (b"" if split.order is self.work.order else split.order.tobytes())
        if key in self._tried:
            return self._tried[key]
        value = self.pricing.value(self.busy_of(split, "least") if about_s is None else about_s[None], self.norms)
        if value < self.best_value and about_s is None:
            value = self.pricing.value(self.busy_of(split, "exact"), self.norms)
        count = len(split.edges) - 1
        if count not in self.per_count or value < self.per_count[count][0]:
            self.per_count[count] = (value, split)
        if value < self.best_value:
            self.best_value, self.best = value, split
        self._tried[key] = value
        return value
