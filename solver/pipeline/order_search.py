"""Looks for a schedule within a latency and a memory capacity: orders that nearly are in time, annealed.

The capacity is hard, as in ``rule_search.py``, which finds the orders to start from.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from solver.pipeline import order_kernel
from solver.pipeline.compiled import Kernels, kernels_for
from solver.pipeline.evaluate import evaluate_orders
from solver.pipeline.listing import MEMORY_SLACK, Orders, as_arrays, limits
from solver.pipeline.operations import Operations
from solver.pipeline.search import Work

HOT, COLD = 0.9, 0.06  # temperatures at first and last, in mean durations of a type
TIMED_S, COMPILED_TIMED_S = 1e-6, 2e-8  # seconds per operation that a change times, on one core of the reference machine
ATTEMPTS = 4  # of the work for an earlier end


class OrderSearch:
    """Anneals orders of one problem under a capacity.

    Args:
        capacity: memory of each device. latency: latest end.
        kernels: the inner loops compiled by numba; the changes are the same in plain Python, about 60 times slower.
    """

    def __init__(self, ops: Operations, capacity: Sequence[float], latency: int, kernels: Kernels | None) -> None:
        self._ops, self._compiled = ops, kernels is not None
        self._anneal = order_kernel.anneal if kernels is None else kernels.anneal
        self._offset = [0, *itertools.accumulate(ops.count)]
        kind = [i for i, count in enumerate(ops.count) for _ in range(count)]
        on_device = [sum(ops.count[i] for i in types) for types in ops.on_device]
        self._first = [0, *itertools.accumulate(on_device)]
        hops = [ops.hop(before[0], i) if before else 0 for i, before in enumerate(ops.before)]
        least_tail = [min((ops.tails[i] for i in types), default=0) for types in ops.on_device]
        self._shape = (
            [ops.duration[i] for i in kind], [ops.device[i] for i in kind], self._linked(ops.before, 0),
            [hops[i] for i in kind], self._linked(ops.after, 0), self._linked(ops.after, 1), self._first, least_tail, [latency],
        )  # fmt: skip
        self._memory = (
            kind, [ops.taken[i] for i in kind], [ops.released[i] for i in kind],
            [most + MEMORY_SLACK for most in capacity],
        )  # fmt: skip

    def search(self, orders: Orders, limits: tuple[Work, float, int]) -> tuple[float, Orders]:
        """Return the least energy, 0 where the latency is kept, and its orders.

        Args:
            orders: to start from, within the capacity. limits: work, the seconds of it that this may take, and seed.
        """
        work, most_s, seed = limits
        timed_s = COMPILED_TIMED_S if self._compiled else TIMED_S
        most_timed = int(max(0.0, min(most_s, work.most_s - work.spent_s)) / timed_s) + 1
        sequence = [*self._numbered(orders), -1]
        ends = [0] * self._ops.total
        place = [0] * self._ops.total
        starts = itertools.chain(*evaluate_orders(self._ops, orders).starts)
        worked, held = [0], [0.0]
        _, taken, released, _ = self._memory
        for p, (x, start) in enumerate(zip(sequence[:-1], starts, strict=True)):
            place[x], ends[x] = p, start + self._shape[0][x]
            worked.append(worked[-1] + self._shape[0][x])
            held.append(held[-1] + taken[x] - released[x])
        devices = len(self._first) - 1
        last = [ends[sequence[high - 1]] if high > low else 0 for low, high in itertools.pairwise(self._first)]
        energy = order_kernel.energy_of(self._shape, last)
        scratch = ([0] * devices, [0] * devices, [0] * devices, ends[:], [0] * (len(ends) + devices), ends[:], [0])
        mean = sum(self._ops.duration) / len(self._ops)
        hot = min(HOT * mean, max(energy / 2, 4 * COLD * mean))  # colder from orders that are late by little
        shape, memory, state, scratch, best, stream = as_arrays(
            (self._shape, self._memory, (sequence, place, ends, worked, held), scratch, sequence[:], [seed % 99_991 + 1]),
            self._compiled,
        )
        energy = self._anneal(shape, memory, state, scratch, best, (stream, most_timed, hot, COLD * mean, energy))
        found = [[int(self._memory[0][x]) for x in best[low:high]] for low, high in itertools.pairwise(self._first)]
        work.spent_s += int(scratch[6][0]) * timed_s
        return float(energy), found

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
    latency = evaluate_orders(ops, orders).latency
    left_s = work.most_s - work.spent_s
    if latency <= goal or left_s <= 0:
        return orders
    search = OrderSearch(ops, limits(ops), goal, kernels_for(left_s))
    while latency > goal and not work.over:
        _, changed = search.search(orders, (work, left_s / ATTEMPTS, seed))
        seed, found = seed + 1, evaluate_orders(ops, changed).latency
        if found < latency:
            latency, orders = found, changed
    return orders
