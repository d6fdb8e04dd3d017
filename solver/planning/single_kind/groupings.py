"""Finds the cheapest grouping of few items for a number of actors and a latest makespan, by dynamic programming over sets.

Inputs: seconds of every set of items, by its bits. With n items there are 3^n / 2 pairs of a set and a subset of it that has
the set's first item. One array operation over these pairs adds one actor to the cheapest groupings of all sets.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import FloatArray, IntArray


class Groupings:
    """Groupings of ``items`` items.

    Attributes:
        work: pairs of a set and a subset looked at so far.
    """

    def __init__(self, items: int) -> None:
        self.items, self.work = items, 0
        self._within, self._others, self._first = _pairs(items)

    def cheapest(self, seconds: FloatArray, actors: int, latest_s: tuple[float, float], prewarmed: int) -> list[int] | None:
        """Return the groups, as bits of their items, with the least sum of seconds; None if no grouping is in time.

        Args:
            seconds: (2^n,) of every set of items once an actor can decode. actors: how many groups there are.
            latest_s: seconds until the makespan of an actor that starts cold, and of a prewarmed one. prewarmed: how many are.
        """
        layers = self._layers(seconds, actors, latest_s, prewarmed)
        whole = (1 << self.items) - 1
        late = int(np.argmin([layer[whole] for layer in layers[-1]]))
        if math.isinf(layers[-1][late][whole]):
            return None
        groups = []
        for before in reversed(layers[:-1]):
            start, end = self._first[whole], self._first[whole + 1]
            within, others = self._within[start:end], self._others[start:end]
            sums = [self._added(seconds[within], before[late][others], latest_s[0])]
            if late:
                sums.append(self._added(seconds[within], before[late - 1][others], latest_s[1]))
            chosen = int(np.argmin(np.concatenate(sums)))
            late -= chosen // len(within)
            groups.append(int(within[chosen % len(within)]))
            whole = int(others[chosen % len(within)])
        return groups

    def _layers(
        self, seconds: FloatArray, actors: int, latest_s: tuple[float, float], prewarmed: int
    ) -> list[list[FloatArray]]:
        """Return the least sum of seconds of every set of items in 0, 1, ... ``actors`` groups, for each number of groups that
        only prewarmed actors complete in time."""
        most_late = min(prewarmed, actors) if latest_s[1] > latest_s[0] else 0
        none = np.full(1 << self.items, math.inf)
        none[0] = 0.0
        layers = [[none, *[np.full(1 << self.items, math.inf)] * most_late]]
        taken = seconds[self._within]
        for _ in range(actors):
            layer = []
            for late in range(most_late + 1):
                sums = self._added(taken, layers[-1][late][self._others], latest_s[0])
                if late:
                    sums = np.minimum(sums, self._added(taken, layers[-1][late - 1][self._others], latest_s[1]))
                least = np.minimum.reduceat(sums, self._first[1:-1])
                layer.append(np.concatenate([[math.inf], least]))
                self.work += len(sums)
            layers.append(layer)
        return layers

    def _added(self, taken: FloatArray, others: FloatArray, latest_s: float) -> FloatArray:
        """Return the sums with one more group, infinite where it takes too long."""
        return np.where(taken <= latest_s, taken + others, math.inf)


@lru_cache(maxsize=16)
def _pairs(items: int) -> tuple[IntArray, IntArray, NDArray[np.int64]]:
    """Return (pairs,) subsets with the first item of each set and what they leave of it, and where each set's pairs begin.

    The empty set has none.
    """
    sets = np.arange(1 << items)
    first_item = sets & -sets
    whole, within = np.nonzero(((sets[:, None] & sets) == sets) & ((first_item[:, None] & sets) > 0))
    return within, whole ^ within, np.searchsorted(whole, np.arange((1 << items) + 1))
