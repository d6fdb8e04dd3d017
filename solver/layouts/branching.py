"""Adds a call to partial plans, in all ways that may lead to a period below a target: its mesh first, later its strategy.

**Meshes** (``MeshStep``). A call without a mesh counts with its least seconds in chains, apart from others by the graph alone.
In the sum of GPU-seconds it counts with the least of any option that leaves its heaviest chain below the target. Calls with a
mesh need at least the least bytes of any strategy there.

**Strategies** (``StrategyStep``). Two rules leave out options without loss. Once all trainings have a strategy, it is known
what they keep on every GPU, so other calls fit or do not fit one by one. Of those options of one mesh that fit

- a call of a frozen role needs the fastest only, and
- a call of a trained role needs no option that is slower than another and takes as long or longer to send weights to.

Proof: every schedule stays a schedule if tasks become shorter on the same GPUs. So no order of a plan that is left out is
shorter than the best order of one that is kept, and none is cheaper. Trainings are never left out, as other calls may share
their layout.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np

from solver.layouts.bound import BoolArray, PlanSpace, as_bits, best_within
from solver.layouts.costs import FloatArray, IntArray


class Extended(NamedTuple):
    """Partial plans with one more choice: (C,) rows of their parents, the call's options, bounds on the period."""

    parent: IntArray
    option: IntArray
    bound_s: FloatArray

    def where(self, kept: BoolArray | IntArray) -> Extended:
        """Return some of them, by a mask or by indices."""
        return Extended(self.parent[kept], self.option[kept], self.bound_s[kept])

    def rows(self, parents: IntArray, call: int) -> IntArray:
        """Return (C, K) the partial plans."""
        children = parents[self.parent]
        children[:, call] = self.option
        return children


def steps(space: PlanSpace) -> list[MeshStep | StrategyStep]:
    """Return the 2 K choices that make a plan, in order."""
    return [(MeshStep if depth < space.calls else StrategyStep)(space, depth) for depth in range(2 * space.calls)]


class MeshStep:
    """Gives a call a mesh in all ways, as choice number ``depth``."""

    def __init__(self, space: PlanSpace, depth: int) -> None:
        self.space, self.depth = space, depth
        self.call, self.placed = space.mesh_calls[depth], space.mesh_calls[:depth]
        self.later = space.mesh_calls[depth + 1 :]
        pairs = [(number, {one.train, one.call}) for number, one in enumerate(space.role_seconds)]
        self.sent = [number for number, pair in pairs if pair <= set(self.placed)]
        self.newly_sent = [number for number, pair in pairs if self.call in pair and pair <= {self.call, *self.placed}]

    def extend(self, rows: IntArray, bounds: FloatArray, target_s: float) -> tuple[Extended, int]:
        """Return what may lead to a plan below the target, and the number of partial plans that were bounded.

        Args:
            rows: (P, K) partial plans. bounds: (P,) of them.
        """
        space, options, call = self.space, self.space.options, self.call
        graph = space.apart
        choices = space.fastest[call]
        seconds, span = options.seconds[call][choices], options.spans[call][choices]
        of_tasks = space.seconds(rows, self.depth, target_s)
        spans = space.spans_of(rows)
        shared = as_bits(options.meeting(spans)[0])
        best = best_within(of_tasks, graph | shared, space.joined(self.sent))
        shares_with = np.zeros((len(rows), len(choices)), np.int64)
        for other in self.placed:
            shares = (span[None, :, 0] < spans[:, other, None, 1]) & (spans[:, other, None, 0] < span[None, :, 1])
            tasks = 1 << other
            for number in self.sent:
                if other in (space.role_seconds[number].train, space.role_seconds[number].call):
                    tasks |= 1 << space.calls + number
            shares_with |= np.where(shares, tasks, 0)
        beside = shares_with | graph[call]
        without = ((1 << options.tasks) - 1) & ~(1 << call)
        chain_s = np.maximum(seconds + np.take_along_axis(best, beside & without, axis=1), best[:, without, None])
        width = spans[:, :, 1] - spans[:, :, 0]
        area = (
            options.always_gpu_s
            + (of_tasks[:, : space.calls] * width).sum(axis=1)[:, None]
            + seconds * (span[:, 1] - span[:, 0])
        )
        for other in self.later:
            rest_s = best[:, graph[other] & without, None]
            if graph[other] >> call & 1:
                rest_s = np.maximum(rest_s, seconds + np.take_along_axis(best, beside & graph[other] & without, axis=1))
            allowed = np.searchsorted(space.sorted_s[other], target_s - rest_s, side="right")
            area = area + space.least_area[other][allowed]
        bound_s = np.maximum(np.maximum(chain_s, area / options.gpus), bounds[:, None])
        bounded = bound_s.size
        parent, choice = np.nonzero(bound_s < target_s)
        found = Extended(parent, choices[choice], bound_s[parent, choice])
        shares_with = shares_with[parent, choice]
        for number in self.newly_sent:
            sent_s = self._sent_s(rows, found, (shared, best, shares_with), number, target_s)
            found = found._replace(bound_s=np.maximum(found.bound_s, sent_s))
            alive = found.bound_s < target_s
            found, shares_with = found.where(alive), shares_with[alive]
        return found.where(space.fits(found.rows(rows, call), self.depth + 1)), bounded

    def _sent_s(
        self, rows: IntArray, found: Extended, of_parents: tuple[IntArray, FloatArray, IntArray], number: int, target_s: float
    ) -> FloatArray:
        """Return (C,) chains with the call, the other one of its role, and the reallocation between them."""
        space, options = self.space, self.space.options
        (parent, option, _), (shared, best, shares_with), sent = found, of_parents, space.role_seconds[number]
        call = self.call
        other = sent.train if call == sent.call else sent.call
        other_option = rows[parent, other]
        trained, used = (option, other_option) if call == sent.train else (other_option, option)
        more_s = sent.more_s(trained, used, target_s)
        task = space.calls + number
        own, others = shares_with | space.apart[call], shared[parent, other] | space.apart[other]
        moved = shares_with | shared[parent, other] | space.apart[task]
        common = own & others & moved & ~(1 << call) & ~(1 << other) & ~(1 << task)
        chain_s = more_s + options.seconds[call][option] + options.seconds[other][other_option] + best[parent, common]
        apart = (own >> other | others >> call) & 1 == 1
        return np.where(apart, chain_s, 0.0)


class StrategyStep:
    """Gives a call that has a mesh its strategy in all ways that are needed, as choice number ``depth``."""

    def __init__(self, space: PlanSpace, depth: int) -> None:
        self.space, self.depth, self.call = space, depth, space.strategy_calls[depth - space.calls]
        before, after = space.chosen(depth)[1], space.chosen(depth + 1)[1]
        self.trainings_known = set(space.trains) <= before
        pairs = [(number, {one.train, one.call}) for number, one in enumerate(space.role_seconds)]
        self.not_sent = [number for number, pair in pairs if not pair <= before]
        self.newly_sent = [number for number, pair in pairs if pair <= after and not pair <= before]

    def extend(self, rows: IntArray, bounds: FloatArray, target_s: float) -> tuple[Extended, int]:
        """Return what may lead to a plan below the target, and the number of partial plans that were bounded."""
        space, options, call = self.space, self.space.options, self.call
        choices = [space.by_mesh[call][option] for option in rows[:, call].tolist()]
        parent = np.repeat(np.arange(len(rows)), [len(of) for of in choices])
        option = np.concatenate(choices)
        bounded = len(option)
        if self.trainings_known:
            fits = self._fits_with_trainings(rows, parent, option)
            parent, option = parent[fits], option[fits]
            if options.graph.trained_by[call] is None and call not in options.nowhere:
                parent, first = np.unique(parent, return_index=True)
                option = option[first]
        seconds = space.seconds(rows, self.depth, target_s)
        meet, width = options.meeting(space.spans_of(rows))
        bits = space.apart | as_bits(meet)
        best = best_within(seconds, bits, space.joined(self.not_sent))
        counted = [task for task in range(options.tasks) if task != call and task - space.calls not in self.not_sent]
        area = options.always_gpu_s + (seconds * width)[:, counted].sum(axis=1)
        new: list[tuple[int, FloatArray]] = [(call, options.seconds[call][option])]
        bound_s = np.maximum(self._bounds(best, bits, area, width, parent, new), bounds[parent])
        for number in self.newly_sent:
            alive = bound_s < target_s
            parent, option = parent[alive], option[alive]
            new = [(task, of[alive]) for task, of in new]
            train, moved = space.role_seconds[number].train, space.role_seconds[number].call
            one = option if train == call else rows[parent, train]
            other = option if moved == call else rows[parent, moved]
            new.append((space.calls + number, options.reallocation_s(moved, one, other)))
            bound_s = np.maximum(self._bounds(best, bits, area, width, parent, new), bounds[parent])
        alive = bound_s < target_s
        children = Extended(parent, option, bound_s).where(alive)
        if not self.trainings_known:
            return children.where(space.fits(children.rows(rows, call), self.depth + 1)), bounded
        if len(new) > 1 and call not in options.nowhere:
            children = children.where(not_dominated(children.parent, new[1][1][alive]))
        return children, bounded

    def _fits_with_trainings(self, rows: IntArray, parent: IntArray, option: IntArray) -> BoolArray:
        """Return whether a call fits beside what trainings keep on its GPUs; all trainings have a strategy."""
        space, options = self.space, self.space.options
        if space.limit_bytes == math.inf:
            return np.ones(len(option), bool)
        spans = space.spans_of(rows)
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

    def _bounds(
        self,
        best: FloatArray,
        bits: IntArray,
        area: FloatArray,
        width: IntArray,
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


def not_dominated(parent: IntArray, sent_s: FloatArray) -> BoolArray:
    """Return which options of a parent take less to send weights to than all faster ones.

    Args:
        parent: (n,) not falling; options of one parent are sorted by their seconds. sent_s: (n,) seconds of the reallocation.
    """
    rank = np.unique(sent_s, return_inverse=True)[1].reshape(-1)
    fallen = rank - parent * (int(rank.max(initial=0)) + 1)  # every parent's ranks are below those of the parent before
    before = np.concatenate([[np.iinfo(np.int64).max], np.minimum.accumulate(fallen)[:-1]])
    return np.asarray(fallen < before)
