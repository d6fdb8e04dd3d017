"""Chooses the number of actors for a given way of splitting responses into groups, timing as few groups exactly as possible.

Inputs: a function that splits the responses into N groups, and the pricing of a step. The count with the least key
(``rank_key``) wins.

Groups that refill are slow to time exactly, but lower bounds of their times (solver.timing.group_times) take a few array calls
for all of them. A key never falls when a group takes longer, so the key of the lower bounds is a lower bound of the exact key.
The search is best-first: the count with the least bound gets one more set of lengths timed exactly, until the first in line is
exact. Then no other count is better, even where its exact time was not computed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from solver.model.objective import Objective
from solver.model.workload import FloatArray, IntArray
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import Pricing

EXACT_RESPONSES = 6000  # larger workloads have one count timed exactly, and only so much of others
MOST_TIMED = 120_000  # responses, counted for every count and averaged over the sets of lengths

Key = tuple[float, float]
Timed = Callable[[int], tuple[GroupTimes, IntArray]]
"""Splits the responses into N groups: their times, and the (N+1,) edges of the groups."""


def sizing_key(time_s: FloatArray, cost: FloatArray, objective: Objective) -> Key:
    """Return ``rank_key`` of (S,) times and costs of the whole step, at the objective's risk."""
    return rank_key(objective.risk(time_s), objective.risk(cost), objective)


def rank_key(time: float, paid: float, objective: Objective) -> Key:
    """Return the key that right-sizing minimises.

    Under a limit: how far it is missed, then the other quantity. Otherwise: 0, then the logarithm of ``T^w C^(1-w)``.
    """
    if objective.deadline_s is not None:
        return (max(0.0, time - objective.deadline_s), paid)
    if objective.budget is not None:
        return (max(0.0, paid - objective.budget), time)
    w = objective.time_weight
    return (0.0, w * math.log(max(time, 1e-12)) + (1 - w) * math.log(max(paid, 1e-12)))


class _Count:
    """One number of actors, with its groups timed exactly for some of the sets of lengths.

    Attributes:
        busy_s: (S, N) seconds of its groups, exact or as lower bounds. key: the key computed from them.
        untimed: sets of lengths that are not timed exactly yet, the last one first.
    """

    def __init__(self, times: GroupTimes, edges: IntArray, pricing: Pricing) -> None:
        self.edges, self._pricing = edges, pricing
        self.busy_s, self._refills = times.least_s(edges)
        self.key = self._now()
        self.untimed: list[int] = np.flatnonzero(self._refills.any(axis=1)).tolist()

    def _now(self) -> Key:
        return sizing_key(*self._pricing.step_of(self.busy_s), self._pricing.objective)

    def refine(self, times: GroupTimes) -> None:
        """Time one more set of lengths exactly."""
        case = self.untimed.pop()
        self.busy_s[case] = times.exact_row(self.edges, case, self.busy_s[case], self._refills[case])
        self.key = max(self.key, self._now())  # of what is rounded: a bound never falls


def best_count(counts: Sequence[int], timed: Timed, pricing: Pricing) -> tuple[Split, FloatArray]:
    """Return the groups with the least key over ``counts``, and the (S, N) seconds that they are busy.

    Above ``EXACT_RESPONSES`` responses the most promising count is timed exactly, and then at most ``MOST_TIMED`` responses of
    other counts. The result may then be suboptimal, as some counts are not timed to the end.
    """
    if len(counts) == 1:
        times, edges = timed(counts[0])
        return Split(times.order, edges), times.busy_s(edges)
    times_by_count: dict[int, GroupTimes] = {}  # only of counts that are timed exactly: all of them may take much memory

    def times_of(i: int) -> GroupTimes:
        if i not in times_by_count:
            times_by_count[i] = timed(counts[i])[0]
        return times_by_count[i]

    def finish(i: int) -> Key:
        while tried[i].untimed:
            tried[i].refine(times_of(i))
        return tried[i].key

    tried = [_Count(*timed(n), pricing) for n in counts]
    waiting = [(count.key, i) for i, count in enumerate(tried)]
    heapq.heapify(waiting)
    timings_left, responses = math.inf, len(times_of(waiting[0][1]).order)
    if responses > EXACT_RESPONSES:
        timings_left = MOST_TIMED * len(tried[0].busy_s) // responses
        heapq.heapreplace(waiting, (finish(waiting[0][1]), waiting[0][1]))
    while timings_left > 0 and tried[i := waiting[0][1]].untimed:
        tried[i].refine(times_of(i))
        heapq.heapreplace(waiting, (tried[i].key, i))
        timings_left -= 1
        if timings_left == 0:
            finish(waiting[0][1])
    chosen = min((count.key, i) for i, count in enumerate(tried) if not count.untimed)[1]
    best = tried[chosen]
    return Split(times_of(chosen).order, best.edges), best.busy_s
