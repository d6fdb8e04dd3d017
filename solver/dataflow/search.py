"""Searches for the plan of least period, and proves how far a better one can be.

**Descents** change one call at a time to the option with the least period, from several starts, until nothing improves.

**Exact search**, depth first. First every call gets a mesh, the slowest call first, and counts with the fastest strategy there.
Then every call gets its strategy. A block of partial plans is extended at a time. A partial plan is dropped if its bound is not
below the best period by the gap that is asked for, or if the calls with a strategy need too many bytes. The bound is that of
``bound.py``. A call without a mesh counts with its least seconds in chains, apart from others by the graph alone. In the sum of
GPU-seconds it counts with the least of any option that leaves its heaviest chain below the best period. What is left open when
the counted work is used up gives the bound. Gaps are proven one after the other, the largest first: a search for much better
plans is short, and what it finds shortens the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from solver.dataflow.bound import apart_on_gpus, chains_s, never_together
from solver.dataflow.options import CallOptions, FloatArray, IntArray
from solver.dataflow.schedule import periods_s

STARTS = 2  # descents from perturbed plans
CHANGED = 3  # calls of a plan that are perturbed
BLOCK = 256  # partial plans that are extended at once
CHUNK = 4096  # extended plans whose bounds are computed at once


@dataclass
class Found:
    """The best plan so far.

    Attributes:
        plan: (K,) option of every call; None while none that fits is known. period_s: of it. bound_s: no plan has less.
        evaluated: plans whose times were computed. bounded: partial plans whose bounds were. history: (evaluated, period_s).
    """

    plan: IntArray | None = None
    period_s: float = math.inf
    bound_s: float = 0.0
    evaluated: int = 0
    bounded: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)

    def take(self, plans: IntArray, period_s: FloatArray) -> bool:
        """Keep the best of these plans if it is better; return whether it is."""
        self.evaluated += len(plans)
        if not len(plans) or not period_s.min() < self.period_s * (1 - 1e-12):
            return False
        best = int(period_s.argmin())
        self.plan, self.period_s = plans[best].copy(), float(period_s[best])
        self.history.append((self.evaluated, self.period_s))
        return True


class Search:
    """A search over the plans of ``options`` whose GPUs need at most ``limit_bytes``."""

    def __init__(self, options: CallOptions, limit_bytes: float, seed: int = 0) -> None:
        self.options, self.limit_bytes = options, limit_bytes
        self.rng = np.random.default_rng(seed)
        self.found = Found()

    def periods(self, plans: IntArray) -> FloatArray:
        """Return (P,) periods, infinite where a GPU has too few bytes."""
        period_s = np.full(len(plans), math.inf)
        fits = self.options.peak_bytes(plans).max(axis=1) <= self.limit_bytes
        if fits.any():
            period_s[fits] = periods_s(self.options, plans[fits])
        return period_s

    def start(self, most: int) -> None:
        """Descend from every call's fastest option and from random plans, within ``most`` evaluated plans."""
        fastest = np.array([seconds.argmin() for seconds in self.options.seconds])
        reached = self.descend(fastest, most)
        for _ in range(STARTS):
            best = self.found.plan if self.found.plan is not None else reached
            self.descend(self.perturbed(best, CHANGED), most)

    def descend(self, start: IntArray, most: int) -> IntArray:
        """Improve one call at a time from ``start`` and return the plan that is reached; evaluate at most ``most`` in all."""
        plan, period_s = start.copy(), math.inf
        unchanged, call = 0, 0
        calls = len(plan)
        while unchanged < calls and self.found.evaluated < most:
            plans = np.repeat(plan[None], len(self.options.seconds[call]), axis=0)
            plans[:, call] = np.arange(len(plans))
            periods = self.periods(plans)
            self.found.take(plans, periods)
            best = int(periods.argmin())
            if periods[best] < period_s * (1 - 1e-9):
                unchanged = 0 if plan[call] != best else unchanged + 1
                plan[call], period_s = best, float(periods[best])
            else:
                unchanged += 1
            call = (call + 1) % calls
        return plan

    def perturbed(self, plan: IntArray, changes: int) -> IntArray:
        """Return the plan with so many calls at random options."""
        other = plan.copy()
        for call in self.rng.choice(len(plan), min(changes, len(plan)), replace=False):
            other[call] = self.rng.integers(len(self.options.seconds[call]))
        return other

    def prove(self, gap: float, most: int) -> bool:
        """Search the whole space for a period more than ``gap`` below the best, and return whether the search has ended.

        Args:
            most: partial plans that may be bounded, those of earlier calls included.
        """
        return _Exact(self, gap, most).run()


class _Exact:
    """The exact search: the order in which meshes and strategies are chosen, and what calls without a mesh take at least.

    A partial plan is a row of K options, with the fastest one of its mesh for a call without a strategy, and -1 for one without
    a mesh. At depth d < K the d-th call gets its mesh, at depth K + d its strategy.
    """

    def __init__(self, search: Search, gap: float, most_bounds: int) -> None:
        self.search, self.options, self.found = search, search.options, search.found
        self.gap, self.most = gap, most_bounds
        options = self.options
        self.least_s = np.array([least_s.min() for least_s, _ in options.least])
        self.calls = sorted(range(len(self.least_s)), key=lambda call: -self.least_s[call])
        self.apart = never_together(options)
        self.leaf_s = math.inf  # least bound of a whole plan; others of its layouts may be better where generation has a bound
        self.fastest, self.of_mesh, self.sorted_s, self.least_area, self.mesh_least = [], [], [], [], []
        for seconds, span, (least_s, least_gpu_s) in zip(options.seconds, options.spans, options.least, strict=True):
            by_mesh: dict[tuple[int, int], list[int]] = {}
            for option in np.argsort(seconds, kind="stable").tolist():
                by_mesh.setdefault((int(span[option, 0]), int(span[option, 1])), []).append(option)
            self.fastest.append(np.array([of_mesh[0] for of_mesh in by_mesh.values()]))
            self.of_mesh.append({of_mesh[0]: np.array(of_mesh) for of_mesh in by_mesh.values()})
            of_mesh_least = np.empty((2, len(seconds)))
            for same in self.of_mesh[-1].values():
                of_mesh_least[:, same] = np.array([[least_s[same].min()], [least_gpu_s[same].min()]])
            self.mesh_least.append(of_mesh_least)
            order = np.argsort(least_s, kind="stable")
            self.sorted_s.append(least_s[order])
            self.least_area.append(np.minimum.accumulate(least_gpu_s[order]))

    @property
    def target_s(self) -> float:
        """A period that is worth finding must be below this."""
        return self.found.period_s * (1 - self.gap)

    def run(self) -> bool:
        """Extend blocks of partial plans until none is open, or the work is used up; return whether none is open."""
        root = np.full((1, len(self.calls)), -1)
        open_: list[tuple[IntArray, FloatArray, int]] = [(root, np.zeros(1), 0)]
        while open_ and self.found.bounded < self.most:
            plans, bounds, depth = open_.pop()
            alive = bounds < self.target_s
            plans, bounds = plans[alive], bounds[alive]
            if not len(plans):
                continue
            if len(plans) > BLOCK:
                open_.append((plans[BLOCK:], bounds[BLOCK:], depth))
                plans = plans[:BLOCK]
            self._extend(plans, depth, open_)
        left = [float(bounds.min()) for _, bounds, _ in open_ if len(bounds)]
        self.found.bound_s = max(self.found.bound_s, min([self.target_s, self.leaf_s, *left]))
        return not open_

    def _extend(self, plans: IntArray, depth: int, open_: list[tuple[IntArray, FloatArray, int]]) -> None:
        """Choose the next mesh or strategy of these plans in all ways; keep those that may lead to a better plan."""
        calls = len(self.calls)
        call = self.calls[depth % calls]
        if depth < calls:
            options = self.fastest[call]
            children = np.repeat(plans, len(options), axis=0)
            children[:, call] = np.tile(options, len(plans))
        else:
            choices = [self.of_mesh[call][option] for option in plans[:, call].tolist()]
            children = np.repeat(plans, [len(options) for options in choices], axis=0)
            children[:, call] = np.concatenate(choices)
        kept, bounds = [], []
        for at in range(0, len(children), CHUNK):
            chunk = children[at : at + CHUNK]
            bound_s = self._bounds(chunk, depth + 1)
            alive = bound_s < self.target_s
            kept.append(chunk[alive])
            bounds.append(bound_s[alive])
        self.found.bounded += len(children)
        plans, bound_s = np.concatenate(kept), np.concatenate(bounds)
        if not len(plans):
            return
        if depth + 1 == 2 * calls:
            self.found.take(plans, self.search.periods(plans))
            if self.options.freed_early:
                self.leaf_s = min(self.leaf_s, float(bound_s.min()))
            return
        order = np.argsort(bound_s, kind="stable")
        open_.append((plans[order], bound_s[order], depth + 1))

    def _bounds(self, plans: IntArray, depth: int) -> FloatArray:
        """Return (P,) bounds of partial plans of this depth; infinite where no better plan can come of one."""
        options, calls = self.options, len(self.calls)
        tasks = options.tasks
        has_mesh = set(self.calls[:depth])
        has_strategy = set(self.calls[: max(0, depth - calls)])
        seconds, gpu_s = np.zeros((2, len(plans), tasks))
        occupied = np.zeros((len(plans), tasks, options.gpus), np.float32)
        for call in range(calls):
            if call in has_mesh:
                least = options.least[call] if call in has_strategy else self.mesh_least[call]
                seconds[:, call], gpu_s[:, call] = (numbers[plans[:, call]] for numbers in least)
                occupied[:, call] = options.occupies(call, plans[:, call])
            else:
                seconds[:, call] = self.least_s[call]
        for number, call in enumerate(options.reallocated):
            train = options.graph.trained_by[call]
            assert train is not None, "a reallocation is for a call of a trained role"
            if call in has_strategy and train in has_strategy:
                seconds[:, calls + number] = options.reallocation_s(call, plans[:, train], plans[:, call])
            if call in has_mesh and train in has_mesh:
                occupied[:, calls + number] = np.maximum(occupied[:, call], occupied[:, train])
        apart = apart_on_gpus(options, occupied @ occupied.transpose(0, 2, 1) > 0) | self.apart
        chain_s = chains_s(seconds, apart)
        moved = slice(calls, tasks)
        gpu_s[:, moved] = seconds[:, moved] * occupied[:, moved].sum(axis=2)
        area = gpu_s.sum(axis=1)
        bound_s = chain_s.max(axis=1)
        masks = np.arange(1 << tasks)
        for call in range(calls):
            if call in has_mesh:
                continue
            others_s = chain_s[:, masks >> call & 1 == 1].max(axis=1) - self.least_s[call]
            allowed = np.searchsorted(self.sorted_s[call], self.target_s - others_s, side="right")
            area = area + np.where(allowed > 0, self.least_area[call][np.maximum(allowed, 1) - 1], math.inf)
        bound_s = np.maximum(bound_s, area / options.gpus)
        if has_strategy:
            few = options.peak_bytes(plans, has_strategy).max(axis=1) > self.search.limit_bytes
            bound_s[few] = math.inf
        return np.asarray(bound_s)
