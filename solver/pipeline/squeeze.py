"""Fits orders into a lower memory capacity: passes that take memory wait until enough is released, others keep their turn."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from solver.pipeline.evaluate import evaluate_orders
from solver.pipeline.listing import MEMORY_SLACK, Orders
from solver.pipeline.operations import Operations


def squeezed(ops: Operations, orders: Orders, capacity: Sequence[float]) -> Orders | None:
    """Return orders close to the given ones that keep to the capacity of each device; None where they get stuck.

    Operations are taken in order of their start. One that does not fit, or waits for such a one, is parked until a later one
    releases memory on its device or is what it waits for.
    """
    starts = evaluate_orders(ops, orders).starts
    timed = sorted((start, i) for order, of in zip(orders, starts, strict=True) for i, start in zip(order, of, strict=True))
    turns = [(turn, i) for turn, (_, i) in enumerate(timed)]  # sorted, so a heap
    parked: list[list[tuple[int, int]]] = [[] for _ in orders]
    held, done = [0.0] * len(orders), [0] * len(ops)
    found: Orders = [[] for _ in orders]
    while turns:
        turn, i = heapq.heappop(turns)
        d = ops.device[i]
        ready = all(done[j] > done[i] for j in ops.before[i])
        if not ready or held[d] + ops.taken[i] > capacity[d] + MEMORY_SLACK:
            parked[d].append((turn, i))
            continue
        held[d] += ops.taken[i] - ops.released[i]
        done[i] += 1
        found[d].append(i)
        for other in {d, *(ops.device[j] for j in ops.after[i])}:
            for one in parked[other]:
                heapq.heappush(turns, one)
            parked[other].clear()
    return None if any(parked) else found
