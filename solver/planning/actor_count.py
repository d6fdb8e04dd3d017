"""How many actors a way of splitting responses is best with: the least key over counts, timing as few of them as possible.

Knows groups, their times and what a step is worth; nothing of how responses are split.

Groups that refill take long to time exactly, but what they take at least (solver.timing.group_times) is known for all of them
in a few array calls. A key never falls when a group takes longer, so the key of the least times is a lower bound of the exact
one. The search is best-first: the count with the least bound has one more set of lengths timed exactly, until the first in line
is exact. No other count is better then, whatever was not timed of it.
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
    """``rank_key`` of (S,) times and costs of the whole step, at the objective's risk."""
    return rank_key(objective.risk(time_s), objective.risk(cost), objective)


def rank_key(time: float, paid: float, objective: Objective) -> Key:
    """What right-sizing minimises: how far a limit is missed, then the other quantity; or the logarithm of ``T^w C^(1-w)``."""
    if objective.deadline_s is not None:
        return (max(0.0, time - objective.deadline_s), paid)
    if objective.budget is not None:
        return (max(0.0, paid - objective.budget), time)
    w = objective.time_weight
    return (0.0, w * math.log(max(time, 1e-12)) + (1 - w) * math.log(max(paid, 1e-12)))


class _Count:
    """One number of actors, as far as its groups have been timed.

    Attributes:
        busy_s: (S, N) what its groups take, or at least take. key: its key with that.
        left: sets of lengths that are not timed exactly yet, the last one first.
    """

    def __init__(self, times: GroupTimes, edges: IntArray, pricing: Pricing) -> None:
        self.edges, self._pricing = edges, pricing
        self.busy_s, self._refills = times.least_s(edges)
        self.key = self._now()
        self.left: list[int] = np.flatnonzero(self._refills.any(axis=1)).tolist()

    def _now(self) -> Key:
        return sizing_key(*self._pricing.step(self.busy_s), self._pricing.objective)

    def refine(self, times: GroupTimes) -> None:
        """Time one more set of lengths."""
        case = self.left.pop()
        self.busy_s[case] = times.exact_row(self.edges, case, self.busy_s[case], self._refills[case])
        self.key = max(self.key, self._now())  # of what is rounded: a bound never falls


def best_count(counts: Sequence[int], timed: Timed, pricing: Pricing) -> tuple[Split, FloatArray]:
    """The groups with the least key over ``counts``, and the (S, N) seconds that they are busy.

    Of more than ``EXACT_RESPONSES`` responses the most promising count is timed exactly, and then no more than ``MOST_TIMED``
    responses of others: some count that was not looked at to its end may be better.
    """
    if len(counts) == 1:
        times, edges = timed(counts[0])
        return Split(times.order, edges), times.busy_s(edges)
    kept: dict[int, GroupTimes] = {}  # only of counts that are looked at: of all of them it may be much

    def looked_at(i: int) -> GroupTimes:
        if i not in kept:
            kept[i] = timed(counts[i])[0]
        return kept[i]

    def finish(i: int) -> Key:
        while tried[i].left:
            tried[i].refine(looked_at(i))
        return tried[i].key

    tried = [_Count(*timed(n), pricing) for n in counts]
    waiting = [(count.key, i) for i, count in enumerate(tried)]
    heapq.heapify(waiting)
    looks, responses = math.inf, len(looked_at(waiting[0][1]).order)
    if responses > EXACT_RESPONSES:
        looks = MOST_TIMED * len(tried[0].busy_s) // responses
        heapq.heapreplace(waiting, (finish(waiting[0][1]), waiting[0][1]))
    while looks > 0 and tried[i := waiting[0][1]].left:
        tried[i].refine(looked_at(i))
        heapq.heapreplace(waiting, (tried[i].key, i))
        looks -= 1
        if looks == 0:
            finish(waiting[0][1])
    chosen = min((count.key, i) for i, count in enumerate(tried) if not count.left)[1]
    best = tried[chosen]
    return Split(looked_at(chosen).order, best.edges), best.busy_s
