"""Improves plans of few actors that refill slots: sorted items dealt in turn as further starts, then exchanges.

Where a handful of actors share all work, contiguous groups waste slots. The actor of the longest responses has few that are
short enough to fill up with. Dealing the items, longest first, to the actors in turn gives all of them the same mix. After
that, items and places in the order of admission are exchanged at random while that makes the plan better. Groups are timed
exactly. Work is counted in responses that are timed, so that the same problem gets the same plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from solver.model.workload import FloatArray, IntArray

MOST_ACTORS = 8
GROUP_WORK = 100  # timing a group costs as much as this many responses, besides its own
RESPONSE_S = 7e-7  # what a response takes to time
MOVED, EXCHANGED = 0.2, 0.6  # shares of changes that move an item or exchange two; the others change an order of admission
LATEST = 0.5  # share of the changes that concern the actor that is busy longest

Rank = tuple[float, ...]


def dealt_in_turn(items: int, actors: int) -> list[IntArray]:
    """Return which of the sorted items each actor gets, dealt forth and back."""
    turn = np.arange(items)
    at = turn % (2 * actors)
    owner = np.minimum(at, 2 * actors - 1 - at)
    return [turn[owner == k] for k in range(actors)]


class Exchange:
    """Hill climbing from one plan.

    Args:
        groups: responses of every actor, in order of admission; slots: of every actor. min_actors: of a plan.
        item_of: (R,) item of every response; those of an item stay on one actor.
        group_s: seconds of the actor of this index with these responses, infinite if it cannot hold them.
        rank: what is least for the best plan, of the indices of the actors that have responses and of their seconds.

    Attributes:
        actors: indices of the actors that have responses; groups: their responses; busy_s: their seconds.
        work: responses timed so far, and ``GROUP_WORK`` for each group. late: whether the clock has stopped a run.
    """

    def __init__(
        self,
        groups: Sequence[IntArray],
        slots: Sequence[int],
        item_of: IntArray,
        group_s: Callable[[int, IntArray], float],
        rank: Callable[[list[int], FloatArray], Rank],
        min_actors: int,
    ) -> None:
        self.groups, self.slots, self.item_of = list(groups), slots, item_of
        self.group_s, self.rank, self.min_actors = group_s, rank, min_actors
        self.actors = list(range(len(self.groups)))
        self.busy_s = np.array([group_s(k, group) for k, group in enumerate(self.groups)])
        self.best = rank(self.actors, self.busy_s)
        self.work, self.late = 0, False
        self._random = np.random.default_rng(0)

    def run(self, most_work: float, stop_at: float) -> None:
        """Change the plan until ``work`` reaches ``most_work`` or the clock (``perf_counter``) ``stop_at``."""
        while self.work < most_work:
            if time.perf_counter() > stop_at:
                self.late = True
                break
            changed = self._change()
            self.work += GROUP_WORK + sum(GROUP_WORK + len(group) for group in changed.values())
            if not changed:
                continue
            busy_s = self.busy_s.copy()
            for g, group in changed.items():
                busy_s[g] = self.group_s(self.actors[g], group) if len(group) else np.nan
            kept = np.flatnonzero(~np.isnan(busy_s)).tolist()
            actors = [self.actors[g] for g in kept]
            rank = self.rank(actors, busy_s[kept])
            if rank < self.best:
                self.groups = [changed.get(g, self.groups[g]) for g in kept]
                self.actors, self.busy_s, self.best = actors, busy_s[kept], rank

    def _change(self) -> dict[int, IntArray]:
        """Return groups that one change makes; empty if it is none."""
        random, count = self._random, len(self.groups)
        g = int(np.argmax(self.busy_s)) if random.random() < LATEST else int(random.integers(count))
        kind = random.random()
        if count == 1 or kind > MOVED + EXCHANGED:
            return self._reordered(g)
        h = (g + 1 + int(random.integers(count - 1))) % count
        source, target = self.groups[g], self.groups[h]
        item = self.item_of[source[int(random.integers(len(source)))]]
        leaves = self.item_of[source] == item
        if kind < MOVED:
            if leaves.all() and count <= self.min_actors:
                return {}
            return {g: source[~leaves], h: np.concatenate([target, source[leaves]])}
        second = self.item_of[target[int(random.integers(len(target)))]]
        enters = self.item_of[target] == second
        if leaves.sum() != enters.sum():
            return {g: np.concatenate([source[~leaves], target[enters]]), h: np.concatenate([target[~enters], source[leaves]])}
        source, target = source.copy(), target.copy()
        source[leaves], target[enters] = target[enters], source[leaves]
        return {g: source, h: target}

    def _reordered(self, g: int) -> dict[int, IntArray]:
        """Return the group with two responses exchanged in its order of admission."""
        group, slots = self.groups[g], self.slots[self.actors[g]]
        if len(group) <= slots:
            return {}
        i, j = int(self._random.integers(len(group))), int(self._random.integers(slots, len(group)))
        changed = group.copy()
        changed[i], changed[j] = changed[j], changed[i]
        return {g: changed}
