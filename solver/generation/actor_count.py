"""Chooses among ways of splitting responses into groups, such as numbers of actors, timing as few groups exactly as possible.

Inputs: a function that splits the responses, and the pricing of a step. The split with the least ``Objective.key`` wins.

Groups that refill are slow to time exactly, but lower bounds of their times (solver.timing.group_times) take a few array calls
for all of them. A key never falls when a group takes longer, so the key of the lower bounds is a lower bound of the exact key.
The search is best-first: the split with the least bound gets one more set of lengths timed exactly, until the first in line is
exact. Then no other split is better, even where its exact time was not computed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing

EXACT_RESPONSES = 6000  # larger workloads have one split timed exactly, and only so much of others
MOST_TIMED = 120_000  # responses, counted for every split and averaged over the sets of lengths

Key = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups on actors of one offer: group g is ``times.order[edges[g]:edges[g + 1]]``, in order of admission."""

    times: GroupTimes
    edges: IntArray
    offer: int = 0


Splits = Callable[[int], Sequence[Groups]]
"""The groups of the i-th split, offer by offer."""


@dataclass(frozen=True, eq=False)
class TimedSplit:
    """The best split: actors as (offer, responses in order of admission), and the (S, N) seconds that they are busy."""

    actors: list[tuple[int, IntArray]]
    busy_s: FloatArray

    @property
    def groups(self) -> list[IntArray]:
        """Return the responses of every actor."""
        return [group for _, group in self.actors]

    @property
    def offers(self) -> IntArray:
        """Return the (N,) offers of the actors."""
        return np.array([offer for offer, _ in self.actors], dtype=np.int64)


class _Candidate:
    """One split, with its groups timed exactly for some of the sets of lengths.

    Attributes:
        busy_s: (S, N) seconds of its groups, exact or as lower bounds. key: the key computed from them.
        untimed: sets of lengths that are not timed exactly yet, the last one first.
    """

    def __init__(self, split: Sequence[Groups], pricing: Pricing) -> None:
        self._pricing, self._offers = pricing, _offers_of(split)
        least = [part.times.least_s(part.edges) for part in split]
        self.busy_s, self._refills = (np.concatenate(column, axis=1) for column in zip(*least, strict=True))
        self.key = self._now()
        self.untimed: list[int] = np.flatnonzero(self._refills.any(axis=1)).tolist()

    def _now(self) -> Key:
        return self._pricing.objective.key(*self._pricing.step_of(self.busy_s, self._offers))

    def refine(self, split: Sequence[Groups]) -> None:
        """Time one more set of lengths exactly."""
        case, ends = self.untimed.pop(), np.cumsum([0, *(len(part.edges) - 1 for part in split)])
        for part, (a, b) in zip(split, pairwise(ends.tolist()), strict=True):
            least_s, refills = self.busy_s[case, a:b], self._refills[case, a:b]
            self.busy_s[case, a:b] = part.times.exact_row(part.edges, case, least_s, refills)
        self.key = max(self.key, self._now())  # of what is rounded: a bound never falls


def least_keys(count: int, splits: Splits, pricing: Pricing) -> list[Key]:
    """Return a lower bound on the key of each of ``count`` splits."""
    return [_Candidate(splits(i), pricing).key for i in range(count)]


def best_split(count: int, splits: Splits, pricing: Pricing) -> TimedSplit:
    """Return the split with the least key of ``count``, with its times.

    Above ``EXACT_RESPONSES`` responses the most promising split is timed exactly, and then at most ``MOST_TIMED`` responses of
    others. The result may then be suboptimal, as some splits are not timed to the end.
    """
    if count == 1:
        only = splits(0)
        return _timed(only, np.concatenate([part.times.busy_s(part.edges) for part in only], axis=1))
    groups_of: dict[int, Sequence[Groups]] = {}  # only of splits that are timed exactly: all of them may take much memory

    def groups(i: int) -> Sequence[Groups]:
        if i not in groups_of:
            groups_of[i] = splits(i)
        return groups_of[i]

    def finish(i: int) -> Key:
        while tried[i].untimed:
            tried[i].refine(groups(i))
        return tried[i].key

    tried = [_Candidate(splits(i), pricing) for i in range(count)]
    waiting = [(candidate.key, i) for i, candidate in enumerate(tried)]
    heapq.heapify(waiting)
    timings_left, responses = math.inf, len(groups(waiting[0][1])[0].times.cases[0])
    if responses > EXACT_RESPONSES:
        timings_left = MOST_TIMED * len(tried[0].busy_s) // responses
        heapq.heapreplace(waiting, (finish(waiting[0][1]), waiting[0][1]))
    while timings_left > 0 and tried[i := waiting[0][1]].untimed:
        tried[i].refine(groups(i))
        heapq.heapreplace(waiting, (tried[i].key, i))
        timings_left -= 1
        if timings_left == 0:
            finish(waiting[0][1])
    chosen = min((candidate.key, i) for i, candidate in enumerate(tried) if not candidate.untimed)[1]
    return _timed(groups(chosen), tried[chosen].busy_s)


def _offers_of(split: Sequence[Groups]) -> IntArray:
    return np.repeat([part.offer for part in split], [len(part.edges) - 1 for part in split])


def _timed(split: Sequence[Groups], busy_s: FloatArray) -> TimedSplit:
    groups = [part.times.order[a:b] for part in split for a, b in pairwise(part.edges.tolist())]
    return TimedSplit(list(zip(_offers_of(split).tolist(), groups, strict=True)), busy_s)
