"""List schedules of a pipeline: commit, over and over, the operation that can start first, by a rule for delays and ties.

A problem that runs backwards in time is again a pipeline problem, so a rule may also build the schedule from its end
(``operations.reversed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver.pipeline.list_pass import list_pass
from solver.pipeline.operations import Operations

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
        ops: operations of the problem, or of its reverse. memory: capacity per device; that of ``ops`` when None.
        compiled: ``list_pass`` compiled by numba; the passes are the same, about 30 times faster.
    """

    def __init__(
        self, ops: Operations, memory: Sequence[float] | None = None, compiled: Callable[..., int] | None = None
    ) -> None:
        self.ops, self._pass = ops, compiled or list_pass
        self._shape = as_arrays(_shape(ops, limits(ops) if memory is None else memory), compiled is not None)
        state = ([0] * ops.total, [0] * ops.total, [0] * len(ops.on_device))
        self._state = as_arrays(state, compiled is not None)
        self._compiled = compiled is not None

    def schedule(self, rule: Rule, latest: int = NEVER) -> int | None:
        """Return the latency of the rule's schedule; None where it is later than ``latest`` or memory and limits block it."""
        numbers: Any = rule.delay, rule.priority, rule.in_flight
        if self._compiled:
            numbers = tuple(np.array(each, kind) for each, kind in zip(numbers, (np.int64, float, np.int64), strict=True))
        latency = self._pass(self._shape, numbers, latest, self._state)
        return int(latency) if latency >= 0 else None

    def orders(self) -> Orders:
        """Return the orders of the last schedule."""
        found, at = [], 0
        for types in self.ops.on_device:
            operations = sum(self.ops.count[i] for i in types)
            found.append([int(i) for i in self._state[1][at : at + operations]])
            at += operations
        return found

    def device_ends(self) -> list[int]:
        """Return when each device ended in the last schedule."""
        return [int(end) for end in self._state[2]]


def limits(ops: Operations, capacity: float = math.inf) -> list[float]:
    """Return the memory that each device may hold: its own limit, and at most ``capacity``."""
    return [min(most, capacity) for most in ops.memory or [math.inf] * len(ops.on_device)]


def backwards(orders: Sequence[Sequence[int]]) -> Orders:
    """Return the orders read backwards: those of the problem whose time runs the other way."""
    return [list(reversed(order)) for order in orders]


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


def as_arrays(lists: Any, compiled: bool) -> Any:
    """Return nested tuples of lists as they are, or with arrays for compiled code."""
    if not compiled:
        return lists
    if isinstance(lists, tuple):
        return tuple(as_arrays(one, compiled) for one in lists)
    return np.asarray(lists, dtype=float if any(isinstance(x, float) for x in lists) else np.int64)


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
