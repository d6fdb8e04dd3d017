"""Small and random pipeline problems, all of their schedules, and an evaluator that shares no code with the solver's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from solver.pipeline import Chain, PipelineProblem

Order = tuple[tuple[int, str, int], ...]


def random_problem(seed: int, *, split: bool = False) -> PipelineProblem:
    """Return 2 to 4 chains with unequal stages on a few devices, some of which go back over the devices (V routes)."""
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 6))
    chains = []
    for number in range(int(rng.integers(2, 5))):
        route = list(rng.permutation(devices)[: int(rng.integers(1, devices + 1))])
        if rng.random() < 0.3:
            route += route[::-1]
        times = [rng.integers(1, 6, len(route)) for _ in range(3)]
        chains.append(Chain(f"chain {number}", route, int(rng.integers(1, 9)), *times))
    return PipelineProblem(chains, devices, split_backward=split)


def tiny_problem(seed: int, most: int, *, split: bool = False) -> PipelineProblem:
    """Return 1 to 3 chains on 2 devices, some with V routes and transfers, with at most so many operations per device."""
    rng = np.random.default_rng(seed)
    while True:
        chains, per_device = [], [0, 0]
        for number in range(int(rng.integers(1, 4))):
            route = [[0, 1], [1, 0], [0], [1], [0, 1, 1, 0]][int(rng.integers(5))]
            micro_batches = int(rng.integers(1, 4))
            times = [rng.integers(1, 6, len(route)) for _ in range(3)]
            chains.append(Chain(f"chain {number}", route, micro_batches, *times))
            for device in route:
                per_device[device] += micro_batches * (3 if split else 2)
        if most - 2 <= max(per_device) <= most:
            return PipelineProblem(chains, 2, transfer=int(rng.integers(0, 2)), split_backward=split)


def start_times(
    problem: PipelineProblem, orders: Sequence[Order]
) -> dict[tuple[int, str, int, int], tuple[float, float]] | None:
    """Return start and end of each operation (chain, kind, stage, micro-batch), device after device; None if they deadlock."""
    part = 0.5 if problem.split_backward else 1.0
    waiting = [_counted(order)[::-1] for order in orders]
    spans: dict[tuple[int, str, int, int], tuple[float, float]] = {}
    free, going_on = [0.0] * len(waiting), True
    while going_on:
        going_on = False
        for d, row in enumerate(waiting):
            while row:
                op = row[-1]
                needs = _needs(problem, op)
                if any(need not in spans for need in needs):
                    break
                chain = problem.chains[op[0]]
                time = chain.forward[op[2]] if op[1] == "F" else chain.backward[op[2]] * part
                start = max([free[d]] + [spans[need][1] + problem.transfer * (need[2] != op[2]) for need in needs])
                spans[op] = (start, start + time)
                free[d], going_on = start + time, True
                row.pop()
    return None if any(waiting) else spans


def peak_memory(problem: PipelineProblem, orders: Sequence[Order]) -> float:
    """Return the most memory that a device holds, read from its order."""
    kept = problem.kept_for_weights
    most = 0.0
    for order in orders:
        held = 0.0
        for chain, kind, stage in order:
            one = problem.chains[chain].activation[stage]
            held += one if kind == "F" else 0.0
            most = max(most, held)
            held -= {"F": 0.0, "B": one, "I": one * (1 - kept), "W": one * kept}[kind]
    return most


def all_orders(problem: PipelineProblem) -> Iterator[tuple[Order, ...]]:
    """Return every combination of orders in which each stage runs a micro-batch forward before it runs it backward."""
    return itertools.product(*(list(_device_orders(problem, device)) for device in range(problem.devices)))


def least(problem: PipelineProblem) -> list[tuple[float, float]]:
    """Return the pairs (latency, peak memory) that no schedule improves in both, by trying all schedules."""
    found: dict[float, float] = {}
    for orders in all_orders(problem):
        spans = start_times(problem, orders)
        if spans is not None:
            latency, memory = max(end for _, end in spans.values()), peak_memory(problem, orders)
            found[latency] = min(memory, found.get(latency, memory))
    front: list[tuple[float, float]] = []
    for latency in sorted(found):
        if not front or found[latency] < front[-1][1]:
            front.append((latency, found[latency]))
    return front


def _counted(order: Order) -> list[tuple[int, str, int, int]]:
    done: dict[tuple[int, str, int], int] = {}
    row = []
    for op in order:
        row.append((*op, done.get(op, 0)))
        done[op] = done.get(op, 0) + 1
    return row


def _needs(problem: PipelineProblem, op: tuple[int, str, int, int]) -> list[tuple[int, str, int, int]]:
    chain, kind, stage, k = op
    last = len(problem.chains[chain].route) - 1
    back = "I" if problem.split_backward else "B"
    if kind == "F":
        return [(chain, "F", stage - 1, k)] if stage else []
    if kind == "W":
        return [(chain, "I", stage, k)]
    return [(chain, "F", stage, k)] if stage == last else [(chain, back, stage + 1, k)]


def _device_orders(problem: PipelineProblem, device: int) -> Iterator[Order]:
    kinds = "FIW" if problem.split_backward else "FB"
    counts = {
        (c, kind, s): chain.micro_batches
        for c, chain in enumerate(problem.chains)
        for s, at in enumerate(chain.route)
        if at == device
        for kind in kinds
    }

    def extend(order: Order, left: dict[tuple[int, str, int], int]) -> Iterator[Order]:
        if not any(left.values()):
            yield order
        for op, number in left.items():
            place = kinds.index(op[1])
            if number and (not place or left[op[0], kinds[place - 1], op[2]] < number):
                yield from extend((*order, op), {**left, op: number - 1})

    yield from extend((), counts)
