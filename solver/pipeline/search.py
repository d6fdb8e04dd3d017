"""Searches for schedules: by rules that are changed step by step, and by changes of the orders themselves.

A list schedule by a rule is good at once: "longest tail first" backwards in time builds the end of the schedule first, where
devices would idle. ``find_fastest`` starts from that rule and two others and changes them; the search stops at the bound. Where
the bound grows evenly with the micro-batches, rules are tried on a problem with fewer of them, which takes less time.

``RuleSearch`` and ``OrderSearch`` look for a schedule within a latency and a memory capacity, which is hard: no pass and no
change exceeds it, so what is searched is the latency. Rules are annealed first. The orders of the best one, which nearly are in
time, are annealed then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from solver.pipeline.bounds import latency_bound
from solver.pipeline.kernels import PLAIN, Kernels, kernels_for, lateness
from solver.pipeline.listing import (
    MEMORY_SLACK,
    NEVER,
    ListScheduler,
    Orders,
    Rule,
    evaluate_orders,
    limits,
    longest_tail_first,
)
from solver.pipeline.problem import FORWARD, INPUTS, Operations, PipelineProblem

PASS_S = 6e-5  # of a list-scheduling pass, whatever its size: changing the rule

NEIGHBOURS = 3  # stages that change together with one
PRIORITY_SHARE = 0.2  # standard deviation of changes of a priority, as a share of the longest tail
RESTART = 30  # passes without gain after which the search goes back to a first rule

FAMILY, PASSES = 200, 6_000  # random first rules, and passes of annealing, per direction of time
LARGE, LARGE_FAMILY = 1_100, 400  # operations above which first rules are more, and may delay what releases memory
RULES_HOT, RULES_COLD = 3.0, 0.2  # temperatures at first and last, in quarters of the shortest operation
MOST_IN_FLIGHT = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5)  # per stage that follows

HOT, COLD = 0.9, 0.06  # temperatures at first and last, in mean durations of a type
ATTEMPTS = 4  # of the work for an earlier end


def pass_s(operations: int, kernels: Kernels = PLAIN) -> float:
    """Return the counted seconds of a list-scheduling pass over so many operations."""
    return PASS_S + operations * kernels.operation_s


class Work:
    """Counts the work of a search in seconds on the reference machine, so that no clock decides its end."""

    def __init__(self, most_s: float) -> None:
        self.most_s, self.spent_s = most_s, 0.0

    @property
    def left_s(self) -> float:
        """Return the seconds that are left; below 0 where the last pass took more."""
        return self.most_s - self.spent_s

    @property
    def over(self) -> bool:
        """Return whether nothing is left."""
        return self.spent_s >= self.most_s


class RuleChanges:
    """Random changes of a rule: one or two types, and up to three neighbouring stages, get another number.

    Without limits that is a delay of at most the shortest operation, more or less, or a priority. With limits delays change by
    quarters of it and stay above 0, and in-flight limits change as well.

    Args:
        limited: (I,) types whose in-flight limits count; None changes none.
    """

    def __init__(self, ops: Operations, limited: Sequence[bool] | None = None) -> None:
        shortest = min(ops.duration)
        self._limited = limited if limited is not None else [False] * len(ops)
        self._delays, self._priorities = (0.5, 1.0) if limited is None else (0.4, 0.65)  # shares of changes, summed
        self._steps, self._unit = (shortest, 1) if limited is None else (3, max(1, shortest // 4))
        self._least_delay = -NEVER if limited is None else 0
        self._spread = PRIORITY_SHARE * max(ops.tails) + 1.0
        number = {op: i for i, op in enumerate(ops.types)}
        keys = [[op._replace(stage=op.stage + step) for step in range(NEIGHBOURS + 1)] for op in ops.types]
        self._neighbours = [[number[key] for key in of_type if key in number] for of_type in keys]

    def changed(self, rule: Rule, rng: np.random.Generator) -> Rule:
        """Return the rule with one or two changes."""
        changed = rule.copy()
        for _ in range(int(rng.integers(1, 3))):
            types = self._neighbours[int(rng.integers(len(self._neighbours)))]
            types = types[: 1 + int(rng.integers(len(types)))]
            drawn = rng.random()
            if drawn < self._delays:
                step = int(rng.integers(-self._steps, self._steps + 1)) * self._unit
                for i in types:
                    changed.delay[i] = max(self._least_delay, changed.delay[i] + step)
            elif drawn < self._priorities or not self._limited[types[0]]:
                shift = float(rng.normal(0.0, self._spread))
                for i in types:
                    changed.priority[i] += shift
            else:
                step = 1 if rng.random() < 0.5 else -1
                for i in types:
                    changed.in_flight[i] = max(1, changed.in_flight[i] + step)
        return changed


class FirstRule(NamedTuple):
    """A first rule, the direction of time that it is for, and the latency that it leads to."""

    latency: int
    backward: bool
    rule: Rule


class Fastest:
    """The fastest schedule of a problem so far, by rules in both directions of time.

    Attributes:
        goal: a latency at which the search stops. latency, orders: None and empty if memory has left every pass stuck.
    """

    def __init__(self, ops: Operations, work: Work, goal: int) -> None:
        self.goal, self._operations, self._work = goal, ops.total, work
        self.schedulers = {backward: ListScheduler(ops, backward) for backward in (True, False)}
        self.latency: int | None = None
        self.orders: Orders = []

    def attempt(self, backward: bool, rule: Rule, latest: int = NEVER) -> int | None:
        """Return the latency of a rule, None if it is later than ``latest`` or stuck; keep what is faster than before."""
        self._work.spent_s += pass_s(self._operations)
        latency = self.schedulers[backward].schedule(rule, latest)
        if latency is not None and (self.latency is None or latency < self.latency):
            self.latency, self.orders = latency, self.schedulers[backward].orders()
        return latency

    @property
    def done(self) -> bool:
        """Return whether the goal is reached."""
        return self.latency is not None and self.latency <= self.goal


def find_fastest(problem: PipelineProblem, work: Work, seed: int, goal: int) -> Fastest:
    """Return the fastest schedule that the work finds; the search stops at a latency of ``goal``."""
    ops = Operations.of(problem)
    full, starts = Fastest(ops, work, goal), []
    for backward in (True, False):
        for rule in first_rules(full.schedulers[backward].ops):
            latency = full.attempt(backward, rule)
            if full.done:
                return full
            starts.append(FirstRule(NEVER if latency is None else latency, backward, rule))
    starts.sort(key=lambda start: start.latency)
    fewer, tried = smaller(problem), full
    if fewer != problem:
        small = Operations.of(fewer)
        tried = Fastest(small, work, latency_bound(small))
    _climb(full, tried, starts, work, np.random.default_rng(seed))
    return full


def _climb(full: Fastest, tried: Fastest, starts: list[FirstRule], work: Work, rng: np.random.Generator) -> None:
    """Change rules until the goal is reached or the work is done.

    A change stays if the latency is not longer. Where ``tried`` is a smaller problem, rules that are good on it are tried on
    ``full``.
    """
    changes, restarts = RuleChanges(full.schedulers[True].ops), 0
    while True:
        start = starts[0 if restarts % 2 == 0 else 1 + restarts // 2 % (len(starts) - 1)]  # the best one every other time
        rule, kept, since = start.rule, (start.latency if tried is full else NEVER), 0
        restarts += 1
        while since <= RESTART:
            if work.over:
                return
            changed = changes.changed(rule, rng)
            since += 1
            least = NEVER if tried.latency is None else tried.latency
            latency = tried.attempt(start.backward, changed, kept)
            if tried is not full and latency is not None and (latency < least or latency == tried.goal):
                full.attempt(start.backward, changed)
            if full.done:
                return
            if latency is not None and latency <= kept:
                since = since if latency == kept else 0
                rule, kept = changed, latency


def first_rules(ops: Operations) -> list[Rule]:
    """Return "longest tail first", then releases of memory first, and input gradients first where backward is split."""
    tail_first = longest_tail_first(ops)
    backward = ops.types[ops.topological[0]].kind != FORWARD  # then forward passes come last and release memory
    releasing = [(op.kind == FORWARD) == backward for op in ops.types]
    releases_first = _preferred(tail_first, max(ops.tails) / 3, releasing)
    inputs = [op.kind == INPUTS for op in ops.types]
    return [tail_first, releases_first] + ([_preferred(tail_first, float(max(ops.tails)), inputs)] if any(inputs) else [])


def _preferred(rule: Rule, ahead: float, types: Sequence[bool]) -> Rule:
    """Return the rule with some types ahead of the others."""
    changed = rule.copy()
    changed.priority = [priority - ahead * preferred for priority, preferred in zip(rule.priority, types, strict=True)]
    return changed


def smaller(problem: PipelineProblem) -> PipelineProblem:
    """Return the problem with fewer micro-batches, where the same device still decides the latency bound.

    From some share of the micro-batches on, each further one adds exactly its work on that device to the bound. Near that share
    schedules at the bound are rare, so it is taken half as large again.
    """
    ops = Operations.of(problem)
    bound = latency_bound(ops)
    most = max(sum(ops.duration[i] * ops.count[i] for i in types) for types in ops.on_device)
    parts = math.gcd(*(chain.micro_batches for chain in problem.chains))

    def decides(part: int) -> bool:
        share = Fraction(part, parts)
        return bound - latency_bound(Operations.of(problem.with_micro_batches(share))) == most * (1 - share)

    low, high = 1, parts  # the bound is convex in the share, so it is exact from some share on
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle + 1, high)
    return problem.with_micro_batches(Fraction(min(parts, -(-3 * high // 2)), parts))


class RuleSearch:
    """Searches rules with in-flight limits for one direction of time under a capacity.

    Args:
        capacity: memory of every device. latency: latest end.
    """

    def __init__(self, ops: Operations, backward: bool, capacity: float, latency: int, kernels: Kernels) -> None:
        self._scheduler = ListScheduler(ops, backward, limits(ops, capacity), kernels)
        self.ops, self.latency, self._pass_s = self._scheduler.ops, latency, pass_s(ops.total, kernels)
        self._least_tail = [min((self.ops.tails[i] for i in types), default=0) for types in ops.on_device]
        self._changes = RuleChanges(self.ops, [(op.kind == FORWARD) != backward for op in ops.types])  # which open a stage
        self._unit = max(1, min(ops.duration) // 4)

    def search(self, work: Work, rng: np.random.Generator, passes: int = PASSES) -> tuple[float, Orders] | None:
        """Return the least energy and its orders, 0 where the latency is kept; None if every pass got stuck."""
        first: tuple[float, Rule] | None = None
        best: tuple[float, Orders] | None = None
        for _ in range(min(LARGE_FAMILY if self.ops.total > LARGE else FAMILY, passes // 4 + 1)):
            if work.over:
                return best
            rule = self._random_rule(rng)
            energy = self._energy(rule, math.inf, work)
            if energy is not None and (first is None or energy < first[0]):
                first, best = (energy, rule), (energy, self._scheduler.orders())
                if energy == 0:
                    return best
        if first is None or best is None:
            return None
        kept, rule = first
        for number in range(passes):
            if work.over:
                return best
            hot = self._unit * RULES_HOT * (RULES_COLD / RULES_HOT) ** (number / passes)
            most = kept - hot * math.log(1.0 - rng.random())
            changed = self._changes.changed(rule, rng)
            energy = self._energy(changed, most, work)
            if energy is not None and energy <= most:
                kept, rule = energy, changed
                if energy < best[0]:
                    best = energy, self._scheduler.orders()
                    if energy == 0:
                        return best
        return best

    def _energy(self, rule: Rule, most: float, work: Work) -> float | None:
        """Return how late the devices end; None if a pass is stuck, or above ``most``."""
        latest = NEVER if math.isinf(most) else self.latency + int(most)
        latency = self._scheduler.schedule(rule, latest)
        work.spent_s += self._pass_s
        if latency is None:
            return None
        if latency <= self.latency:
            return 0.0
        return lateness(self._scheduler.device_ends(), self._least_tail, self.latency)

    def _random_rule(self, rng: np.random.Generator) -> Rule:
        """Return in-flight limits that fall with the stage, priorities, and one delay for what takes or releases memory."""
        ops = self.ops
        stages: dict[int, int] = {}
        for op in ops.types:
            stages[op.chain] = max(stages.get(op.chain, 0), op.stage + 1)
        share = {chain: float(rng.choice(MOST_IN_FLIGHT)) for chain in (0, 1)}
        more = {chain: int(rng.integers(4)) for chain in (0, 1)}
        kind = [min(op.chain, 1) for op in ops.types]  # the first chain, and all others
        limit = [
            max(1, round(share[c] * (stages[op.chain] - op.stage) + more[c])) for c, op in zip(kind, ops.types, strict=True)
        ]
        takes = [bool(taken) for taken in ops.taken]
        delay = int(rng.integers(4)) * self._unit
        rule = longest_tail_first(ops)
        waits = ops.total <= LARGE or rng.random() < 0.5
        rule.delay, rule.in_flight = [delay * (taking == waits) for taking in takes], limit
        longest = float(max(ops.tails))
        ahead: list[Callable[[int], float]] = [
            lambda i: 0.0,
            lambda i: longest * 10 * takes[i],
            lambda i: longest / 3 * takes[i],
            lambda i: longest * 10 * kind[i],
            lambda i: longest * 10 * (1 - kind[i]),
            lambda i: longest * (takes[i] + ops.types[i].chain / 10) + ops.tails[i],
        ]
        chosen = ahead[int(rng.integers(len(ahead)))]
        rule.priority = [priority + chosen(i) for i, priority in enumerate(rule.priority)]
        return rule


def orders_within(
    ops: Operations, capacity: float, latency: int, work: Work, seed: int, passes: int, kernels: Kernels, near: float = 0.0
) -> tuple[float, Orders] | None:
    """Return the least late orders by rules under a capacity, with how late they are: 0 within the latency; None if all got
    stuck.

    Args:
        passes: of annealing, per direction of time.
        near: how late orders may be that end the search; backwards in time is searched first.
    """
    best: tuple[float, Orders] | None = None
    for backward in (True, False):
        searched = RuleSearch(ops, backward, capacity, latency, kernels)
        found = searched.search(work, np.random.default_rng([seed, backward]), passes)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
            if best[0] <= near:
                break
    return best


class OrderSearch:
    """Anneals orders of one problem under a capacity.

    Args:
        capacity: memory of each device. latency: latest end.
        kernels: the inner loops; the changes are the same, compiled about 60 times faster.
    """

    def __init__(self, ops: Operations, capacity: Sequence[float], latency: int, kernels: Kernels) -> None:
        self._ops, self._kernels, self._latency = ops, kernels, latency
        self._offset = [0, *itertools.accumulate(ops.count)]
        kind = [i for i, count in enumerate(ops.count) for _ in range(count)]
        on_device = [sum(ops.count[i] for i in types) for types in ops.on_device]
        self._first = [0, *itertools.accumulate(on_device)]
        hops = [ops.hop(before[0], i) if before else 0 for i, before in enumerate(ops.before)]
        self._least_tail = [min((ops.tails[i] for i in types), default=0) for types in ops.on_device]
        self._shape = (
            [ops.duration[i] for i in kind], [ops.device[i] for i in kind], self._linked(ops.before, 0),
            [hops[i] for i in kind], self._linked(ops.after, 0), self._linked(ops.after, 1), self._first, self._least_tail,
            [latency],
        )  # fmt: skip
        self._memory = (
            kind, [ops.taken[i] for i in kind], [ops.released[i] for i in kind],
            [most + MEMORY_SLACK for most in capacity],
        )  # fmt: skip

    def search(self, orders: Orders, work: Work, most_s: float, seed: int) -> tuple[float, Orders]:
        """Return the least energy, 0 where the latency is kept, and its orders.

        Args:
            orders: to start from, within the capacity. most_s: seconds of the work that this may take.
        """
        timed_s = self._kernels.timed_s
        most_timed = int(max(0.0, min(most_s, work.left_s)) / timed_s) + 1
        sequence = [*self._numbered(orders), -1]
        ends = [0] * self._ops.total
        place = [0] * self._ops.total
        starts = itertools.chain(*evaluate_orders(self._ops, orders).starts)
        worked, held = [0], [0.0]
        kind, taken, released, _ = self._memory
        for p, (x, start) in enumerate(zip(sequence[:-1], starts, strict=True)):
            place[x], ends[x] = p, start + self._shape[0][x]
            worked.append(worked[-1] + self._shape[0][x])
            held.append(held[-1] + taken[x] - released[x])
        devices = len(self._first) - 1
        last = [ends[sequence[high - 1]] if high > low else 0 for low, high in itertools.pairwise(self._first)]
        energy = lateness(last, self._least_tail, self._latency)
        scratch = ([0] * devices, [0] * devices, [0] * devices, ends[:], [0] * (len(ends) + devices), ends[:], [0])
        mean = sum(self._ops.duration) / len(self._ops)
        hot = min(HOT * mean, max(energy / 2, 4 * COLD * mean))  # colder from orders that are late by little
        shape, memory, state, scratch, best, stream = self._kernels.arrays(
            (self._shape, self._memory, (sequence, place, ends, worked, held), scratch, sequence[:], [seed % 99_991 + 1])
        )
        energy = self._kernels.anneal(shape, memory, state, scratch, best, (stream, most_timed, hot, COLD * mean, energy))
        work.spent_s += int(scratch[6][0]) * timed_s
        return float(energy), [[int(kind[x]) for x in best[low:high]] for low, high in itertools.pairwise(self._first)]

    def _linked(self, neighbours: Sequence[Sequence[int]], n: int) -> list[int]:
        """Return the n-th neighbour of each operation, with the same micro-batch; -1 where there is none."""
        found = []
        for i, count in enumerate(self._ops.count):
            offset = self._offset[neighbours[i][n]] if len(neighbours[i]) > n else None
            found += [-1 if offset is None else offset + k for k in range(count)]
        return found

    def _numbered(self, orders: Orders) -> list[int]:
        """Return operations in order, device after device, by number: the offset of their type and the micro-batch."""
        done = self._offset[:-1]
        found = []
        for i in itertools.chain(*orders):
            found.append(done[i])
            done[i] += 1
        return found


def earlier(ops: Operations, orders: Orders, goal: int, work: Work, seed: int) -> Orders:
    """Return orders that end earlier where changes of orders find some, within the memory of ``ops``; ``goal`` ends the search.

    Every attempt starts from the best orders so far.
    """
    latency, left_s = evaluate_orders(ops, orders).latency, work.left_s
    if latency <= goal or left_s <= 0:
        return orders
    search = OrderSearch(ops, limits(ops), goal, kernels_for(left_s))
    while latency > goal and not work.over:
        _, changed = search.search(orders, work, left_s / ATTEMPTS, seed)
        seed, found = seed + 1, evaluate_orders(ops, changed).latency
        if found < latency:
            latency, orders = found, changed
    return orders
