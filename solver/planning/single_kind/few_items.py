"""Plans few items exactly: every grouping of them that may be the best, each group in its fastest admission order.

Inputs: ``SortedWork`` of few items, the exact times of groups and the pricing. A group that fits into the batch at once takes
the same time in any order. Of the others a lower bound is known at once. With a given number of actors time and cost only
depend on the makespan and the sum of the groups' seconds. So for every number of actors dynamic programming (``groupings``)
finds the least sum. Then it finds the least sum with a shorter makespan, and so on. Groups of the groupings found get their
fastest order (``fastest_order``), and the least sum is found again until all of them have. Of the actors of a grouping the
longest ones are prewarmed, which makes the makespan least.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.admission_order import admission_orders, fastest_orders
from solver.planning.single_kind.fastest_order import FastestOrder, WaitingGroup
from solver.planning.single_kind.groupings import Groupings
from solver.planning.single_kind.items import SortedWork
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import Pricing

MOST_ITEMS, MOST_LIMITED = 8, 10  # without and with a deadline or budget, which leaves fewer groupings to look at
MOST_ORDERED = 6  # responses of a group whose orders are all tried where memory or mixed prefill rule out branch and bound
ORDERS_AT_ONCE = 60
MOST_ORDERS = 5000  # in all, about 0.05 ms each
MOST_NODES, GROUP_NODES = 20_000, 8_000  # of branch and bound over orders in all and for one group, about 0.02 ms each
MOST_PAIRS = 2_000_000  # of groupings, in all, about 0.1 us each
HALVINGS = 30  # of an interval of makespans, to find from where on no better plan is

Rank = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class FewItemsPlan:
    """The best split, its (1, N) seconds, and whether no other split of the items has a lower rank."""

    split: Split
    busy_s: FloatArray
    proven: bool


class FewItems:
    """Looks at every grouping of the items of ``work`` that may be the best.

    Args:
        times: of groups in an order of the responses. rank: what is least for the best plan, of (1, N) busy seconds; it never
            falls when a group takes longer. pricing: of the actors.
    """

    def __init__(
        self, work: SortedWork, workload: Workload, times: Callable[[IntArray], GroupTimes],
        rank: Callable[[FloatArray], Rank], pricing: Pricing,
    ) -> None:  # fmt: skip
        self.work, self.workload, self.times, self.rank, self.pricing = work, workload, times, rank, pricing
        members = [[i for i in range(len(work)) if mask >> i & 1] for mask in range(1 << len(work))]
        self._responses = [work.responses(np.array(items, dtype=np.int64)) for items in members]
        order, edges = np.concatenate(self._responses), np.cumsum([0, *map(len, self._responses[1:])])
        least, refills = times(order).least_s(edges)
        self._lower_s = np.concatenate([[0.0], least[0]])  # of every group, by the bits of its items
        self._upper_s = self._lower_s.copy()
        self._waits = np.concatenate([[False], refills[0]])  # whether its fastest order is still to be found
        self._orders_left, self._nodes_left = MOST_ORDERS, MOST_NODES
        self._groupings = Groupings(len(work))
        self._found: list[tuple[Rank, Rank, list[int]]] = []  # rank, lower bound on it, and groups

    def best(self) -> FewItemsPlan:
        """Return the best split."""
        objective = self.pricing.objective
        latest_s = math.inf if objective.deadline_s is None else objective.generation_within_s(self.pricing.phases)
        whole = self._search(latest_s)
        if not self._found or math.isinf(min(self._found)[0][0]):
            whole = self._search(math.inf)  # what comes nearest to the limit
        best, _, chosen = min(self._found)
        proven = whole and all(least >= best for _, least, _ in self._found)
        groups = self._longest_first(self._upper_s, chosen)
        responses = [self._responses[mask] for mask in groups]
        return FewItemsPlan(
            Split(np.concatenate(responses), np.cumsum([0, *map(len, responses)])), self._upper_s[groups][None], proven
        )

    def _search(self, latest_s: float) -> bool:
        """Look at groupings with makespans up to ``latest_s``; return whether all that may be the best were."""
        for actors in range(self.work.min_actors, min(self.work.max_actors, len(self.work)) + 1):
            makespan_s = latest_s
            while (groups := self._cheapest(actors, makespan_s)) is not None:
                least_s = self._lower_s[self._longest_first(self._lower_s, groups)][None]
                self._found.append((self._rank(self._upper_s, groups), self.rank(least_s), groups))
                makespan_s = self._latest_better_s(least_s[0])
                if self._groupings.work > MOST_PAIRS:
                    return False
        return True

    def _latest_better_s(self, least_s: FloatArray) -> float:
        """Return the makespan below which groupings with as many actors, of no less seconds in all, may be better."""
        price, actors, best = self.pricing, len(least_s), min(self._found)[0][0]
        high = float(price.generation(least_s[None])[0][0]) * (1 - 1e-9)
        low = float(self._lower_s[1 << np.arange(len(self.work))].max()) + price.sync_s
        done_s = float(least_s.sum()) + actors * price.sync_s + max(0, actors - price.prewarmed) * price.start_s

        def value(makespan_s: float) -> float:
            return price.value(makespan_s, price.actor_rate * float(price.held_s(done_s, actors, makespan_s)))

        if math.isinf(best) or high < low or value(high) < best:
            return high
        if value(low) >= best:
            return -math.inf
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if value(middle) < best else (low, middle)
        return high

    def _cheapest(self, actors: int, makespan_s: float) -> list[int] | None:
        """Return the groups with the least sum of seconds, each in its fastest order; None if none is in time."""
        price = self.pricing
        latest_s = (makespan_s - price.sync_s - price.start_s, makespan_s - price.sync_s)
        while True:
            groups = self._groupings.cheapest(self._lower_s, actors, latest_s, price.prewarmed)
            waiting = [mask for mask in groups or [] if self._waits[mask]]
            if not waiting:
                return groups
            for mask in waiting:
                self._order(mask)

    def _longest_first(self, seconds: FloatArray, groups: list[int]) -> list[int]:
        return sorted(groups, key=lambda mask: -float(seconds[mask]))

    def _rank(self, seconds: FloatArray, groups: list[int]) -> Rank:
        return self.rank(seconds[self._longest_first(seconds, groups)][None])

    def _order(self, mask: int) -> None:
        """Find the fastest order of a group: roughly, then exactly or as far as the work granted lasts."""
        self._waits[mask] = False
        responses = self._responses[mask]
        split = Split(responses, np.array([0, len(responses)]))
        orders = admission_orders(split, self.workload, self.work.slots, self.times(responses).shares_prompts)
        split, busy_s = fastest_orders(split, orders, lambda s: self.times(s.order).busy_s(s.edges))
        self._responses[mask], self._upper_s[mask] = split.order, busy_s[0, 0]
        if not self._open(mask) or self._branch(mask):
            self._lower_s[mask] = self._upper_s[mask]
            return
        if len(responses) <= MOST_ORDERED and self._try(mask, self._orders(self._responses[mask])):
            self._lower_s[mask] = self._upper_s[mask]
            return
        before = np.inf
        while self._open(mask) and self._upper_s[mask] < before and self._orders_left > 0:
            before = self._upper_s[mask]
            self._try(mask, _exchanges(self._responses[mask]))

    def _open(self, mask: int) -> bool:
        """Return whether an order may be faster than the one found."""
        return bool(self._upper_s[mask] > self._lower_s[mask] * (1 + 1e-12))

    def _branch(self, mask: int) -> bool:
        """Find the fastest order by branch and bound, where it applies; return whether no other order is faster."""
        times, responses = self.times(self._responses[mask]), self._responses[mask]
        room, latency = times.admission, times.latency
        works = self.workload.remaining_tokens[responses] > 0
        fits = int(np.sort((self.workload.context_tokens + self.workload.remaining_tokens)[responses])[-room.max_batch :].sum())
        unbounded = room.rule == "preempt" and fits <= room.kv_capacity_tokens
        if latency.mixes or not (room.rule == "reserve" or unbounded):
            return False
        group = WaitingGroup.of(
            self.workload, responses[works], (room.max_batch, math.inf if unbounded else room.kv_capacity_tokens),
            (latency.base_s, latency.prefill_base_s), times.shares_prompts,
        )  # fmt: skip
        granted = min(GROUP_NODES, self._nodes_left)
        fixed_s = self._upper_s[mask] - group.seconds_of(range(len(group.lengths)))
        search = FastestOrder(group, self._upper_s[mask] - fixed_s, self._lower_s[mask] - fixed_s, granted)
        self._nodes_left -= granted - search.nodes_left
        if search.order is not None:
            faster = np.concatenate([responses[works][search.order], responses[~works]])
            self._try(mask, iter([faster]))
        return search.ended

    def _try(self, mask: int, orders: Iterator[IntArray]) -> bool:
        """Keep the best of these orders of a group; return whether no other of them is better."""
        size = len(self._responses[mask])
        while several := list(itertools.islice(orders, ORDERS_AT_ONCE)):
            if self._orders_left <= 0:
                return False
            self._orders_left -= len(several)
            flat = np.concatenate(several)
            busy_s = self.times(flat).busy_s(np.arange(0, len(flat) + 1, size))[0]
            at = int(np.argmin(busy_s))
            if busy_s[at] < self._upper_s[mask]:
                self._upper_s[mask], self._responses[mask] = busy_s[at], several[at]
            if self._upper_s[mask] <= self._lower_s[mask] * (1 + 1e-12):
                break
        return True

    def _orders(self, responses: IntArray) -> Iterator[IntArray]:
        """Yield the orders of the responses that differ by more than an exchange of equal responses."""
        work = self.workload
        columns = [work.iterations, work.fed_steps, work.kv_steps, work.context_tokens, work.reserved_tokens, work.prompt_of]
        kind = np.unique(np.stack([c[responses] for c in columns]), axis=1, return_inverse=True)[1].reshape(-1).tolist()
        seen = set()
        for order in itertools.permutations(range(len(responses))):
            key = tuple(kind[i] for i in order)
            if key not in seen:
                seen.add(key)
                yield responses[list(order)]


def _exchanges(responses: IntArray) -> Iterator[IntArray]:
    """Yield the order with every pair of responses exchanged."""
    for i, j in itertools.combinations(range(len(responses)), 2):
        other = responses.copy()
        other[i], other[j] = other[j], other[i]
        yield other
