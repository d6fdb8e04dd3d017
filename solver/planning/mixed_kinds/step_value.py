"""Computes the objective value of a makespan and a cost, and packs actors of several sizes into nodes.

Inputs: the objective, the phases outside generation and the pools.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from solver.model.cluster import GpuPool
from solver.model.objective import NonGenerationPhases, Objective


@dataclass(frozen=True)
class PlanValue:
    """Values plans by makespan and cost of generation, including the phases outside generation.

    Attributes:
        learner_rate: cost of the learner's GPUs per second of the step. norms: T_ref and C_ref.
        release: when actors release their GPUs (``done``, ``generation`` or ``step``).
    """

    objective: Objective
    phases: NonGenerationPhases
    learner_rate: float
    norms: tuple[float, float]
    release: str = "done"

    def step(self, makespan_s: float, cost: float) -> tuple[float, float]:
        """Return time and cost of the whole step."""
        time_s = self.phases.step_time_s(makespan_s)
        return time_s, cost + self.learner_rate * time_s

    def value(self, makespan_s: float, cost: float) -> float:
        """Return the number to minimise; infinite if a limit is broken."""
        return self.objective.value(*self.step(makespan_s, cost), self.norms)

    def most_cost(self, value: float, makespan_s: float) -> float:
        """Return the cost of generation from which on a plan of this makespan has ``value`` or more."""
        time_s = self.phases.step_time_s(makespan_s)
        learner = self.learner_rate * time_s
        if self.objective.deadline_s is not None:
            return value - learner
        if self.objective.budget is not None:
            return self.objective.budget * (1 + 1e-8) - learner if time_s < value else 0.0
        w = self.objective.time_weight
        if w == 1.0 or math.isinf(value):
            return math.inf
        return (value - w * time_s / self.norms[0]) / (1.0 - w) * self.norms[1] - learner

    @property
    def held_after_s(self) -> float | None:
        """Return the seconds that actors hold their GPUs beyond the makespan, or None if they release them once done."""
        if self.release == "done":
            return None
        return self.phases.seconds if self.release == "step" else 0.0


def place(pools: Sequence[GpuPool], actors: Sequence[tuple[int, int]]) -> list[tuple[int, tuple[int, ...]]] | None:
    """Return node and GPU ids, counted through all pools, of actors given as (pool, GPUs); None if they do not fit.

    Larger actors are placed first, each into the fullest node that has room. Where sizes divide one another this finds a
    placement whenever one exists; otherwise a search over nodes follows.
    """
    places: list[tuple[int, tuple[int, ...]]] = [(0, ())] * len(actors)
    first_node = first_gpu = 0
    for i, pool in enumerate(pools):
        chosen = sorted((j for j, (p, _) in enumerate(actors) if p == i), key=lambda j: (-actors[j][1], j))
        nodes = _pack([actors[j][1] for j in chosen], pool.nodes, pool.gpus_per_node)
        if nodes is None:
            return None
        taken = [0] * pool.nodes
        for j, node in zip(chosen, nodes, strict=True):
            start = first_gpu + node * pool.gpus_per_node + taken[node]
            taken[node] += actors[j][1]
            places[j] = (first_node + node, tuple(range(start, start + actors[j][1])))
        first_node += pool.nodes
        first_gpu += pool.gpus
    return places


def _pack(sizes: list[int], nodes: int, room: int, most_steps: int = 20_000) -> list[int] | None:
    """Return nodes for actors of falling size, or None."""
    if sum(sizes) > nodes * room or any(size > room for size in sizes):
        return None
    free = [room] * nodes
    chosen: list[int] = []
    steps = 0

    def put(i: int) -> bool:
        nonlocal steps
        if i == len(sizes):
            return True
        steps += 1
        if steps > most_steps:
            return False
        tried: set[int] = set()
        for node in sorted(range(nodes), key=lambda node: free[node]):
            if free[node] >= sizes[i] and free[node] not in tried:
                tried.add(free[node])
                free[node] -= sizes[i]
                chosen.append(node)
                if put(i + 1):
                    return True
                free[node] += sizes[i]
                chosen.pop()
        return False

    return list(chosen) if put(0) else None
