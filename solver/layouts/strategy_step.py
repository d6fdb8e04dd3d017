"""Gives a call of partial plans its strategy, in all ways that may lead to a period below a target.

Two rules leave out options without loss. Once all trainings have a strategy, it is known what they keep on every GPU, so other
calls fit or do not fit one by one. Of those options of one mesh that fit

- a call of a frozen role needs the fastest only, and
- a call of a trained role needs no option that is slower than another and takes as long or longer to send weights to.

Proof: every schedule stays a schedule if tasks become shorter on the same GPUs. So no order of a plan that is left out is
shorter than the best order of one that is kept. Trainings are never left out, as other calls may share their layout.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from solver.layouts.bound import best_within
from solver.layouts.options import FloatArray, IntArray
from solver.layouts.plan_space import Extended, PlanSpace


class StrategyStep:
    """Gives a call that has a mesh its strategy in all ways that are needed."""

    def __init__(self, space: PlanSpace, depth: int) -> None:
        self.space = space
        graph, reallocated = space.options.graph, space.options.reallocated
        self.call, self.exact = space.strategy_calls[depth], set(space.strategy_calls[:depth])
        done = {*self.exact, self.call}
        self.trainings_known = set(space.trains) <= self.exact
        self.sent = [(r, c) for r, c in enumerate(reallocated) if {c, graph.trained_by[c]} <= self.exact]
        self.not_sent = [r for r in range(len(reallocated)) if r not in {r for r, _ in self.sent}]
        self.newly_sent = [
            (r, c) for r, c in enumerate(reallocated) if {c, graph.trained_by[c]} <= done and (r, c) not in self.sent
        ]

    def extend(self, rows: IntArray, bounds: FloatArray, target_s: float) -> tuple[Extended, int]:
        """Return what may lead to a plan below the target, and the number of partial plans that were bounded."""
        space, options, call = self.space, self.space.options, self.call
        choices = [space.of_option[call][option] for option in rows[:, call].tolist()]
        parent = np.repeat(np.arange(len(rows)), [len(of) for of in choices])
        option = np.concatenate(choices)
        bounded = len(option)
        if self.trainings_known:
            fits = self._fits_with_trainings(rows, parent, option)
            parent, option = parent[fits], option[fits]
            if options.graph.trained_by[call] is None and call not in options.nowhere:
                parent, first = np.unique(parent, return_index=True)
                option = option[first]
        seconds, bits, width = self._tasks(rows, target_s)
        best = best_within(seconds, bits, space.joined(self.not_sent))
        counted = [task for task in range(options.tasks) if task != call and task - space.calls not in self.not_sent]
        area = options.always_gpu_s + (seconds * width)[:, counted].sum(axis=1)
        new: list[tuple[int, FloatArray]] = [(call, options.seconds[call][option])]
        bound_s = np.maximum(self._bounds(best, bits, area, width, parent, new), bounds[parent])
        for number, moved in self.newly_sent:
            alive = bound_s < target_s
            parent, option = parent[alive], option[alive]
            new = [(task, of[alive]) for task, of in new]
            train = options.graph.trained_by[moved]
            assert train is not None, "only trained roles are reallocated"
            one = option if train == call else rows[parent, train]
            other = option if moved == call else rows[parent, moved]
            new.append((space.calls + number, options.reallocation_s(moved, one, other)))
            bound_s = np.maximum(self._bounds(best, bits, area, width, parent, new), bounds[parent])
        alive = bound_s < target_s
        children = Extended(parent, option, bound_s).where(alive)
        if not self.trainings_known:
            fits = space.fits(children.rows(rows, call), set(range(space.calls)), {*self.exact, call})
            return children.where(fits), bounded
        if len(new) > 1 and call not in options.nowhere:
            children = children.where(not_dominated(children.parent, new[1][1][alive]))
        return children, bounded

    def _fits_with_trainings(self, rows: IntArray, parent: IntArray, option: IntArray) -> NDArray[np.bool_]:
        """Return whether a call fits beside what trainings keep on its GPUs; all trainings have a strategy."""
        space, options = self.space, self.space.options
        if space.limit_bytes == math.inf:
            return np.ones(len(option), bool)
        spans = space.extended_spans(rows)
        own = spans[:, self.call]
        kept = np.zeros(len(rows))
        for at in (self.call, *space.trains):
            gpu = spans[:, at, 0]
            keeps = np.zeros(len(rows))
            for train in space.trains:
                there = (spans[:, train, 0] <= gpu) & (gpu < spans[:, train, 1])
                keeps += np.where(there, space.keeps[train][rows[:, train]], 0.0)
            kept = np.where((own[:, 0] <= gpu) & (gpu < own[:, 1]), np.maximum(kept, keeps), kept)
        works = space.works[self.call][option]
        train_of = options.graph.trained_by[self.call]
        if train_of is not None:
            works = works + options.copies(self.call, option, rows[parent, train_of])
        return np.asarray(kept[parent] + works <= space.limit_bytes)

    def _tasks(self, rows: IntArray, target_s: float) -> tuple[FloatArray, IntArray, FloatArray]:
        """Return (P, T) seconds of tasks, bit masks of the tasks that each never runs beside, and numbers of GPUs."""
        space, options = self.space, self.space.options
        seconds = np.zeros((len(rows), options.tasks))
        for call in range(space.calls):
            seconds[:, call] = options.seconds[call][rows[:, call]]
        for number, call in self.sent:
            train = options.graph.trained_by[call]
            assert train is not None, "only trained roles are reallocated"
            seconds[:, space.calls + number] = options.reallocation_s(call, rows[:, train], rows[:, call])
        for number in self.not_sent:
            one = space.least_sent[number]
            fastest = space.fastest_of[one.train][rows[:, one.train]], space.fastest_of[one.call][rows[:, one.call]]
            slower_s = sum(
                seconds[:, at] - options.seconds[at][f] for at, f in zip((one.train, one.call), fastest, strict=True)
            )
            seconds[:, space.calls + number] = np.maximum(0.0, one.more_s(*fastest, target_s) - slower_s)
        meet, width = options.meeting(rows)
        bits = space.apart | np.asarray((meet * (1 << np.arange(options.tasks))).sum(axis=2), np.int64)
        return seconds, bits, np.asarray(width, float)

    def _bounds(
        self,
        best: FloatArray,
        bits: IntArray,
        area: FloatArray,
        width: FloatArray,
        parent: IntArray,
        new: list[tuple[int, FloatArray]],
    ) -> FloatArray:
        """Return bounds of children whose new tasks have these seconds."""
        tasks = bits.shape[1]
        others = (1 << tasks) - 1
        for task, _ in new:
            others &= ~(1 << task)
        row = np.arange(len(bits))
        chain_s = best[row, others][parent]
        total = area[parent]
        for task, seconds in new:
            total = total + seconds * width[parent, task]
        for count in range(1, len(new) + 1):
            for chosen in combinations(new, count):
                common = np.full(len(bits), others)
                together = np.ones(len(bits), bool)
                for task, _ in chosen:
                    common &= bits[:, task]
                    for other, _ in chosen:
                        together &= (task == other) | (bits[:, task] >> other & 1 == 1)
                base = np.where(together, best[row, common], -math.inf)[parent]
                chain_s = np.maximum(chain_s, base + sum(seconds for _, seconds in chosen))
        return np.asarray(np.maximum(chain_s, total / self.space.options.gpus))


def not_dominated(parent: IntArray, sent_s: FloatArray) -> NDArray[np.bool_]:
    """Return which options of a parent take less to send weights to than all faster ones.

    Args:
        parent: (n,) not falling; options of one parent are sorted by their seconds. sent_s: (n,) seconds of the reallocation.
    """
    rank = np.unique(sent_s, return_inverse=True)[1].reshape(-1)
    fallen = rank - parent * (int(rank.max(initial=0)) + 1)  # every parent's ranks are below those of the parent before
    before = np.concatenate([[np.iinfo(np.int64).max], np.minimum.accumulate(fallen)[:-1]])
    return np.asarray(fallen < before)
