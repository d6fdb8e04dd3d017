"""Schedules of a pipeline as orders of its devices: built by a rule, and timed.

A list schedule commits, over and over, the operation that can start first, by a rule for delays and ties. A problem that runs
backwards in time is again a pipeline problem, so every rule may also build the schedule from its end. Given orders are timed as
early as devices and the operations before allow (semi-active).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver.model.errors import PlanningError
from solver.pipeline.kernels import PLAIN, Kernels
from solver.pipeline.problem import INPUTS, WEIGHTS, Operations

Orders = list[list[int]]
"""Per device the types in the order in which they run; the micro-batch is the count."""

NEVER = 1 << 62
MEMORY_SLACK = 1e-9  # sums of activations are not exact


@dataclass
class Rule:
    """Numbers per type that decide what runs next.

    Attributes:
        delay: added to the earliest start when types of a device are compared, so that a device waits for a better operation.
        priority: decides ties, smaller first.
        in_flight: most micro-batches that have passed a type and not left its stage; 0 for any number.
    """

    delay: list[int]
    priority: list[float]
    in_flight: list[int]

    def copy(self) -> Rule:
        """Return a rule that can be changed alone."""
        return Rule(self.delay[:], self.priority[:], self.in_flight[:])


def longest_tail_first(ops: Operations) -> Rule:
    """Return the rule that runs what has the longest way to the end, and waits for nothing."""
    return Rule([0] * len(ops), [-float(tail) for tail in ops.tails], [0] * len(ops))


class ListScheduler:
    """Builds list schedules of one problem; arrays and memory for them are kept between passes.

    Args:
        backward: build schedules from their end.
        memory: capacity per device; that of ``ops`` when None.
        kernels: the inner loop in plain Python or compiled; the passes are the same, compiled about 30 times faster.

    Attributes:
        ops: operations in the direction of time in which schedules are built.
    """

    def __init__(
        self, ops: Operations, backward: bool = False, memory: Sequence[float] | None = None, kernels: Kernels = PLAIN
    ) -> None:
        self.ops, self.backward, self._kernels = ops.reversed if backward else ops, backward, kernels
        self._shape = kernels.arrays(_shape(self.ops, limits(ops) if memory is None else memory))
        self._state = kernels.arrays(([0] * ops.total, [0] * ops.total, [0] * len(ops.on_device)))

    def schedule(self, rule: Rule, latest: int = NEVER) -> int | None:
        """Return the latency of the rule's schedule; None where it is later than ``latest`` or memory and limits block it."""
        numbers: Any = rule.delay, rule.priority, rule.in_flight
        if self._kernels.compiled:
            numbers = tuple(np.array(each, kind) for each, kind in zip(numbers, (np.int64, float, np.int64), strict=True))
        latency = self._kernels.list_pass(self._shape, numbers, latest, self._state)
        return int(latency) if latency >= 0 else None

    def orders(self) -> Orders:
        """Return the orders of the last schedule, forwards in time."""
        found, at = [], 0
        for types in self.ops.on_device:
            operations = sum(self.ops.count[i] for i in types)
            order = [int(i) for i in self._state[1][at : at + operations]]
            found.append(order[::-1] if self.backward else order)
            at += operations
        return found

    def device_ends(self) -> list[int]:
        """Return when each device ended in the last schedule, in its direction of time."""
        return [int(end) for end in self._state[2]]


def limits(ops: Operations, capacity: float = math.inf) -> list[float]:
    """Return the memory that each device may hold: its own limit, and at most ``capacity``."""
    return [min(most, capacity) for most in ops.memory or [math.inf] * len(ops.on_device)]


def _shape(ops: Operations, limit: Sequence[float]) -> tuple[Any, ...]:
    """Return the problem as ``list_pass`` takes it."""
    first, offset = [0], [0]
    for types in ops.on_device:
        first.append(first[-1] + len(types))
    for count in ops.count[:-1]:
        offset.append(offset[-1] + count)
    members = [i for types in ops.on_device for i in types]
    before = [_nth(ops.before, n) for n in range(2)]
    after = [_nth(ops.after, n) for n in range(2)]
    hops = [[ops.hop(j, i) if j >= 0 else 0 for i, j in enumerate(of)] for of in before]
    links = (before[0], hops[0], before[1], hops[1], after[0], after[1], list(ops.tails))
    memory = (list(ops.taken), list(ops.released), *_stage_ends(ops), [float(most) + MEMORY_SLACK for most in limit])
    return list(ops.device), list(ops.duration), list(ops.count), offset, first, members, links, memory


def _nth(neighbours: Sequence[Sequence[int]], n: int) -> list[int]:
    return [of[n] if len(of) > n else -1 for of in neighbours]


def _stage_ends(ops: Operations) -> tuple[list[int], list[int]]:
    """Return whether each type is the first of its stage, and, for the last one of a stage, the first; -1 for the others."""
    firsts: dict[tuple[int, int], int] = {}
    lasts: dict[tuple[int, int], int] = {}
    for i in ops.topological:
        stage = (ops.types[i].chain, ops.types[i].stage)
        firsts.setdefault(stage, i)
        lasts[stage] = i
    opens, frees = [0] * len(ops), [-1] * len(ops)
    for stage, i in lasts.items():
        opens[firsts[stage]] = 1
        frees[i] = firsts[stage]
    return opens, frees


def one_at_a_time(ops: Operations) -> Orders:
    """Return orders that run micro-batch after micro-batch, which needs the least memory and always ends."""
    found: Orders = [[] for _ in ops.on_device]
    for chain in range(len(ops.chains)):
        path = [i for i in ops.topological if ops.types[i].chain == chain]
        weights = {ops.types[i].stage: i for i in path if ops.types[i].kind == WEIGHTS}
        for _ in range(ops.count[path[0]]):
            for i in path:
                op = ops.types[i]
                if op.kind != WEIGHTS:
                    found[ops.device[i]].append(i)
                if op.kind == INPUTS:
                    found[ops.device[i]].append(weights[op.stage])
    return found


@dataclass(frozen=True)
class PipelineTimes:
    """Start times of orders, in units of time.

    Attributes:
        starts: per device, the start of each operation in its order.
        latency: when the last operation ends.
        peak_memory: most memory that any device holds at once.
    """

    starts: tuple[tuple[int, ...], ...]
    latency: int
    peak_memory: float


def evaluate_orders(ops: Operations, orders: Sequence[Sequence[int]]) -> PipelineTimes:
    """Return the times of orders, which name types by their number in ``ops``.

    Raises:
        PlanningError: an operation is missing, doubled or on another device, or operations wait for each other.
    """
    _check(ops, orders)
    ends: list[list[int]] = [[] for _ in ops.duration]
    free = [0] * len(orders)
    starts: list[list[int]] = [[] for _ in orders]
    waiting = list(range(len(orders)))
    while waiting:
        d = waiting.pop()
        while len(starts[d]) < len(orders[d]):
            i = orders[d][len(starts[d])]
            k = len(ends[i])
            if any(len(ends[j]) <= k for j in ops.before[i]):
                break
            ready = max((ends[j][k] + ops.hop(j, i) for j in ops.before[i]), default=0)
            start = max(free[d], ready)
            free[d] = start + ops.duration[i]
            ends[i].append(free[d])
            starts[d].append(start)
            waiting += {ops.device[j] for j in ops.after[i]} - {d}
    stuck = [d for d in range(len(orders)) if len(starts[d]) < len(orders[d])]
    if stuck:
        waits = [
            f"micro-batch {len(ends[i])} of {ops.name(i)} on device {d}" for d in stuck[:2] for i in [orders[d][len(starts[d])]]
        ]
        raise PlanningError(
            f"the orders deadlock: {' and '.join(waits)} wait{'s' if len(waits) == 1 else ''} for what comes later in an "
            "order; put it earlier"
        )
    return PipelineTimes(tuple(map(tuple, starts)), max(free, default=0), max(peaks(ops, orders), default=0.0))


def held_memory(ops: Operations, order: Sequence[int]) -> list[float]:
    """Return the memory that a device holds while each operation of its order runs; it depends on the order only."""
    held, found = 0.0, []
    for i in order:
        held += ops.taken[i]
        found.append(round(held, 9))
        held -= ops.released[i]
    return found


def peaks(ops: Operations, orders: Sequence[Sequence[int]]) -> list[float]:
    """Return the most memory that each device holds at once."""
    return [max(held_memory(ops, order), default=0.0) for order in orders]


def _check(ops: Operations, orders: Sequence[Sequence[int]]) -> None:
    if len(orders) != len(ops.on_device):
        raise PlanningError(f"orders has {len(orders)} devices; the problem has {len(ops.on_device)}")
    for d, order in enumerate(orders):
        found = Counter(order)
        for i in found:
            if ops.device[i] != d:
                raise PlanningError(f"the order of device {d} has {ops.name(i)}, which runs on device {ops.device[i]}")
        for i in ops.on_device[d]:
            if found[i] != ops.count[i]:
                raise PlanningError(
                    f"the order of device {d} has {ops.name(i)} {found[i]} times; once for each of its {ops.count[i]} "
                    "micro-batches is needed"
                )
