"""Balancing predicted sums: Karmarkar-Karp (verl) and longest processing time first, each right-sized.

Both treat a step as number partitioning: the sums of predicted tokens of the actors should be equal. Neither takes into account
that an actor lasts as long as its longest response, or what an iteration costs. Both right-size the number of actors.

- **Largest differencing** (Karmarkar, Karp: The differencing method of set partitioning, 1982): the two partial partitions with
  the largest differences are merged, until one is left. The largest part of one joins the smallest of the other. The
  data-parallel ranks of verl are balanced in this way (``verl/utils/seqlen_balancing.py``), with equal counts. Its partial
  partitions then begin as blocks of N numbers next to each other in sorted order, so that every merge keeps the counts equal.
  It refuses counts that N does not divide; here zeros fill the first block up, and counts differ by one at most.
- **Longest first** (Graham: Bounds on multiprocessing timing anomalies, 1969): the next largest sum goes to the actor with the
  least so far. The largest sum of an actor is at most 4/3 - 1/(3N) times the least possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from rlhfless.scheduling.right_sizing import predicted_sums, right_sized
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray, Workload

Part = tuple[int, int, tuple[int, ...]]  # sum, count (parts of equal sums are distinguished by it), positions


def largest_differencing(sums: Sequence[int], parts: int, equal_counts: bool = False) -> list[list[int]]:
    """Partition ``sums`` (not negative) into ``parts`` groups by Karmarkar-Karp; returns positions in ascending order.

    Args:
        parts: at most as many as there are sums; then no group is empty.
        equal_counts: groups differ by one in count at most.
    """
    ranked = sorted((int(value), i) for i, value in enumerate(sums))
    singles: list[Part] = [(value, 1, (i,)) for value, i in ranked]
    nothing: Part = (0, 0, ())
    if equal_counts:
        filled = [nothing] * (-len(singles) % parts) + singles
        partial = [filled[start : start + parts] for start in range(0, len(filled), parts)]
    else:
        partial = [[single] + [nothing] * (parts - 1) for single in singles]
    heap: list[tuple[int, int, int, list[Part]]] = []

    def push(place: int, state: list[Part]) -> None:
        state.sort(reverse=True)
        heapq.heappush(heap, (state[-1][0] - state[0][0], -state[0][0], place, state))

    for place, state in enumerate(partial):
        push(place, state)
    while len(heap) > 1:
        (_, _, place, first), (_, _, _, second) = heapq.heappop(heap), heapq.heappop(heap)
        push(place, [(a + b, m + n, p + q) for (a, m, p), (b, n, q) in zip(first, reversed(second), strict=True)])
    return [sorted(positions) for _, _, positions in heap[0][3]]


def longest_first(sums: Sequence[int], parts: int) -> list[list[int]]:
    """Partition ``sums`` into ``parts`` groups by longest processing time first; returns positions in order of assignment."""
    groups: list[list[int]] = [[] for _ in range(parts)]
    load = [(0, 0, g) for g in range(parts)]  # sum, count, group: a heap
    for i in sorted(range(len(sums)), key=lambda i: (-sums[i], i)):
        total, count, group = load[0]
        groups[group].append(i)
        heapq.heapreplace(load, (total + int(sums[i]), count + 1, group))
    return groups


@dataclass(frozen=True)
class KarmarkarKarp:
    """verl's balancing on predicted sums of each prompt's group; prompts keep the given order on every actor.

    Args:
        equal_counts: balance counts too, as verl does for its ranks; otherwise only sums are balanced.
    """

    equal_counts: bool = True
    name: str = "karmarkar-karp"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)

        def split(workload: Workload, prompts: IntArray, actors: int) -> list[IntArray]:
            sums = predicted_sums(workload, prompts).tolist()
            return [prompts[group] for group in largest_differencing(sums, actors, self.equal_counts)]

        return right_sized(self.name, split, problem)


@dataclass(frozen=True)
class LongestFirst:
    """Assign prompts by longest processing time first on predicted sums of each prompt's group."""

    name: str = "lpt"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)

        def split(workload: Workload, prompts: IntArray, actors: int) -> list[IntArray]:
            return [prompts[np.array(group)] for group in longest_first(predicted_sums(workload, prompts).tolist(), actors)]

        return right_sized(self.name, split, problem)
