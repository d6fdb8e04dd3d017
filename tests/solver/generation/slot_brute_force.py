"""Every plan of up to ten responses on actors whose slots bind, in arrays: fast enough for thousands of instances.

Written from the rule that a response, in order of admission, joins when the first slot is free; shares no code with the solver.
Without prefill calls the fastest order of a group is the best assignment of its responses to slots. With them all orders count.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from solver_reference import partitions

import solver

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SlotInstance:
    """Responses with a prompt of one token each on equal actors, all of which decode from second 0 on.

    Attributes:
        lengths: of the R responses; prompt_of: the prompt of each. call_s: of a prefill call.
    """

    lengths: tuple[int, ...]
    prompt_of: tuple[int, ...]
    actors: int
    slots: int
    keep_together: bool = False
    base_s: float = 10e-3
    per_response_s: float = 1e-4
    call_s: float = 0.0

    @classmethod
    def random(cls, rng: np.random.Generator, responses: int, prompts: int | None = None, **given: float) -> SlotInstance:
        """Draw an instance with this many responses to as many prompts, which stay together, or to one."""
        lengths = tuple(rng.integers(1, 60, responses).tolist())
        owner = (
            np.zeros(responses, int)
            if prompts is None
            else np.sort(np.r_[:prompts, rng.integers(0, prompts, responses - prompts)])
        )
        most = min(4, responses if prompts is None else prompts)
        actors, slots = int(rng.integers(1, most + 1)), int(rng.integers(2, 5))
        return cls(lengths, tuple(owner.tolist()), actors, slots, prompts is not None, **given)

    def problem(self, objective: solver.Objective) -> solver.PlanningProblem:
        """The planning problem of this instance."""
        workload = solver.Workload([1] * (max(self.prompt_of) + 1), self.prompt_of, self.lengths)
        latency = solver.LatencyModel(
            "slots", 1, self.base_s, self.per_response_s, prefill_base_s=self.call_s, max_batch=self.slots
        )
        cluster = solver.Cluster(1, self.actors, 1)
        return solver.PlanningProblem(workload, cluster, latency, objective, keep_together=self.keep_together)

    @cached_property
    def item_busy_s(self) -> Array:
        """(2^I,) least seconds of every set of items, by their bits: of prompts that stay together, else of responses."""
        count = len(self.lengths)
        busy = self._busy_in_calls() if self.call_s else self.base_s * fewest_iterations(self.lengths, self.slots)
        sets = np.arange(1 << count)
        busy = busy + self.per_response_s * ((sets[:, None] >> np.arange(count) & 1) @ np.array(self.lengths))
        if not self.keep_together:
            return busy
        bits = np.bincount(self.prompt_of, weights=1 << np.arange(count)).astype(int)
        items = np.arange(1 << len(bits))
        return busy[(items[:, None] >> np.arange(len(bits)) & 1) @ bits]

    @cached_property
    def shortest_s(self) -> float:
        """The least makespan of any plan."""
        busy, whole, within = self.item_busy_s, *subsets(len(self.item_busy_s).bit_length() - 1)
        least = busy.copy()
        for _ in range(self.actors - 1):
            least = least_over_subsets(np.maximum(busy[within], least[whole ^ within]), whole)
        return float(least[-1])

    def plans(self) -> list[tuple[float, float]]:
        """Makespan and actor-seconds of every plan, each group in its fastest order."""
        items = len(self.item_busy_s).bit_length() - 1
        of = [[self.item_busy_s[sum(1 << i for i in group)] for group in groups] for groups in partitions(items, self.actors)]
        return [(max(busy), sum(busy)) for busy in of]

    def _busy_in_calls(self) -> Array:
        """(2^R,) least seconds of iterations and prefill calls of every set of responses, over all orders."""
        busy = np.zeros(1 << len(self.lengths))
        for size in range(1, len(self.lengths) + 1):
            sets = np.array(list(itertools.combinations(range(len(self.lengths)), size)))
            lengths = np.array(self.lengths)[sets][:, orders(size)]
            free, joins = np.zeros((*lengths.shape[:2], self.slots)), np.zeros(lengths.shape)
            for i in range(size):
                first = np.argmin(free, axis=2)[..., None]
                joins[..., i] = np.take_along_axis(free, first, 2)[..., 0]
                np.put_along_axis(free, first, joins[..., i : i + 1] + lengths[..., i : i + 1], 2)
            joins.sort(axis=2)
            calls = 1 + (np.diff(joins, axis=2) > 0).sum(axis=2)
            busy[(1 << sets).sum(axis=1)] = (self.base_s * free.max(axis=2) + self.call_s * calls).min(axis=1)
        return busy


def fewest_iterations(lengths: tuple[int, ...], slots: int) -> Array:
    """(2^R,) iterations that every set of responses needs at least in this many slots."""
    whole, within = subsets(len(lengths))
    tokens = (np.arange(1 << len(lengths))[:, None] >> np.arange(len(lengths)) & 1) @ np.array(lengths, dtype=float)
    least = tokens.copy()
    for _ in range(slots - 1):
        least = least_over_subsets(np.maximum(tokens[within], least[whole ^ within]), whole)
    return least


def least_over_subsets(values: Array, whole: NDArray[np.int64]) -> Array:
    """The least value of every set's subsets."""
    return np.asarray(np.minimum.reduceat(values, np.flatnonzero(np.diff(whole, prepend=-1))))


@lru_cache
def subsets(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of a set of ``count`` elements and a subset of it, as bits, in order of the set."""
    sets = np.arange(1 << count)
    whole, within = np.nonzero((sets[:, None] & sets) == sets)
    return whole, within


@lru_cache
def orders(count: int) -> NDArray[np.int64]:
    """All orders of ``count`` elements."""
    return np.array(list(itertools.permutations(range(count))))
