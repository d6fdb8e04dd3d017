"""Lower bounds on the period of a plan's steps, for every order of its tasks, and on the GPU-seconds of a step.

The bound on what an ``Objective`` minimises is its value of both bounds: it never falls where period or cost grows.

**GPU-seconds.** In a steady state every task runs once per period, and no GPU runs two at once. So the period times the number
of GPUs is at least the sum over tasks of GPUs times seconds. That sum is also the least cost of a step.

**Chains.** Take tasks of which no two ever run at the same time, in whatever steps they are. Each runs once per period, so the
period is at least the sum of their seconds. Two tasks never run together if they share a GPU, or if the graph orders them
within a step and the later one before the next step's earlier one. Reallocations are tasks like calls.

**Generate calls that release GPUs early** (``CallOptions.released_early``) count with lower bounds, so both bounds hold for
every generation plan. No GPU is held twice at once, and the call holds its GPUs for at least ``least_gpu_s`` per period: these
are in the sum of GPU-seconds. The call lasts ``least_s`` at least, and other calls may run on its GPUs meanwhile. So sharing a
GPU with it keeps no call apart, and only the graph does. ``CallOptions.bounding`` are relaxed options whose bounds are below.

**Partial plans** (``PlanSpace``), in which calls have no mesh or no strategy yet, count with the least that any option of these
calls takes; ``branching.py`` adds a call to them at a time. A training and another call of its role count together
(``RoleSeconds``), as weights are sent between them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from solver.layouts.costs import CallOptions, FloatArray, IntArray
from solver.layouts.graph import TRAIN

BoolArray = NDArray[np.bool_]


def period_bound_s(options: CallOptions, plans: IntArray) -> FloatArray:
    """Return (P,) lower bounds on the period of each plan, for any order."""
    seconds = options.durations(plans)
    meet, gpus = options.meeting(options.spans_of(plans))
    gpu_s = seconds * gpus
    for call, released in options.released_early.items():
        seconds[:, call], gpu_s[:, call] = released.least_s[plans[:, call]], released.least_gpu_s[plans[:, call]]
        meet[:, call, :] = meet[:, :, call] = False
    bits = never_together_bits(options) | as_bits(meet)
    return np.asarray(np.maximum(gpu_s.sum(axis=1) / options.gpus, best_within(seconds, bits)[:, -1]))


def gpu_s_bound(options: CallOptions, plans: IntArray) -> FloatArray:
    """Return (P,) lower bounds on the GPU-seconds of a step, for any generation plan; exact without generation plans."""
    gpu_s = options.gpu_s(plans)
    for call, released in options.released_early.items():
        gpu_s -= released.release_s[plans[:, call]].sum(axis=1) - released.least_gpu_s[plans[:, call]]
    return gpu_s


def as_bits(masks: BoolArray) -> IntArray:
    """Return (..., T) masks over tasks as whole numbers, one bit per task."""
    return np.asarray((masks * (1 << np.arange(masks.shape[-1]))).sum(axis=-1))


def never_together_bits(options: CallOptions) -> IntArray:
    """Return (T,) ``never_together`` as bit masks."""
    return as_bits(never_together(options))


def never_together(options: CallOptions) -> BoolArray:
    """Return (T, T) whether the graph alone keeps two tasks apart, whatever their steps and GPUs.

    Tasks i and j of one step are ordered, and the later one also ends before the earlier one of the next step starts. By
    induction each then ends before the other starts, whatever their steps.
    """
    same, before, _ = options.task_graph
    count = options.tasks
    precedes = np.zeros((count, count), bool)  # [i, j]: i of a step ends before j of the same step starts
    direct_next = np.zeros((count, count), bool)
    for task in range(count):
        precedes[list(same[task]), task] = True
        direct_next[list(before[task]), task] = True
    for via in range(count):
        precedes |= precedes[:, via, None] & precedes[None, via, :]
    reaches = precedes | np.eye(count, dtype=bool)
    precedes_next = (reaches.astype(int) @ direct_next @ reaches) > 0
    ordered = precedes & precedes_next.T
    return np.asarray(ordered | ordered.T)


def best_within(
    seconds: FloatArray, bits: IntArray, with_both: Mapping[int, tuple[int, int]] = MappingProxyType({})
) -> FloatArray:
    """Return (P, 2^T) the most seconds of tasks that are pairwise apart, among the tasks of every bit mask.

    Args:
        seconds: (P, T). bits: (P, T) bit masks of the tasks that are apart from each; a task's own bit is not read.
        with_both: tasks that count only together with two earlier ones.
    """
    plans, tasks = seconds.shape
    best = np.zeros((plans, 1 << tasks))
    for task in range(tasks):  # masks whose highest task is this one
        lower = 1 << task
        rest, bonus = bits[:, task, None] & np.arange(lower), seconds[:, task, None]
        if task in with_both:
            one, other = with_both[task]
            apart = bits[:, one] >> other & 1 == 1
            bonus = np.where(apart, (seconds[:, [one, other]].sum(axis=1) + seconds[:, task]), -np.inf)[:, None]
            bonus = bonus + np.where(rest >> one & rest >> other & 1, 0.0, -np.inf)
            rest = rest & (bits[:, one] & bits[:, other] & ~(1 << one) & ~(1 << other))[:, None]
        with_it = bonus + np.take_along_axis(best, rest, axis=1)
        best[:, lower : 2 * lower] = np.maximum(best[:, :lower], with_it)
    return best


class PlanSpace:
    """What is fixed for all partial plans: options by mesh, the order of calls, least seconds, bytes and GPU-seconds.

    A partial plan is a row of K options: -1 for a call without a mesh, and the fastest option of its mesh for one without a
    strategy. It has made the first ``depth`` of 2 K choices. First every call gets a mesh, the slowest call first. Then every
    call gets its strategy, role by role: a role's training, then its other calls. Calls of frozen roles come last.

    Args:
        options: that are not ``released_early``, so the ``bounding`` ones. limit_bytes: that a GPU has.

    Attributes:
        possible: whether every call has an option that fits alone; without one, nothing below is there.
        mesh_calls, strategy_calls: calls in the order in which they get a mesh, and a strategy.
        by_mesh: for every call the options of each mesh that fit alone, the fastest first, by the fastest one.
        fastest: for every call (m,) the fastest option of each mesh. fastest_of: (n,) that of every option's mesh.
        keeps, works: for every call the (n,) bytes that options keep, and work with in any plan.
    """

    def __init__(self, options: CallOptions, limit_bytes: float) -> None:
        self.options, self.limit_bytes = options, limit_bytes
        graph, self.calls = options.graph, len(options.graph.calls)
        self.apart = never_together_bits(options)
        self.trains = [call for call in range(self.calls) if graph.calls[call].kind == TRAIN]
        self.keeps = tuple(memory[:, 0] for memory in options.memory)
        self.works = tuple(  # a copy of the weights only if the role is frozen
            memory[:, 1] + memory[:, 2] if graph.trained_by[call] is None else memory[:, 1]
            for call, memory in enumerate(options.memory)
        )
        self.by_mesh = [self._by_mesh(call) for call in range(self.calls)]
        self.possible = all(self.by_mesh)
        if not self.possible:
            return
        self.fastest = [np.array(list(by_mesh), np.int64) for by_mesh in self.by_mesh]
        self.least_s = np.array([seconds[fast].min() for seconds, fast in zip(options.seconds, self.fastest, strict=True)])
        self.mesh_calls = sorted(range(self.calls), key=lambda call: -self.least_s[call])
        self.strategy_calls = self._role_by_role()
        self.sorted_s, self.least_area = [], []  # seconds in rising order; least GPU-seconds among the so many fastest
        for seconds, span, by_mesh in zip(options.seconds, options.spans, self.by_mesh, strict=True):
            fits = np.concatenate(list(by_mesh.values()))
            order = fits[np.argsort(seconds[fits], kind="stable")]
            area = np.minimum.accumulate(seconds[order] * (span[order, 1] - span[order, 0]))
            self.sorted_s.append(seconds[order])
            self.least_area.append(np.concatenate([[math.inf], area]))
        self.fastest_of = [np.full(len(seconds), -1) for seconds in options.seconds]
        for fastest_of, by_mesh in zip(self.fastest_of, self.by_mesh, strict=True):
            for fastest, own in by_mesh.items():
                fastest_of[own] = fastest
        self.role_seconds = self._role_seconds()
        self.least_keeps = [self._least_on_mesh(call, keeps) for call, keeps in enumerate(self.keeps)]
        self.least_works = [self._least_on_mesh(call, works) for call, works in enumerate(self.works)]

    @cached_property
    def gpu_seconds(self) -> LeastGpuSeconds:
        """Bounds on GPU-seconds, which only objectives that count cost ask for."""
        return LeastGpuSeconds(self)

    def chosen(self, depth: int) -> tuple[set[int], set[int]]:
        """Return the calls that have a mesh, and those that have a strategy, after ``depth`` choices."""
        return set(self.mesh_calls[:depth]), set(self.strategy_calls[: max(0, depth - self.calls)])

    def seconds(self, rows: IntArray, depth: int, target_s: float) -> FloatArray:
        """Return (P, T) seconds of the tasks of partial plans at least.

        Calls without a mesh have their least seconds. A reallocation counts exactly between two strategies, and between two
        meshes with what ``RoleSeconds`` knows of it; otherwise with nothing.
        """
        placed, exact = self.chosen(depth)
        seconds = np.zeros((len(rows), self.options.tasks))
        seconds[:, : self.calls] = self.least_s
        for call in placed:
            seconds[:, call] = self.options.seconds[call][rows[:, call]]
        for number, role in enumerate(self.role_seconds):
            if {role.train, role.call} <= exact:
                sent_s = self.options.reallocation_s(role.call, rows[:, role.train], rows[:, role.call])
            elif {role.train, role.call} <= placed:
                fastest = self.fastest_of[role.train][rows[:, role.train]], self.fastest_of[role.call][rows[:, role.call]]
                slower_s = sum(
                    seconds[:, call] - self.options.seconds[call][option]
                    for call, option in zip((role.train, role.call), fastest, strict=True)
                )
                sent_s = np.maximum(0.0, role.more_s(*fastest, target_s) - slower_s)
            else:
                continue
            seconds[:, self.calls + number] = sent_s
        return seconds

    def joined(self, numbers: Collection[int]) -> dict[int, tuple[int, int]]:
        """Return the tasks of these reallocations with their training and call."""
        sent = ((number, self.role_seconds[number]) for number in sorted(numbers))
        return {self.calls + number: (one.train, one.call) for number, one in sent}

    def spans_of(self, rows: IntArray) -> IntArray:
        """Return (P, K, 2) GPUs of the calls of partial plans; (0, 0) without a mesh."""
        found = np.zeros((*rows.shape, 2), np.int64)
        for call in range(self.calls):
            placed = rows[:, call] >= 0
            found[placed, call] = self.options.spans[call][rows[placed, call]]
        return found

    def fits(self, rows: IntArray, depth: int) -> BoolArray:
        """Return (P,) whether the calls with a mesh fit: with their strategies' bytes, or the least of any strategy there.

        Copies of trained roles' weights count if both layouts are chosen.
        """
        if self.limit_bytes == math.inf:
            return np.ones(len(rows), bool)
        (placed, exact), options, spans = self.chosen(depth), self.options, self.spans_of(rows)
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

    def _by_mesh(self, call: int) -> dict[int, IntArray]:
        seconds, span = self.options.seconds[call], self.options.spans[call]
        fits = self.keeps[call] + self.works[call] <= self.limit_bytes
        by_mesh: dict[tuple[int, int], list[int]] = {}
        for option in np.argsort(seconds, kind="stable").tolist():
            if fits[option]:
                by_mesh.setdefault((int(span[option, 0]), int(span[option, 1])), []).append(option)
        return {own[0]: np.array(own, np.int64) for own in by_mesh.values()}

    def _role_by_role(self) -> list[int]:
        trained_by, slow_first = self.options.graph.trained_by, self.mesh_calls
        of_roles = [
            call
            for train in slow_first
            if train in self.trains
            for call in (train, *(c for c in slow_first if trained_by[c] == train != c))
        ]
        return of_roles + [call for call in slow_first if trained_by[call] is None]

    def _least_on_mesh(self, call: int, of_options: FloatArray) -> FloatArray:
        """Return (n,) the least of all options on the mesh of every option; 0 for those that do not fit."""
        found = np.zeros(len(of_options))
        for own in self.by_mesh[call].values():
            found[own] = of_options[own].min()
        return found

    def _role_seconds(self) -> list[RoleSeconds]:
        """Return the bounds for each reallocation, with what every plan needs beside the role in one chain."""
        found, (best,) = [], best_within(self.least_s[None], self.apart[None, : self.calls])
        for number, call in enumerate(self.options.reallocated):
            train = self.options.graph.training_of(call)
            beside = self.apart[call] & self.apart[train] & self.apart[self.calls + number] & ((1 << self.calls) - 1)
            of_mesh = self.by_mesh[train], self.by_mesh[call]
            found.append(RoleSeconds(self.options, call, of_mesh, float(best[beside & ~(1 << call) & ~(1 << train)])))
        return found


class RoleSeconds:
    """How much longer than with their fastest strategies a training and another call of its role take on two meshes.

    The fastest strategies of two meshes are often far apart, so weights that are sent between them take long, and equal layouts
    are slow. The least of all pairs of strategies, with the reallocation between them, is a bound for all partial plans with
    these meshes.

    Args:
        call: of a trained role. of_mesh: for training and call, the options of a mesh by its fastest one, the fastest first.
        rest_s: seconds that every plan needs beside these three tasks in one chain.
    """

    def __init__(
        self, options: CallOptions, call: int, of_mesh: tuple[dict[int, IntArray], dict[int, IntArray]], rest_s: float
    ) -> None:
        self.options, self.call, self.of_mesh, self.rest_s = options, call, of_mesh, rest_s
        self.train = options.graph.training_of(call)
        sizes = len(options.layouts[self.train]), len(options.layouts[call])
        self.known_s = np.full(sizes, np.nan)  # by the fastest options of both meshes
        self.exact = np.zeros(sizes, bool)
        self.target_s = 0.0

    def more_s(self, trained: IntArray, option: IntArray, target_s: float) -> FloatArray:
        """Return (P,) seconds that the three take longer than the fastest options ``trained`` and ``option`` of two meshes.

        Pairs with which the chain is not below the target are not looked at; the seconds that reach it are a bound, too.
        """
        if target_s == math.inf:
            return np.zeros(len(option))
        if target_s > self.target_s:
            self.known_s[~self.exact] = np.nan
        self.target_s = target_s
        found = self.known_s[trained, option]
        asked = np.flatnonzero(np.isnan(found))
        if len(asked):
            for one, other in set(zip(trained[asked].tolist(), option[asked].tolist(), strict=True)):
                self._try_strategies(one, other)
            found = self.known_s[trained, option]
        return np.asarray(found)

    def _try_strategies(self, trained: int, option: int) -> None:
        """Try the pairs of strategies of two meshes, the fastest first, until none can be the least any more."""
        options, call = self.options, self.call
        ones, others = self.of_mesh[0][trained], self.of_mesh[1][option]
        both_s = options.seconds[self.train][ones][:, None] + options.seconds[call][others]
        most_s, least_s = self.target_s - self.rest_s, np.inf
        for at in np.argsort(both_s, axis=None, kind="stable").tolist():
            one, other = divmod(at, len(others))
            if both_s[one, other] >= min(least_s, most_s):
                break
            sent_s = options.reallocation_s(call, ones[one : one + 1], others[other : other + 1])[0]
            least_s = min(least_s, both_s[one, other] + sent_s)
        self.exact[trained, option] = least_s <= most_s
        self.known_s[trained, option] = max(0.0, min(least_s, most_s) - both_s[0, 0])


class LeastGpuSeconds:
    """Least GPU-seconds for which the calls and reallocations of partial plans hold their GPUs.

    A call counts GPUs times seconds: of the chosen option, of the fastest strategy where only the mesh is chosen (on one mesh
    the fastest is the cheapest), and of the cheapest option where nothing is. A reallocation counts exactly where both layouts
    are chosen. Where both meshes are, what ``RoleSeconds`` knows of it counts on the smaller mesh. A role counts no less than
    in the cheapest combination of its training with each of its other calls that fits beside it, with the weights that are
    sent.

    Attributes:
        of_any: GPU-seconds of every plan at least. cheapest: (K,) the cheapest option of every call.
    """

    def __init__(self, space: PlanSpace) -> None:
        self.space, options = space, space.options
        self.width = [spans[:, 1] - spans[:, 0] for spans in options.spans]
        self.area = [seconds * width for seconds, width in zip(options.seconds, self.width, strict=True)]
        fits = [np.concatenate(list(by_mesh.values())) for by_mesh in space.by_mesh]
        self.by_area = [own[np.argsort(area[own], kind="stable")] for area, own in zip(self.area, fits, strict=True)]
        self.cheapest = np.array([own[0] for own in self.by_area])
        self.least_area = [float(area[own]) for area, own in zip(self.area, self.cheapest, strict=True)]
        trained_by = options.graph.trained_by
        self.frozen = [call for call, train in enumerate(trained_by) if train is None]
        self.others = {train: [c for c, by in enumerate(trained_by) if by == train != c] for train in space.trains}
        self.of_role = {train: self._of_role(train) for train in space.trains}
        self.of_any = options.always_gpu_s + sum(self.least_area[call] for call in self.frozen) + sum(self.of_role.values())

    def of(self, rows: IntArray, depth: int, target_s: float) -> FloatArray:
        """Return (P,) least GPU-seconds of plans with the first ``depth`` choices whose period is below ``target_s``."""
        space, (placed, exact) = self.space, self.space.chosen(depth)
        seconds = space.seconds(rows, depth, target_s)
        of_calls = [
            area[rows[:, call]] if call in placed else np.full(len(rows), least)
            for call, (area, least) in enumerate(zip(self.area, self.least_area, strict=True))
        ]
        total = np.full(len(rows), space.options.always_gpu_s)
        for call in self.frozen:
            total += of_calls[call]
        for train, others in self.others.items():
            role = sum((of_calls[call] for call in others), of_calls[train])
            for number, call in enumerate(space.options.reallocated):
                if call in others and {train, call} <= placed:
                    gpus = self._together if {train, call} <= exact else self._either
                    role = role + seconds[:, space.calls + number] * gpus(train, rows[:, train], call, rows[:, call])
            total += np.maximum(role, self.of_role[train])
        return total

    def _either(self, train: int, one: IntArray, call: int, other: IntArray) -> IntArray:
        """Return (P,) GPUs of the smaller of an option of a training and an option of a call."""
        return np.asarray(np.minimum(self.width[train][one], self.width[call][other]))

    def _together(self, train: int, one: IntArray, call: int, other: IntArray) -> IntArray:
        """Return (P,) GPUs of an option of a training and an option of a call together."""
        own, theirs = self.space.options.spans[train][one], self.space.options.spans[call][other]
        common = np.minimum(own[:, 1], theirs[:, 1]) - np.maximum(own[:, 0], theirs[:, 0])
        return np.asarray(self.width[train][one] + self.width[call][other] - np.maximum(common, 0))

    def _of_role(self, train: int) -> float:
        """Return the least GPU-seconds of a role's calls and of what is sent to them; infinite if they never fit."""
        others = self.others[train]
        rest = sum(self.least_area[call] for call in others)
        least = math.inf
        for one in self.by_area[train].tolist():
            total = float(self.area[train][one])
            if total + rest >= least:
                break
            total += sum(self._of_call(train, one, call) for call in others)
            least = min(least, total)
        return least

    def _of_call(self, train: int, one: int, call: int) -> float:
        """Return the least GPU-seconds of a call beside option ``one`` of its role's training, with what is sent to it."""
        space, options, least = self.space, self.space.options, math.inf
        own, trained = self.by_area[call], np.array([one])
        spans = options.spans
        apart = (spans[call][own, 0] >= spans[train][one, 1]) | (spans[call][own, 1] <= spans[train][one, 0])
        needed = space.keeps[train][one] + space.works[call][own] + options.copies(call, own, np.full(len(own), one))
        for other in own[apart | (needed <= space.limit_bytes)].tolist():
            area = float(self.area[call][other])
            if area >= least:
                break
            sent_s = options.reallocation_s(call, trained, np.array([other]))
            least = min(least, area + float((sent_s * self._together(train, trained, call, np.array([other])))[0]))
        return least
