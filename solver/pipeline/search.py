"""Searches for the fastest schedule: list schedules by rules that are changed step by step, from the start or from the end.

A problem that runs backwards in time is again a pipeline problem. "Longest tail first" is a good rule there: it builds the end
of the schedule first, where devices would idle. Starting from that rule and two others, one or two types and up to three
neighbouring stages of the same kind get another delay or priority. The change stays if the latency is not longer. The search
stops at the bound.

Where the bound grows evenly with the micro-batches, rules are tried on a problem with fewer of them, which takes less time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from solver.pipeline.bounds import latency_bound
from solver.pipeline.listing import NEVER, ListScheduler, Orders, Rule, backwards, longest_tail_first
from solver.pipeline.operations import FORWARD, INPUTS, Operations
from solver.pipeline.problem import PipelineProblem

OPERATION_S = 2e-6
"""Seconds of a list-scheduling pass per operation, in plain Python on one core of the reference machine."""

COMPILED_OPERATION_S = 6e-8  # where numba has compiled it

PASS_S = 6e-5  # of a pass, whatever its size: changing the rule

NEIGHBOURS = 3  # stages that change together with one


RESTART = 30  # passes without gain after which the search goes back to a first rule
PRIORITY_SHARE = 0.2  # standard deviation of changes of a priority, as a share of the longest tail


class Work:
    """Counts the work of a search in seconds of passes on the reference machine, so that no clock decides its end."""

    def __init__(self, most_s: float) -> None:
        self.most_s, self.spent_s = most_s, 0.0

    def spend(self, operations: int, compiled: bool = False) -> None:
        """Count a pass over so many operations."""
        self.spent_s += PASS_S + operations * (COMPILED_OPERATION_S if compiled else OPERATION_S)

    @property
    def over(self) -> bool:
        """Return whether nothing is left."""
        return self.spent_s >= self.most_s


class FirstRule(NamedTuple):
    """A first rule, the direction of time that it is for, and the latency that it leads to."""

    latency: int
    backward: bool
    rule: Rule


@dataclass
class Fastest:
    """The fastest schedule so far.

    Attributes:
        latency, orders: None and empty if memory has left every pass stuck.
        passes: list schedules built.
    """

    latency: int | None = None
    orders: Orders = field(default_factory=list)
    passes: int = 0


def find_fastest(problem: PipelineProblem, work: Work, seed: int, goal: int) -> Fastest:
    """Return the fastest schedule that the work finds; the search stops at a latency of ``goal``."""
    ops = Operations.of(problem)
    full, found = _Directions(ops), Fastest()
    starts = []
    for backward in (True, False):
        for rule in first_rules(full.ops(backward)):
            latency = _try(full, backward, rule, found, work)
            if found.latency is not None and found.latency <= goal:
                return found
            starts.append(FirstRule(NEVER if latency is None else latency, backward, rule))
    starts = sorted(starts, key=lambda start: start.latency)
    fewer = smaller(problem)
    small = full if fewer == problem else _Directions(Operations.of(fewer))
    _climb(full, small, starts, found, (work, seed, goal))
    return found


def _climb(
    full: _Directions, small: _Directions, starts: list[FirstRule], found: Fastest, limits: tuple[Work, int, int]
) -> None:
    """Change rules until the goal is reached or the work is done; rules that are good on ``small`` are tried on ``full``."""
    work, seed, goal = limits
    rng, restarts, best_small = np.random.default_rng(seed), 0, NEVER
    neighbours = by_kind(full.ops(True))
    while True:
        start = starts[0 if restarts % 2 == 0 else 1 + restarts // 2 % (len(starts) - 1)]  # the best one every other time
        rule, kept, since = start.rule, (start.latency if small is full else NEVER), 0
        restarts += 1
        while since <= RESTART:
            if work.over:
                return
            changed = rule.copy()
            for _ in range(int(rng.integers(1, 3))):
                change(changed, neighbours, full.ops(True), rng)
            since += 1
            if small is full:
                latency = _try(full, start.backward, changed, found, work, kept)
            else:
                work.spend(small.operations)
                latency = small.schedule(start.backward, changed, kept)
                if latency is not None and (latency < best_small or latency == small.bound):
                    best_small = latency
                    _try(full, start.backward, changed, found, work)
            if found.latency is not None and found.latency <= goal:
                return
            if latency is not None and latency <= kept:
                since = since if latency == kept else 0
                rule, kept = changed, latency


class _Directions:
    """List schedulers of a problem in both directions of time."""

    def __init__(self, ops: Operations) -> None:
        self.operations, self.bound = ops.total, latency_bound(ops)
        self._schedulers = {True: ListScheduler(ops.reversed), False: ListScheduler(ops)}

    def ops(self, backward: bool) -> Operations:
        """Return the operations of a direction."""
        return self._schedulers[backward].ops

    def schedule(self, backward: bool, rule: Rule, latest: int = NEVER) -> int | None:
        """Return the latency of a rule in a direction, None if it is later than ``latest`` or stuck."""
        return self._schedulers[backward].schedule(rule, latest)

    def orders(self, backward: bool) -> Orders:
        """Return the last schedule of a direction, forwards in time."""
        orders = self._schedulers[backward].orders()
        return backwards(orders) if backward else orders


def _try(full: _Directions, backward: bool, rule: Rule, found: Fastest, work: Work, latest: int = NEVER) -> int | None:
    """Schedule the whole problem by a rule and keep what is faster than before."""
    work.spend(full.operations)
    found.passes += 1
    latency = full.schedule(backward, rule, latest)
    if latency is not None and (found.latency is None or latency < found.latency):
        found.latency, found.orders = latency, full.orders(backward)
    return latency


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


def by_kind(ops: Operations) -> list[list[int]]:
    """Return, for each type, itself and up to three stages after it of the same chain and kind."""
    number = {op: i for i, op in enumerate(ops.types)}
    keys = [[op._replace(stage=op.stage + step) for step in range(NEIGHBOURS + 1)] for op in ops.types]
    return [[number[key] for key in of_type if key in number] for of_type in keys]


def change(rule: Rule, neighbours: list[list[int]], ops: Operations, rng: np.random.Generator) -> None:
    """Give a type, and up to three neighbouring stages, another delay (of at most the shortest operation) or priority."""
    types = neighbours[int(rng.integers(len(neighbours)))]
    types = types[: 1 + int(rng.integers(len(types)))]
    if rng.random() < 0.5:
        most = min(ops.duration)
        step = int(rng.integers(-most, most + 1))
        for i in types:
            rule.delay[i] += step
    else:
        shift = float(rng.normal(0.0, PRIORITY_SHARE * max(ops.tails) + 1.0))
        for i in types:
            rule.priority[i] += shift
