"""Small clusters with random costs, and an independent simulation of following steps."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from solver import LatencyModel, Workload
from solver.layouts.costs import CallMemory, CallOptions, ReleasedEarly
from solver.layouts.generation import StepGeneration
from solver.layouts.graph import Call, dpo, grpo, ppo, remax
from solver.layouts.layout import Layout, missing_share

ALGORITHMS = (ppo, grpo, remax, dpo)


class RandomCosts:
    """Seconds that fall with the number of GPUs, times random factors; reallocation by what is missing."""

    def __init__(self, seed: int, link: float = 1.0, allowed: float = 1.0, gpus_per_node: int = 8) -> None:
        self.seed, self.link, self.allowed, self.gpus_per_node = seed, link, allowed, gpus_per_node

    def _random(self, *key: object) -> float:
        digits = [sum(ord(c) * 31**k for k, c in enumerate(repr(part))) % (1 << 31) for part in key]
        return float(np.random.default_rng([self.seed, *digits]).random())

    def seconds(self, call: Call, layout: Layout) -> float:
        weight = 1 + 9 * self._random(call.name)
        s, mesh = layout.strategy, layout.mesh
        whole = s.tp == mesh.gpus  # one layout is always there
        if not whole and self._random(call.name, mesh.first, mesh.gpus, s.dp, s.pp) > self.allowed:
            return math.inf
        return weight * (0.5 + self._random(call.name, s.dp, s.tp, s.pp)) / layout.mesh.gpus**0.8

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        share = 1 / (layout.strategy.tp * layout.strategy.pp)
        size = 1 + 3 * self._random(call.role)
        return CallMemory(8 * size * share if call.kind == "train" else 0.0, size * share, 2 * size * share)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        near, far = missing_share(source, destination, self.gpus_per_node)
        return float((near + 5 * far).max()) * self.link, float((near + far).sum())


class FewLayouts(RandomCosts):
    """At most so many random layouts per call, about, so that all plans can be enumerated."""

    def __init__(self, seed: int, link: float, most: float, gpus_per_node: int = 8) -> None:
        super().__init__(seed, link, gpus_per_node=gpus_per_node)
        self.most = most

    def seconds(self, call: Call, layout: Layout) -> float:
        rank = self._random(call.name, "rank", layout.mesh.first, layout.mesh.gpus, layout.strategy.tp, layout.strategy.pp)
        kept = layout.strategy.dp == 4 or rank < self.most / 16  # one layout is always kept
        return super().seconds(call, layout) if kept else math.inf


class FewMeshes(RandomCosts):
    """Few layouts, so that all plans can be enumerated."""

    def seconds(self, call: Any, layout: Layout) -> float:
        return super().seconds(call, layout) if layout.strategy.pp == 1 and layout.mesh.first != 1 else math.inf


def generation(seed: int = 0, responses: int = 16, **more: Any) -> StepGeneration:
    rng = np.random.default_rng(seed)
    tokens = np.minimum(rng.lognormal(5, 0.8, responses).astype(int) + 1, 900)
    workload = Workload([100] * (responses // 4), np.repeat(np.arange(responses // 4), 4), tokens, max_response_tokens=1000)
    latency = {
        tp: LatencyModel(f"tp{tp}", tp, base_s=8e-3 / tp**0.7, per_response_s=2e-4, max_batch=64, start_s=9.0, sync_s=9.0)
        for tp in (1, 2)
    }
    return StepGeneration(workload, latency, **more)


def all_plans(options: CallOptions) -> np.ndarray:
    return np.array(list(itertools.product(*(range(len(seconds)) for seconds in options.seconds))))


def sample(seed: int, gpus: int = 4, link: float = 1.0) -> CallOptions:
    graph = ALGORITHMS[seed % len(ALGORITHMS)]()
    return CallOptions.of(graph, gpus, min(gpus, 8), RandomCosts(seed, link))


def random_plans(options: CallOptions, count: int, rng: np.random.Generator) -> np.ndarray:
    return np.stack([rng.integers(0, len(seconds), count) for seconds in options.seconds], axis=1)


def followed(options: CallOptions, plan: np.ndarray, order: str, steps: int, rng: np.random.Generator | None = None) -> dict:
    """Ends of every (step, task), one GPU at a time; ``order`` is longest path, fifo or random (any order that waits allow)."""
    seconds, busy = takes(options, plan)
    graph_waits = {
        (s, t): [(s - ago, u) for ago, waits in enumerate(options.task_graph) if s >= ago for u in waits[t]]
        for s in range(steps) for t in range(options.tasks)
    }  # fmt: skip
    waits = {(s, t): [*before, *([(s - 1, t)] if s else [])] for (s, t), before in graph_waits.items()}
    path: dict[tuple[int, int], float] = {}

    def left(one: tuple[int, int]) -> float:
        if one not in path:
            path[one] = seconds[one[1]] + max((left(other) for other in waits if one in graph_waits[other]), default=0.0)
        return path[one]

    held = held_s(options, plan)
    free = np.zeros(options.gpus)
    ends: dict[tuple[int, int], float] = {}
    while len(ends) < len(waits):
        open_ = [one for one in waits if one not in ends and all(other in ends for other in waits[one])]
        ready = {one: max((ends[other] for other in graph_waits[one]), default=0.0) for one in open_}
        start = {one: max(ready[one], free[busy[one[1]]].max(initial=0.0)) for one in open_}
        if order == "random":
            assert rng is not None
            one = open_[rng.integers(len(open_))]
        else:
            first = start if order == "longest path" else ready
            least = min(first.values())
            one = max((o for o in open_ if first[o] <= least), key=lambda o: (left(o), -o[1]))
        ends[one] = start[one] + seconds[one[1]]
        on = held[one[1]] > 0
        free[on] = start[one] + held[one[1]][on]
    return ends


def takes(options: CallOptions, plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(T,) seconds of every task, and (T, N) whether it needs a GPU; one of no seconds needs none."""
    seconds = options.durations(plan[None])[0]
    return seconds, options.blocks(plan[None])[0] & (seconds > 0)[:, None]


def held_s(options: CallOptions, plan: np.ndarray) -> np.ndarray:
    """(T, N) seconds for which every task holds every GPU."""
    seconds, busy = takes(options, plan)
    held = np.where(busy, seconds[:, None], 0.0)
    for call, released in options.released_early.items():
        held[call] = released.release_s[plan[call]]
    return held


def cyclic_period_s(options: CallOptions, plan: np.ndarray, rng: np.random.Generator, steps: int = 26) -> float:
    """Seconds per step if every step decides its tasks in one random order that its waits allow, step after step."""
    (seconds, busy), held = takes(options, plan), held_s(options, plan)
    same, order = options.task_graph[0], list[int]()
    while len(order) < options.tasks:
        order.append(rng.choice([t for t in range(options.tasks) if t not in order and set(same[t]) <= set(order)]))
    free, ends, starts = np.zeros(options.gpus), np.zeros((steps, options.tasks)), np.zeros((steps, options.tasks))
    for step in range(steps):
        for task in order:
            waits = [ends[step - ago, other] for ago, of in enumerate(options.task_graph) if step >= ago for other in of[task]]
            starts[step, task] = max([0.0, *waits, free[busy[task]].max(initial=0.0)])
            ends[step, task] = starts[step, task] + seconds[task]
            on = held[task] > 0
            free[on] = np.maximum(free[on], starts[step, task] + held[task][on])
    return float((starts[-1] - starts[-13]).max() / 12)  # orders of few tasks repeat after 1, 2, 3, 4, 6 or 12 steps


def freeing(options: CallOptions, rng: np.random.Generator) -> CallOptions:
    """The same options, with generate calls that give GPUs back early, and bounds at or below what they take."""
    released = {}
    for at, call in enumerate(options.graph.calls):
        if call.kind != "generate":
            continue
        release_s = np.zeros((len(options.layouts[at]), options.gpus))
        for option, layout in enumerate(options.layouts[at]):
            shares = rng.choice([0.0, 0.2, 0.6, 1.0], layout.mesh.gpus)
            shares[rng.integers(layout.mesh.gpus)] = 1.0
            release_s[option, layout.mesh.first : layout.mesh.last] = shares * options.seconds[at][option]
        least_gpu_s = release_s.sum(axis=1) * rng.uniform(0.8, 1.0)
        released[at] = ReleasedEarly(release_s, options.seconds[at] * rng.uniform(0.9, 1.0), least_gpu_s)
    return replace(options, released_early=released)
