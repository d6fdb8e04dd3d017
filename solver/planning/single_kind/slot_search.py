"""Searches beside that over makespans, where responses wait for slots or memory: few items, prompts, few actors.

All are for single lengths. Each offers its splits to the ``MakespanSearch``, which keeps the best.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.actor_count import EXACT_RESPONSES, sizing_key
from solver.planning.admission_order import admission_orders, fastest_orders
from solver.planning.exchange import MOST_ACTORS, RESPONSE_S, Exchange, Rank, dealt_in_turn
from solver.planning.single_kind.few_items import MOST_ITEMS, MOST_LIMITED, FewItems
from solver.planning.single_kind.levelling import levelled
from solver.planning.single_kind.makespan_search import MakespanSearch
from solver.planning.single_kind.prompt_groups import PromptGroups
from solver.timing.group_times import GroupTimes, Split

CUTS, LEAST_CUTS = 5, 2  # of prompts into contiguous groups, each corrected by the one before; the clock stops only others
QUICK_ORDERS = 2  # of many responses: longest first and waves, which are the fastest but in one of eighty groups
LEVELS = 3  # rounds of moving responses from late actors to early ones
STARTS = 4  # splits of which exchanges begin with the best, where none meets the limit


@dataclass(frozen=True)
class SlotSearch:
    """The searches, for the same problem as ``search``.

    Attributes:
        workload: single lengths; times: of groups in an order of the responses. shares_prompts: ``share_prefill``.
    """

    search: MakespanSearch
    workload: Workload
    times: Callable[[IntArray], GroupTimes]
    shares_prompts: bool

    def every_grouping(self) -> bool:
        """Try every grouping of few items; return whether no other plan is better."""
        if len(self.search.work) > (MOST_LIMITED if self.search.pricing.objective.limited else MOST_ITEMS):
            return False
        exact = FewItems(self.search.work, self.workload, self.times, self._rank, self.search.pricing).best()
        self.search.keep(exact.split, exact.busy_s[0])
        if exact.proven:
            self.search.lower_bound = self.search.best_value
        return exact.proven

    def cut_prompts(self) -> None:
        """Try contiguous groups of prompts that end together, and correct them by their exact times."""
        search = self.search
        if not search.work.refills:
            return
        groups, longest_s = PromptGroups(search.work), 0.0
        for turn in range(CUTS):
            began = time.perf_counter()
            if turn >= LEAST_CUTS and search.work_budget.late_after(longest_s):
                return
            edges = groups.best_edges(lambda busy_s: search.pricing.value_of(busy_s))
            if edges is None:
                return
            split = search.split_of([np.arange(a, b) for a, b in itertools.pairwise(edges.tolist())])
            _, busy_s = self.fastest(split, last=False)
            groups.learn(edges, busy_s[0])
            longest_s = max(longest_s, time.perf_counter() - began)

    def exchange(self, random: Split, most_s: float) -> None:
        """Try items dealt in turn to few actors, then exchanges in the best split that is known.

        Args:
            random: a split to begin with where nothing better is known. most_s: counted seconds of exchanges.
        """
        search, work = self.search, self.search.work
        starts = [random] if search.best is None else [search.best]
        if math.isinf(search.best_value):
            ranked = sorted(search.per_count.values(), key=lambda pair: pair[0])
            starts = [split for _, split in ranked[:STARTS]] or starts
        actors, until = len(starts[0].edges) - 1, search.work_budget.stop_at
        if not work.refills or actors > MOST_ACTORS or len(work.order) > EXACT_RESPONSES:
            return
        for count in range(max(work.min_actors, actors - 1, 1), min(actors + 1, work.max_actors) + 1):
            split = search.split_of(dealt_in_turn(len(work), count))
            least_s = search.busy_of(split, "least")
            if time.perf_counter() < until and search.pricing.value_of(least_s) < search.best_value:
                starts.append(self.fastest(split)[0])
        starts = [split for split in starts if len(split.edges) > work.min_actors]
        if not starts:
            return
        self.exchange_in(min(starts, key=lambda split: self._rank(search.busy_of(split, "exact"))), most_s)

    def exchange_in(self, split: Split, most_s: float) -> Split:
        """Return the split after this many counted seconds of exchanges."""
        search, work = self.search, self.search.work
        item_of = np.empty(len(work.order), dtype=np.int64)
        item_of[work.order] = np.repeat(np.arange(len(work)), np.diff(work.edge))
        times = self.times(work.order)
        exchange = Exchange(
            split.groups(), [work.slots] * len(split.groups()), item_of, lambda _, group: times.group_s(group),
            lambda _, busy_s: self._rank(busy_s[None]), work.min_actors,
        )  # fmt: skip
        exchange.run(most_s / RESPONSE_S, search.work_budget.stop_at)
        search.work_budget.late |= exchange.late
        groups = exchange.groups
        split = Split(np.concatenate(groups), np.cumsum([0, *map(len, groups)]))
        search.keep(split, exchange.busy_s)
        return split

    def level_best(self) -> Split | None:
        """Return the best split with its late actors levelled (``levelling``); the best split where that does not help."""
        search, work, best = self.search, self.search.work, self.search.best
        if best is None or not work.refills:
            return best
        each_s = np.empty(len(work.order))
        each_s[work.order] = np.diff(work.slot_load)
        busy_s = search.busy_of(best, "exact")
        for _ in range(LEVELS):
            if time.perf_counter() >= search.work_budget.stop_at:
                break
            other = levelled(best, busy_s[0], each_s, work.slots)
            if other is None:
                break
            other_s = search.busy_of(other, "exact")
            if search.pricing.value_of(other_s) >= search.pricing.value_of(busy_s):
                break
            best, busy_s = other, other_s
        return best

    def order(self, split: Split | None) -> Split | None:
        """Return the split with every actor in its fastest order of admission, as far as there is time."""
        if split is None or not self.search.work.refills or time.perf_counter() >= self.search.work_budget.stop_at:
            return split
        return self.fastest(split)[0]

    def fastest(self, split: Split, last: bool = True) -> tuple[Split, FloatArray]:
        """Return the split with each group in its fastest order of admission, and its (1, N) seconds.

        Args:
            last: no splits are derived from this one. Of many responses, its waves may then begin with short prompts.
        """
        many = len(self.search.work.order) > EXACT_RESPONSES
        orders = admission_orders(
            split, self.workload, self.search.work.slots, self.shares_prompts, short_prompts_first=many and last
        )
        orders = itertools.islice(orders, QUICK_ORDERS if many and not self.shares_prompts else None)
        split, busy_s = fastest_orders(split, orders, lambda split: self.search.busy_of(split, "exact"))
        self.search.keep(split, busy_s[0])
        return split, busy_s

    def _rank(self, busy_s: FloatArray) -> Rank:
        """Return what is least for the best plan, and tells which comes nearest where none meets a limit."""
        pricing = self.search.pricing
        return pricing.value_of(busy_s), *sizing_key(*pricing.step_of(busy_s), pricing.objective)
