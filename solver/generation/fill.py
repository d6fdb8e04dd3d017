"""From cells to items: fills chosen actors, item by item, up to the least makespan that holds everything.

The model chooses in cells, so its actors are even to a cell only. Here the same actors, in the same order, take the sorted
items one after the other, each up to the makespan M. More M takes more, so bisection finds the least M. Actors that stay empty
are not started.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.generation.columns import Columns, Prices, wave_of
from solver.generation.plan_values import Actors
from solver.model.workload import FloatArray, IntArray
from solver.timing.items import Items

HALVINGS = 18
SHORTEST_S = 1e-12  # makespans below this are not distinguished: where nothing takes time, lowering them would not end
WIDTH = 2e-4  # relative, of makespans between which no more halving is done
STEPS = 6, 1.08  # how often, and by what factor, makespans are raised until everything fits, or lowered until it does not
LOOKED_AT = 64  # items from the first on whose mean says how many responses fit into memory


class Share(NamedTuple):
    """``actors`` actors of an offer that share the items from ``first`` up to ``last``."""

    offer: int
    actors: int
    first: int
    last: int


class Opening(NamedTuple):
    """``actors`` actors of an offer that are opened together, prewarmed or not."""

    offer: int
    actors: int
    warm: bool


@dataclass(frozen=True)
class Filled:
    """What actors take by a makespan."""

    makespan_s: float
    shares: list[Share]


class Filler:
    """Fills actors with the sorted items, by mean times over the scenarios."""

    def __init__(self, prices: Prices) -> None:
        self.items = items = prices.items
        self.problem = prices.problem
        mean = prices.length.mean(axis=0)
        self._length: IntArray = np.rint(mean).astype(np.int64)
        self._load = [sums.mean(axis=0) for sums in prices.load]
        self._missing, self._held = prices.missing.mean(axis=0), prices.held.mean(axis=0)
        self._all_allowed = np.logical_and.reduce(items.allowed, axis=1)

    def least(self, openings: Sequence[Opening], least_s: float, high_s: float) -> Filled | None:
        """Return the least makespan by which these actors take everything, and what each takes; None if they never do.

        Args:
            least_s: a lower bound on it. high_s: where the search begins.
        """
        tries, step = STEPS
        least_s = max(least_s, SHORTEST_S)
        best, low_s = self.at(openings, high_s), least_s
        for _ in range(tries if best is None else 0):
            low_s, high_s = high_s, high_s * step
            best = self.at(openings, high_s)
            if best is not None:
                break
        else:
            while best is not None and high_s / step > least_s:
                low_s = high_s / step
                tried = self.at(openings, low_s)
                if tried is None:
                    break
                high_s, best, low_s = low_s, tried, least_s
        if best is None:
            return None
        for _ in range(HALVINGS):
            if high_s - low_s <= WIDTH * high_s:
                break
            middle = (low_s + high_s) / 2
            tried = self.at(openings, middle)
            low_s, high_s, best = (low_s, middle, tried) if tried is not None else (middle, high_s, best)
        return Filled(high_s, best)

    def at(self, openings: Sequence[Opening], makespan_s: float) -> list[Share] | None:
        """Return what the actors take one after the other by a makespan; None if items are left over."""
        i, m, shares = 0, len(self.items), []
        for opening in openings:
            if i >= m:
                break
            j = self._last(i, opening, makespan_s)
            if j > i:
                shares.append(Share(opening.offer, opening.actors, i, j))
                i = j
        return shares if i >= m else None

    def _last(self, item: int, opening: Opening, makespan_s: float) -> int:
        """Return the item before which actors stop that begin with ``item`` and are done by ``makespan_s``."""
        items, edge, (r, n, warm) = self.items, self.items.edge, opening
        first, total, base = int(edge[item]), len(self._length), float(items.base_s[r])
        room = makespan_s * (1 + 1e-9) - float(items.least_ready_s[r]) - (0.0 if warm else float(items.start_s[r]))
        ahead = int(edge[min(len(items), item + LOOKED_AT)])
        each = max(1.0, float(self._held[ahead] - self._held[first]) / (ahead - first))
        slots = n * int(max(1, min(int(items.slots[r]), items.kv_tokens[r] // each)))
        load, budget = self._load[r], self.problem.offers[r].latency.token_budget
        feeding = 0.0 if budget is None else (self._missing[min(first + slots, total)] - self._missing[first]) / n / budget
        longest = int(self._length[first])
        stop = int(np.searchsorted(load, load[first] + n * (room - base * longest), side="right")) - 1
        if stop > first + slots:
            stop = self._refilled(first, slots, n, room, load, feeding, r)
        elif stop < first + 1:
            return item
        last = int(np.searchsorted(edge, min(stop, total), side="right")) - 1
        if not self._all_allowed[r] and not items.allowed[r, item:last].all():
            last = item + int(np.argmin(items.allowed[r, item:last]))
        return last

    def _refilled(
        self, first: int, slots: int, actors: int, room: float, load: FloatArray, feeding: float, offer: int
    ) -> int:  # fmt: skip
        """Return the response before which actors stop that refill their slots wave by wave."""
        base, call = float(self.items.base_s[offer]), float(self.items.call_s[offer])
        stop = at = first + slots
        ends = np.sort(self._length[first:at])
        top = int(ends[-1])
        while at < len(self._length):
            wave = self._length[at : at + wave_of(slots)]
            wave = -np.sort(-wave)
            done = ends.copy()
            done[: len(wave)] += wave
            tops = np.maximum(top, np.maximum.accumulate(done[: len(wave)]))
            count = np.arange(1, len(wave) + 1)
            took = base * (tops + feeding) + (load[at + count] - load[first]) / actors
            late = took + call * (at - first - slots + count) / actors > room
            k = int(np.argmax(late)) if late.any() else len(wave)
            at += k
            stop = at
            if k < len(wave):
                break
            ends = np.sort(done)
            top = int(tops[-1])
        return stop

    def actors(self, shares: Sequence[Share]) -> Actors:
        """Return the responses of every actor, longest first. Of several that share items, the one with the least work so far
        takes the next."""
        items, found = self.items, []
        for r, n, first, last in shares:
            if n == 1:
                found.append((r, self.responses(np.arange(first, last))))
                continue
            refills = items.edge[last] - items.edge[first] > n * items.slots[r]
            work = items.load[r, first:last] + (items.base_s[r] / items.slots[r] * items.steps[first:last] if refills else 0.0)
            queue, owner = [(0.0, k) for k in range(n)], np.zeros(last - first, dtype=np.int64)
            for x, seconds in enumerate(work.tolist()):
                took, k = queue[0]
                owner[x] = k
                heapq.heapreplace(queue, (took + seconds, k))
            groups = (np.flatnonzero(owner == k) + first for k in range(n))
            found += [(r, self.responses(group)) for group in groups if len(group)]
        return found

    def responses(self, chosen: IntArray) -> IntArray:
        """Return the responses of items, longest first."""
        return responses_of(self.items, self.problem.workload.points.iterations, chosen)


def responses_of(items: Items, length: IntArray, chosen: IntArray) -> IntArray:
    """Return the responses of the ``chosen`` items, longest first, given the (R,) iterations of all."""
    if len(items) == len(items.order):
        return np.asarray(items.order[np.sort(chosen)])
    sizes = items.edge[chosen + 1] - items.edge[chosen]
    ends = np.cumsum(sizes)
    at = np.repeat(items.edge[chosen] - ends + sizes, sizes) + np.arange(ends[-1] if len(ends) else 0)
    group = items.order[at]
    return np.asarray(group[np.argsort(-length[group], kind="stable")])


def openings_of(columns: Columns, chosen: IntArray) -> list[Opening]:
    """Return the actors of the chosen columns, in their order."""
    return [
        Opening(*pair)
        for pair in zip(
            columns.offer[chosen].tolist(), columns.actors[chosen].tolist(), columns.warm[chosen].tolist(), strict=True
        )
    ]
