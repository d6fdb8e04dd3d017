"""Searches for plans that meet a deadline or budget over scenarios: searches with a tighter limit, and moves of single items.

Inputs: the search for single lengths, and the prices of candidates over scenarios. A plan for the predicted lengths that just
meets a deadline misses it over scenarios. The mean of the longest time is above the time of the mean lengths. So plans are
also searched without the limit, for lengths that are long in many scenarios. Others are searched with the limit tightened
until a plan meets the real one. In small problems a single response can decide. There, items are moved and exchanged while
that brings a candidate nearer to the limit or, once it meets it, improves it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from solver.model.objective import Objective
from solver.model.workload import FloatArray, Workload
from solver.planning.actor_count import sizing_key
from solver.planning.candidates import Candidate, Candidates
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.makespan_search import MakespanSearch
from solver.timing.group_times import Split
from solver.timing.step_cost import Pricing

MOST_PER_SEARCH = 12  # candidates of one search
TIGHTENED = 6  # halvings of the factor on the limit
LONG = 0.8  # quantile over the scenarios of what is long in many of them
MOST_MOVED = 48  # items; with more, single moves change little
MOST_MOVES = 1500  # splits that are tried from one start
STARTS = 4  # candidates that moves begin with
MOVES_PER_S = 1000  # of the time limit, in all, where counted work ends the search and the clock does not


@dataclass
class NearLimit:
    """Searches for candidates that meet the objective's limit over the scenarios.

    Args:
        candidates: prices the candidates and keeps those found so far. pricing: of actors.
        busy_of: (S, N) seconds of the groups of a split over the scenarios.
        search: a search for single lengths under an objective, which has run.
        work: of the predicted lengths. workload: with the scenarios.
        moves_left: how many moves may be tried in all.
    """

    candidates: Candidates
    pricing: Pricing
    busy_of: Callable[[Split], FloatArray]
    search: Callable[[Workload, Objective], MakespanSearch]
    work: SortedWork
    workload: Workload
    moves_left: float = math.inf
    _known: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)

    @property
    def objective(self) -> Objective:
        """Return the objective with its limit."""
        return self.candidates.objective

    def add_candidates(self) -> None:
        """Try more candidates: from searches while none meets the limit, by moves where the problem is small."""
        if not self._limit_met():
            self._without_limit()
        if self._limit_met():
            self._tightened()
        if len(self.work) <= MOST_MOVED:
            seen: list[Candidate] = []
            for candidate in sorted(self.candidates.evaluated, key=lambda c: c.key):
                if len(seen) < STARTS and all(candidate.key != other.key for other in seen):
                    seen.append(candidate)
            for candidate in seen:
                self._moved(candidate)

    def _limit_met(self) -> bool:
        return any(np.isfinite(c.value) for c in self.candidates.evaluated)

    def _splits(self, points: Workload, objective: Objective) -> list[Split]:
        """Return the best splits for every number of actors, for single lengths."""
        ranked = sorted(self.search(points, objective).per_count.values(), key=lambda pair: pair[0])
        return [split for _, split in ranked[:MOST_PER_SEARCH]]

    def _without_limit(self) -> None:
        """Try plans for time (cost) alone or nearly so, for the predicted lengths and for long ones: they meet a limit best."""
        assert self.workload.scenarios is not None
        points = self.workload.points
        long = points.with_response_tokens(np.quantile(self.workload.scenarios, LONG, axis=0))
        for lengths in (points, long):
            for weight in (1.0, 0.9) if self.objective.deadline_s is not None else (0.0, 0.1):
                self.candidates.best_of(self._splits(lengths, Objective(weight, cost=self.objective.cost)))

    def _tightened(self) -> None:
        """Find by bisection the loosest limit on the predicted lengths whose plans meet the real one over the scenarios."""
        low, high = 0.5, 1.0
        for _ in range(TIGHTENED):
            factor = (low + high) / 2
            best = self.candidates.best_of(self._splits(self.workload.points, tightened(self.objective, factor)))
            low, high = (low, factor) if best is not None and np.isinf(best.value) else (factor, high)

    def _moved(self, start: Candidate) -> None:
        """Descend from a candidate by moves and exchanges of items, taking the first that helps each time."""
        item_of = np.empty(len(self.work.order), np.int64)
        item_of[self.work.order] = np.repeat(np.arange(len(self.work)), np.diff(self.work.edge))
        groups = [sorted(set(item_of[group].tolist())) for group in start.plan.groups()]
        key, tries_left = start.key, MOST_MOVES
        improved = True
        while improved:
            improved = False
            for changed in neighbours(groups, self.work.min_actors, self.work.max_actors):
                tries_left -= 1
                self.moves_left -= 1
                if min(tries_left, self.moves_left) <= 0:
                    return
                if self.candidates.work_budget.late_after(0.0):
                    return
                busy_s = np.column_stack([self._busy_s(tuple(group)) for group in changed])
                time_and_cost = self.pricing.step_of(busy_s)
                if sizing_key(*time_and_cost, self.objective) < key:
                    responses = [self.work.responses(np.array(group)) for group in changed]
                    split = Split(np.concatenate(responses), np.cumsum([0, *map(len, responses)]))
                    key, groups, improved = self.candidates.note(split, *time_and_cost).key, changed, True
                    break

    def _busy_s(self, group: tuple[int, ...]) -> FloatArray:
        """Return the (S,) seconds of one group of items, from a cache: neighbours share most of their groups."""
        if group not in self._known:
            responses = self.work.responses(np.array(group))
            self._known[group] = self.busy_of(Split(responses, np.array([0, len(responses)])))[:, 0]
        return self._known[group]


def tightened(objective: Objective, factor: float) -> Objective:
    """Return the objective with its limit multiplied by ``factor``."""
    if objective.deadline_s is not None:
        return replace(objective, deadline_s=objective.deadline_s * factor)
    if objective.budget_usd is not None:
        return replace(objective, budget_usd=objective.budget_usd * factor)
    assert objective.budget_gpu_s is not None
    return replace(objective, budget_gpu_s=objective.budget_gpu_s * factor)


def neighbours(groups: list[list[int]], least: int, most: int) -> Iterator[list[list[int]]]:
    """Yield groups with one item moved (also to a new group), then with two items exchanged; each group in order of length."""
    for g, group in enumerate(groups):
        for item in group:
            if len(group) == 1 and len(groups) <= least:
                continue
            without_item = [[i for i in other if i != item] for other in groups]
            targets = [*(h for h in range(len(groups)) if h != g), *([len(groups)] if len(group) > 1 else [])]
            for h in targets:
                moved = [sorted([*other, item]) if k == h else other for k, other in enumerate(without_item)]
                moved += [[item]] if h == len(groups) else []
                moved = [other for other in moved if other]
                if len(moved) <= most:
                    yield moved
    for g, h in itertools.combinations(range(len(groups)), 2):
        for item_g, item_h in itertools.product(groups[g], groups[h]):
            swapped = list(groups)
            swapped[g] = sorted([item_h, *(i for i in groups[g] if i != item_g)])
            swapped[h] = sorted([item_g, *(i for i in groups[h] if i != item_h)])
            yield swapped
