"""Says when every operation of given orders runs: as early as its device and the operation before it allow (semi-active)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from solver.model.errors import PlanningError
from solver.pipeline.operations import Operations


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
