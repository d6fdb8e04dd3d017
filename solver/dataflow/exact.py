"""Searches all plans for one whose period is shorter than a target, and says which plans were not looked at.

A partial plan is a row of K options: -1 for a call without a mesh, and the fastest option of its mesh for one without a
strategy. First every call gets a mesh, the slowest call first. Then every call gets its strategy: trainings first, then the
other calls of their roles, then calls of frozen roles. Blocks of partial plans are extended depth first.

A partial plan is dropped if its bound (``bound.py``) is not below the target, or if its calls need too many bytes. A call
without a mesh counts with its least seconds in chains, apart from others by the graph alone. In the sum of GPU-seconds it
counts with the least of any option that leaves its heaviest chain below the target. A call without a strategy counts with the
least bytes of its mesh.

Two rules leave out options without loss. With trainings placed, it is known what they keep on every GPU, so other calls fit or
do not fit one by one. Of those that fit on the same mesh

- a call of a frozen role needs the fastest only, and
- a call of a trained role needs no option that is slower than another and takes longer to send weights to, as the training's
  layout is known.

Every schedule stays a schedule if a task becomes shorter on the same GPUs. So no order of a plan that is left out is shorter
than the best order of one that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from solver.dataflow.bound import best_within, never_together_bits
from solver.dataflow.graph import TRAIN
from solver.dataflow.least_sent import LeastSent
from solver.dataflow.options import CallOptions, FloatArray, IntArray

BLOCK = 256  # partial plans that are extended at once
Extended = tuple[IntArray, IntArray, FloatArray]  # parents, options of the call, bounds


class PlanSpace:
    """What is fixed for all partial plans: meshes and their options, in the order in which calls are placed.

    Attributes:
        by_mesh: for every call its meshes' options that fit alone, the fastest first. mesh_calls, strategy_calls: orders.
    """

    def __init__(self, options: CallOptions, limit_bytes: float) -> None:
        self.options, self.limit_bytes = options, limit_bytes
        graph = options.graph
        self.calls = len(graph.calls)
        self.apart = never_together_bits(options)
        self.trains = [call for call in range(self.calls) if graph.calls[call].kind == TRAIN]
        self.keeps = tuple(memory[:, 0] for memory in options.memory)
        self.works = tuple(self._works(call) for call in range(self.calls))
        self.by_mesh = [self._by_mesh(call) for call in range(self.calls)]
        self.fastest = [np.array([of[0] for of in by_mesh.values()], np.int64) for by_mesh in self.by_mesh]
        self.of_option = [{int(of[0]): of for of in by_mesh.values()} for by_mesh in self.by_mesh]
        self.some_plan = all(len(fastest) for fastest in self.fastest)
        if not self.some_plan:
            return
        self.least_s = np.array([seconds[fast].min() for seconds, fast in zip(options.seconds, self.fastest, strict=True)])
        slow_first = sorted(range(self.calls), key=lambda call: -self.least_s[call])
        self.mesh_calls = slow_first
        roles = [train for train in slow_first if train in self.trains]
        of_roles = [call for train in roles for call in (train, *(c for c in slow_first if graph.trained_by[c] == train != c))]
        self.strategy_calls = of_roles + [call for call in slow_first if graph.trained_by[call] is None]
        self.sorted_s, self.least_area = [], []
        for seconds, span, by_mesh in zip(options.seconds, options.spans, self.by_mesh, strict=True):
            fits = np.concatenate(list(by_mesh.values()))
            order = fits[np.argsort(seconds[fits], kind="stable")]
            area = np.minimum.accumulate(seconds[order] * (span[order, 1] - span[order, 0]))
            self.sorted_s.append(seconds[order])
            self.least_area.append(np.concatenate([[math.inf], area]))
        self.fastest_of = [self._fastest_of(call) for call in range(self.calls)]
        self.least_sent = self._least_sent()
        least = [self._least_bytes(call) for call in range(self.calls)]
        self.least_keeps, self.least_works = zip(*least, strict=True)

    def _works(self, call: int) -> FloatArray:
        """Return (n,) bytes while a call runs that it needs in any plan: a copy of weights only if its role is frozen."""
        _, working, copy = self.options.memory[call].T
        return working + copy if self.options.graph.trained_by[call] is None else working

    def _by_mesh(self, call: int) -> dict[tuple[int, int], IntArray]:
        """Return the options of every mesh that fit alone, the fastest first."""
        seconds, span = self.options.seconds[call], self.options.spans[call]
        fits = self.keeps[call] + self.works[call] <= self.limit_bytes
        by_mesh: dict[tuple[int, int], list[int]] = {}
        for option in np.argsort(seconds, kind="stable").tolist():
            if fits[option]:
                by_mesh.setdefault((int(span[option, 0]), int(span[option, 1])), []).append(option)
        return {mesh: np.array(found, np.int64) for mesh, found in by_mesh.items()}

    def _fastest_of(self, call: int) -> IntArray:
        """Return (n,) the fastest option of every option's mesh."""
        fastest = np.full(len(self.options.seconds[call]), -1)
        for found in self.by_mesh[call].values():
            fastest[found] = found[0]
        return fastest

    def _least_sent(self) -> list[LeastSent]:
        """Return the bounds on reallocations, with what every plan needs beside them in one chain."""
        found, (best,) = [], best_within(self.least_s[None], self.apart[None, : self.calls])
        for number, call in enumerate(self.options.reallocated):
            train = self.options.graph.trained_by[call]
            assert train is not None, "only trained roles are reallocated"
            beside = self.apart[call] & self.apart[train] & self.apart[self.calls + number] & ((1 << self.calls) - 1)
            of_mesh = self.of_option[train], self.of_option[call]
            found.append(LeastSent(self.options, call, of_mesh, float(best[beside & ~(1 << call) & ~(1 << train)])))
        return found

    def joined(self, numbers: Collection[int]) -> dict[int, tuple[int, int]]:
        """Return the tasks of so many reallocations with their training and call."""
        sent = ((number, self.least_sent[number]) for number in sorted(numbers))
        return {self.calls + number: (one.train, one.call) for number, one in sent}

    def _least_bytes(self, call: int) -> tuple[FloatArray, FloatArray]:
        """Return (n,) least bytes that any option of an option's mesh keeps, and works with."""
        keeps, works = np.zeros_like(self.keeps[call]), np.zeros_like(self.works[call])
        for found in self.by_mesh[call].values():
            keeps[found], works[found] = self.keeps[call][found].min(), self.works[call][found].min()
        return keeps, works

    def extended_spans(self, rows: IntArray) -> IntArray:
        """Return (P, K, 2) GPUs of calls; (0, 0) without a mesh."""
        found = np.zeros((*rows.shape, 2), np.int64)
        for call in range(self.calls):
            placed = rows[:, call] >= 0
            found[placed, call] = self.options.spans[call][rows[placed, call]]
        return found

    def fits(self, rows: IntArray, placed: set[int], exact: set[int]) -> NDArray[np.bool_]:
        """Return (P,) whether the calls that are placed fit: ``exact`` ones with their options, others with their mesh's least.

        Copies of trained roles' weights count if both layouts are exact.
        """
        if self.limit_bytes == math.inf:
            return np.ones(len(rows), bool)
        options, spans = self.options, self.extended_spans(rows)
        keeps, works = np.zeros(rows.shape), np.zeros(rows.shape)
        for call in placed:
            option, train = rows[:, call], options.graph.trained_by[call]
            keeps[:, call] = (self.keeps if call in exact else self.least_keeps)[call][option]
            works[:, call] = (self.works if call in exact else self.least_works)[call][option]
            if train is not None and {call, train} <= exact:
                works[:, call] += options.copies(call, option, rows[:, train])
        at = spans[:, :, None, 0]  # the most bytes are needed on the first GPU of some call
        there = (spans[:, None, :, 0] <= at) & (at < spans[:, None, :, 1])
        peak = (there * keeps[:, None]).sum(axis=2) + (there * works[:, None]).max(axis=2)
        return np.asarray(peak.max(axis=1) <= self.limit_bytes)


class MeshStep:
    """Gives a call a mesh in all ways."""

    def __init__(self, space: PlanSpace, depth: int) -> None:
        self.space = space
        self.call, self.placed = space.mesh_calls[depth], space.mesh_calls[:depth]
        self.later = space.mesh_calls[depth + 1 :]
        pairs = [(number, {one.train, one.call}) for number, one in enumerate(space.least_sent)]
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
        of_tasks = self._seconds(rows, target_s)
        spans = space.extended_spans(rows)
        meet, _ = options.meeting_on(spans)
        shared = (meet * (1 << np.arange(options.tasks))).sum(axis=2)
        best = best_within(of_tasks, graph | shared, space.joined(self.sent))
        shares_with = np.zeros((len(rows), len(choices)), np.int64)
        for other in self.placed:
            shares = (span[None, :, 0] < spans[:, other, None, 1]) & (spans[:, other, None, 0] < span[None, :, 1])
            tasks = 1 << other
            for number in self.sent:
                if other in (space.least_sent[number].train, space.least_sent[number].call):
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
        found = parent, choices[choice], bound_s[parent, choice]
        for number in self.newly_sent:
            sent_s = self._sent_s(rows, found, (shared, best, shares_with[parent, choice]), number, target_s)
            bound = np.maximum(found[2], sent_s)
            alive = bound < target_s
            parent, choice, found = parent[alive], choice[alive], (found[0][alive], found[1][alive], bound[alive])
        return self._fitting(rows, found), bounded

    def _seconds(self, rows: IntArray, target_s: float) -> FloatArray:
        """Return (P, T) seconds of tasks: of reallocations how much longer they make training and call."""
        space, options = self.space, self.space.options
        seconds = np.zeros((len(rows), options.tasks))
        seconds[:, : space.calls] = space.least_s
        for call in self.placed:
            seconds[:, call] = options.seconds[call][rows[:, call]]
        for number in self.sent:
            one = space.least_sent[number]
            seconds[:, space.calls + number] = one.more_s(rows[:, one.train], rows[:, one.call], target_s)
        return seconds

    def _sent_s(
        self, rows: IntArray, found: Extended, of_parents: tuple[IntArray, FloatArray, IntArray], number: int, target_s: float
    ) -> FloatArray:
        """Return (C,) chains with the call, the other one of its role, and the reallocation between them."""
        space, options = self.space, self.space.options
        (parent, option, _), (shared, best, shares_with), sent = found, of_parents, space.least_sent[number]
        call = self.call
        other = sent.train if call == sent.call else sent.call
        other_option = rows[parent, other]
        pair = (option, other_option) if call == sent.train else (other_option, option)
        more_s = sent.more_s(*pair, target_s)
        task = space.calls + number
        own, others = shares_with | space.apart[call], shared[parent, other] | space.apart[other]
        moved = shares_with | shared[parent, other] | space.apart[task]
        common = own & others & moved & ~(1 << call) & ~(1 << other) & ~(1 << task)
        chain_s = more_s + options.seconds[call][option] + options.seconds[other][other_option] + best[parent, common]
        apart = (own >> other | others >> call) & 1 == 1
        return np.where(apart, chain_s, 0.0)

    def _fitting(self, rows: IntArray, found: Extended) -> Extended:
        children = child_rows(rows, self.call, found)
        fits = self.space.fits(children, {*self.placed, self.call}, set())
        return found[0][fits], found[1][fits], found[2][fits]


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
        parent, option, bound_s = parent[alive], option[alive], bound_s[alive]
        if not self.trainings_known:
            children = child_rows(rows, call, (parent, option, bound_s))
            fits = space.fits(children, set(range(space.calls)), {*self.exact, call})
            parent, option, bound_s = parent[fits], option[fits], bound_s[fits]
        elif len(new) == 2 and len(parent) and call not in options.nowhere:
            needed = not_dominated(parent, new[1][1][alive])
            parent, option, bound_s = parent[needed], option[needed], bound_s[needed]
        return (parent, option, bound_s), bounded

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
        return seconds, space.apart | (meet * (1 << np.arange(options.tasks))).sum(axis=2), width

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
        return np.maximum(chain_s, total / self.space.options.gpus)


def not_dominated(parent: IntArray, sent_s: FloatArray) -> NDArray[np.bool_]:
    """Return which options of a parent take less to send weights to than all faster ones.

    Args:
        parent: (n,) not falling; options of one parent are sorted by their seconds. sent_s: (n,) seconds of the reallocation.
    """
    rank = np.unique(sent_s, return_inverse=True)[1].reshape(-1)
    fallen = rank - parent * (int(rank.max(initial=0)) + 1)  # every parent's ranks are below those of the parent before
    before = np.concatenate([[np.iinfo(np.int64).max], np.minimum.accumulate(fallen)[:-1]])
    return np.asarray(fallen < before)


def child_rows(rows: IntArray, call: int, found: Extended) -> IntArray:
    """Return the partial plans that extend their parents by an option of a call."""
    children = rows[found[0]]
    children[:, call] = found[1]
    return children
