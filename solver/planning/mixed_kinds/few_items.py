"""Looks at every plan of a handful of responses on several offers, before a deadline or a budget is refused.

Inputs: the items, the times of groups on each offer, and the pricing of a step. Every grouping of the items is tried on every
choice of offers that the nodes have room for, and each group in its fastest order of admission.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray
from solver.planning.mixed_kinds.fill import FilledPlan, GreedyFiller
from solver.planning.mixed_kinds.node_placement import place
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes

MOST_RESPONSES = 5  # of which all orders are tried
MOST_PLANS = 5000
PLAN_S, ORDER_S = 2e-5, 5e-5  # what a plan and an order of a group take to time (see ``work_budget``)


class EveryFewPlan:
    """Every plan of a handful of responses.

    Args:
        filler: of the items of the problem.
    """

    def __init__(self, problem: PlanningProblem, filler: GreedyFiller) -> None:
        self.problem, self.filler, self.work = problem, filler, filler.work
        self.offers = range(len(self.work.offers))
        self._times = [self._times_of(r) for r in self.offers]
        self._fastest: dict[tuple[int, tuple[int, ...]], tuple[float, tuple[int, ...]]] = {}

    @classmethod
    def fits(cls, filler: GreedyFiller) -> bool:
        """Return whether the items are few enough."""
        work = filler.work
        if len(work.order) > MOST_RESPONSES:
            return False
        plans: int = sum(len(work.offers) ** len(groups) for groups in _groupings(tuple(range(len(work)))))
        return plans <= MOST_PLANS

    def best(self, value_of: Callable[[float, float], float]) -> FilledPlan | None:
        """Return the plan with the least finite value of makespan and cost; None if there is none."""
        best: FilledPlan | None = None
        for groups in _groupings(tuple(range(len(self.work)))):
            if len(groups) < self.problem.needed_actors or len(groups) > (self.problem.max_actors or len(groups)):
                continue
            for offers in itertools.product(self.offers, repeat=len(groups)):
                self.filler.work_budget.spend(PLAN_S)
                places = [(int(self.work.pool[r]), int(self.work.gpus[r])) for r in offers]
                if place(self.work.pools, places) is None:
                    continue
                timed = [self._fastest_order(r, group) for r, group in zip(offers, groups, strict=True)]
                actors = tuple((r, group[0]) for r, group in zip(offers, groups, strict=True))
                for warm in self._prewarmed(offers):
                    _, makespan_s, cost = self.filler.timed(actors, [seconds for seconds, _ in timed], warm)
                    value = value_of(makespan_s, cost)
                    if value < (float("inf") if best is None else best.value):
                        responses = tuple(order for _, order in timed)
                        tilts = ((1.0, 0),) * len(actors)
                        best = FilledPlan(actors, tilts, responses, warm, makespan_s, cost, value, makespan_s)
        return best

    def _prewarmed(self, offers: tuple[int, ...]) -> Iterator[tuple[bool, ...]]:
        """Yield every choice of the actors that get the prewarmed containers of their pools."""
        pools = [int(self.work.pool[r]) for r in offers]
        most = Counter({i: pool.prewarmed for i, pool in enumerate(self.work.pools)})
        for warm in itertools.product(*((False, True) if most[pool] else (False,) for pool in pools)):
            if Counter(itertools.compress(pools, warm)) <= most:
                yield warm

    def _times_of(self, offer: int) -> GroupTimes:
        latency = self.work.offers[offer].latency.affine
        rule = admission_of(latency, None, self.problem.admission)
        return GroupTimes.of(self.problem.workload, latency, rule, self.work.order, self.problem.share_prefill)

    def _fastest_order(self, offer: int, group: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """Return the least seconds of a group of items on an actor of the offer, and its responses in that order."""
        if (offer, group) not in self._fastest:
            self._fastest[offer, group] = min(self._orders(offer, self._responses(group)))
        return self._fastest[offer, group]

    def _orders(self, offer: int, responses: tuple[int, ...]) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Yield the seconds of every order; infinite where memory cannot hold a response."""
        if self.problem.workload.reserved_tokens[list(responses)].max() > self.work.kv_tokens[offer]:
            yield float("inf"), responses
            return
        for order in itertools.permutations(responses):
            self.filler.work_budget.spend(ORDER_S)
            yield self._times[offer].group_s(np.array(order, dtype=np.int64)), order

    def _responses(self, group: tuple[int, ...]) -> tuple[int, ...]:
        edge: IntArray = self.work.edge
        return tuple(int(i) for item in group for i in self.work.order[edge[item] : edge[item + 1]])


def _groupings(items: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Yield every division of the items into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for others in itertools.combinations(rest, size):
            left = tuple(item for item in rest if item not in others)
            for groups in _groupings(left):
                yield [(first, *others), *groups]
