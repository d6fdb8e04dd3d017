"""Groups of prompts that stay together where slots bind: contiguous in the order of their longest responses, equally long.

Input: ``SortedWork`` whose items are prompts. An actor that admits its responses longest first keeps its slots full almost to
the end. So a group is busy for about

    a * max(longest, iterations / slots) + loads + e * calls,

where of J responses that join later about I (1 - exp(-J / I)) join in different iterations, I the iterations of the group. For
a makespan, each actor is filled up in turn with the next prompts by this estimate. Of all makespans the one with the least
value is taken, and its groups are timed exactly. Their ratio to the estimate corrects it where the group lies in the order, and
the cuts are made anew. After two or three rounds all actors end together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.planning.single_kind.items import SortedWork

GRID, HALVINGS = 16, 7  # makespans that are tried in one round: spread over all, then beside the best one


class PromptGroups:
    """Cuts sorted prompts into groups by estimated times, which exact times correct."""

    def __init__(self, work: SortedWork) -> None:
        self.work = work
        self._first: list[int] = work.edge.tolist()  # lists, as single numbers are read
        self._length: list[int] = work.length.tolist()
        self._steps: list[float] = work.steps.tolist()
        self._load: list[float] = work.load.tolist()
        self._ratio_at: FloatArray = np.zeros(1)  # sorted positions and, at them, the ratio of exact to estimated seconds
        self._ratio: FloatArray = np.ones(1)

    def best_edges(self, value_of: Callable[[FloatArray], float]) -> IntArray | None:
        """Return the (N+1,) edges of the groups with the least value of their estimated (1, N) seconds; None if no makespan has
        a finite value."""
        low, high = self.work.shortest_makespan_s, self.work.longest_makespan_s
        if not 0 < low < math.inf:
            return None
        tried: dict[float, tuple[float, IntArray | None]] = {}

        def try_makespan(makespan_s: float) -> None:
            edges = self.edges_within(makespan_s)
            enough = edges is not None and len(edges) > self.work.min_actors
            tried[makespan_s] = (value_of(self.seconds(edges)[None]) if enough and edges is not None else math.inf), edges

        for makespan_s in np.geomspace(low, high, GRID).tolist():
            try_makespan(makespan_s)
        for _ in range(HALVINGS):
            rising = sorted(tried)
            best = min(range(len(rising)), key=lambda i: tried[rising[i]][0])
            for neighbour in (best - 1, best + 1):
                if 0 <= neighbour < len(rising):
                    try_makespan((rising[best] + rising[neighbour]) / 2)
        value, edges = min(tried.values(), key=lambda pair: pair[0])
        return edges if math.isfinite(value) else None

    def edges_within(self, makespan_s: float) -> IntArray | None:
        """Return the (N+1,) edges of groups that end by ``makespan_s`` by the estimate; None if that takes more actors than
        there are."""
        total, edges, size = len(self.work), [0], 1
        ratios = np.interp(np.arange(total), self._ratio_at, self._ratio).tolist()
        while edges[-1] < total:
            if len(edges) > self.work.max_actors:
                return None
            first = edges[-1]
            room_s = (makespan_s - self.work.ready_of(len(edges) - 1)) / ratios[first]
            low, step = first + 1, size  # a group has at least one prompt; most are as large as the one before
            while low < total and step and self._about_s(first, min(low + step, total)) <= room_s:
                low, step = min(low + step, total), 2 * step
            high = min(low + step, total)
            while low < high:
                middle = (low + high + 1) // 2
                if self._about_s(first, middle) <= room_s:
                    low = middle
                else:
                    high = middle - 1
            size = max(1, (low - first) // 2)
            edges.append(low)
        return np.array(edges, dtype=np.int64)

    def seconds(self, edges: IntArray) -> FloatArray:
        """Return the (N,) estimated seconds of the groups."""
        ratio = np.interp(edges[:-1], self._ratio_at, self._ratio)
        pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        return np.array([self._about_s(first, last) for first, last in pairs]) * ratio

    def learn(self, edges: IntArray, busy_s: FloatArray) -> None:
        """Correct the estimate by the exact (N,) seconds of groups."""
        pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        about = np.array([self._about_s(first, last) for first, last in pairs])
        timed = np.flatnonzero((about > 0) & (busy_s > 0))  # others have nothing to generate
        if len(timed):
            self._ratio_at, self._ratio = edges[timed].astype(float), busy_s[timed] / about[timed]

    def _about_s(self, first: int, last: int) -> float:
        """Return the estimate of the module docstring for the items from ``first`` to before ``last``."""
        work = self.work
        responses = self._first[last] - self._first[first]
        iterations: float = self._length[first]
        calls = 1.0
        if responses > work.slots:
            iterations = max(iterations, (self._steps[last] - self._steps[first]) / work.slots)
            calls -= iterations * math.expm1(-(responses - work.slots) / max(iterations, 1.0))
        return work.base_s * iterations + self._load[last] - self._load[first] + work.call_s * calls
