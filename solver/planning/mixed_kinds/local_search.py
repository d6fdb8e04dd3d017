"""Local search over actor lists: adds, removes or replaces an actor or moves its opening, and keeps the list if it is better.

Every list is filled by the greedy filler. The moves depend on the seed and on the number of calls, not on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from solver.planning.mixed_kinds.fill import Actors, FilledPlan, GreedyFiller
from solver.planning.mixed_kinds.node_placement import place

STRETCH = (1.0, 1.01, 1.03, 1.06, 1.12)  # makespans at which a list of a relaxation is filled: rounding needs some room
LATE = 1.05  # of the latest makespan, for plans that exchanges may bring in time
KEPT = 16
Tilted = tuple[int, int, tuple[float, int]]
"""Offer, opening position and tilt of an actor."""


class Improver:
    """Keeps the best filled actor lists and improves them.

    Args:
        accept: exact value of a filled list, called for lists that seem better than the best so far.
        min_actors, max_actors: of a plan. latest_s: makespan that must not be exceeded, or infinity.
    """

    def __init__(
        self,
        filler: GreedyFiller,
        accept: Callable[[FilledPlan], float],
        *,
        min_actors: int = 1,
        max_actors: int | None = None,
        latest_s: float = float("inf"),
        seed: int = 0,
    ) -> None:
        self.filler, self.accept = filler, accept
        self.work = filler.work
        self.least, self.most = min_actors, max_actors or len(filler.work)
        self.latest_s = latest_s
        self.best: FilledPlan | None = None
        self.best_value = float("inf")
        self.kept: dict[tuple[int, ...], FilledPlan] = {}
        self.failures = 0
        self.fastest_s = float("inf")
        self.cheapest = (float("inf"), float("inf"))  # cost and makespan
        self.late: FilledPlan | None = None  # the cheapest that misses ``latest_s`` by little
        self._random = np.random.default_rng(seed)
        self._fits: dict[tuple[int, ...], bool] = {}
        self._cheap = np.argsort(self.work.rate * self.work.least_ready_s, kind="stable").tolist()
        work_cost = self.work.rate * (self.work.load.sum(axis=1) + self.work.base_s * float(self.work.length[0]))
        self._best_for_work = np.argsort(work_cost, kind="stable").tolist()

    def fits(self, offers: Sequence[int]) -> bool:
        """Return whether actors of these offers fit into the nodes of their pools."""
        key = tuple(sorted(offers))
        if key not in self._fits:
            sizes = [(int(self.work.pool[r]), int(self.work.gpus[r])) for r in key]
            self._fits[key] = len(key) <= self.most and place(self.work.pools, sizes) is not None
        return self._fits[key]

    def consider(self, filled: FilledPlan | None) -> bool:
        """Keep a filled list if it is among the best; return whether it is the best."""
        if filled is None or not self.least <= len(filled.actors) <= self.most:
            return False
        self.fastest_s = min(self.fastest_s, filled.makespan_s)
        self.cheapest = min(self.cheapest, (filled.cost, filled.makespan_s))
        if filled.value == float("inf"):
            return False
        key = tuple(sorted(r for r, _ in filled.actors))
        if key not in self.kept or filled.value < self.kept[key].value:
            self.kept[key] = filled
            if len(self.kept) > KEPT:
                del self.kept[max(self.kept, key=lambda k: self.kept[k].value)]
        if filled.value >= self.best_value:
            return False
        value = self.accept(filled)
        if value >= self.best_value:
            return False
        self.best, self.best_value = filled, value
        return True

    def round(self, actors: Sequence[tuple[int, int]], makespan_s: float) -> bool:
        """Fill a relaxation's list at makespans from ``makespan_s`` on; return whether the best plan improved.

        Adds actors where the items do not fit.
        """
        better = False
        for stretch in STRETCH:
            if self.filler.work_budget.over:
                break
            limit = makespan_s * stretch
            if limit > self.latest_s:
                if stretch > 1.0:
                    self._note_late(actors)
                    break
                limit = self.latest_s
            filled = self._grown(tuple(sorted(actors, key=lambda actor: actor[1])), limit, 4 if stretch == 1.0 else 1)
            better |= self.consider(filled)
        return better

    def _note_late(self, actors: Sequence[tuple[int, int]]) -> None:
        """Keep what a relaxation's list does a little after the latest makespan; exchanges may bring it in time."""
        if actors and self.fits([r for r, _ in actors]) and len(actors) >= self.least:
            filled = self.filler.fill(tuple(sorted(actors, key=lambda actor: actor[1])), LATE * self.latest_s)
            if filled is not None and (self.late is None or filled.cost < self.late.cost):
                self.late = filled

    def _grown(self, actors: Actors, makespan_s: float, most_more: int) -> FilledPlan | None:
        """Fill the actors, with up to ``most_more`` further ones where items do not fit, and at least as many as the
        plan needs."""
        last = max(0, self.filler.working - 1)
        while len(actors) < min(self.least, self.filler.working):
            r = next((r for r in self._cheap if self.fits([*(r for r, _ in actors), r])), None)
            if r is None:
                return None
            taken = {position for _, position in actors}
            position = next(p for p in range(last, -1, -1) if p not in taken)
            actors = tuple(sorted([*actors, (r, position)], key=lambda actor: actor[1]))
        if not actors or not self.fits([r for r, _ in actors]):
            return None
        filled = self.filler.fill(actors, makespan_s)
        while filled is None and most_more > 0 and not self.filler.work_budget.over:
            r = next((r for r in self._best_for_work if self.fits([*(r for r, _ in actors), r])), None)
            if r is None:
                return None
            most_more -= 1
            actors = (*actors, (r, last))  # it opens where the others have no room left
            filled = self.filler.fill(actors, makespan_s)
        return filled

    def step(self) -> bool:
        """Try one change of the best list; return whether it is better."""
        if self.best is None:
            self.failures += 1
            return False
        random = self._random
        base = self.best
        if random.random() < 0.15:  # another good list, of other actors
            base = list(self.kept.values())[int(random.integers(0, len(self.kept)))]
        actors = [(r, position, tilt) for (r, position), tilt in zip(base.actors, base.tilts, strict=True)]
        limit = base.within_s
        for _ in range(1 + int(random.integers(0, 2))):
            actors = self._changed(actors)
        limit *= float(1 + random.choice([0.0, 0.0, -1.0, 1.0]) * random.exponential(0.01))
        limit = min(limit, self.latest_s)
        actors.sort(key=lambda actor: actor[1])
        ordered = tuple((r, position) for r, position, _ in actors)
        tilts = tuple(tilt for _, _, tilt in actors)
        better = False
        if ordered and self.fits([r for r, _ in ordered]):
            better = self.consider(self.filler.fill(ordered, limit, tilts))
        self.failures = 0 if better else self.failures + 1
        return better

    def _changed(self, actors: list[Tilted]) -> list[Tilted]:
        random = self._random
        working = max(1, self.filler.working)
        j = int(random.integers(0, len(actors)))
        r, position, tilt = actors[j]
        move = random.random()
        others = [actor for i, actor in enumerate(actors) if i != j]
        if move < 0.4:
            width = working * float(random.choice([0.003, 0.02, 0.1]))
            return [*others, (r, int(np.clip(round(position + random.normal() * width), 0, working - 1)), tilt)]
        if move < 0.52:
            return [*others, (r, position, (tilt[0] * float(np.exp(random.normal() * 0.15)), tilt[1]))]
        if move < 0.62:
            until = int(random.integers(0, working)) if random.random() < 0.3 else max(position, tilt[1])
            width = working * float(random.choice([0.003, 0.02, 0.1]))
            until = int(np.clip(round(until + random.normal() * width), 0, working))
            return [*others, (r, position, (tilt[0], until if random.random() < 0.8 else 0))]
        if move < 0.8:
            return [*others, (int(random.integers(0, len(self.work.offers))), position, tilt)]
        if move < 0.87:
            return others if others else actors
        if move < 0.95:
            return [*actors, (int(random.integers(0, len(self.work.offers))), int(random.integers(0, working)), (1.0, 0))]
        i = int(random.integers(0, len(actors)))
        swapped = list(actors)
        swapped[i], swapped[j] = (r, actors[i][1], tilt), (actors[i][0], position, actors[i][2])
        return swapped
