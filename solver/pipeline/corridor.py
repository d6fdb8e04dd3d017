"""Looks for a schedule within a latency and a memory capacity with CP-SAT, the slowest chain held in a corridor.

Where one chain alone needs the whole latency, its backward passes have next to no freedom. Holding them to ``width`` units
after their earliest start leaves CP-SAT with few choices. Deadline and capacity are constraints, and there is no objective.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from solver.model.cp_sat import cp_solver
from solver.pipeline.listing import Orders, limits
from solver.pipeline.operations import FORWARD, WEIGHTS, Operations

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

MOST_OPERATIONS = 1_100
WIDTHS = (0, 2, 6)


def critical_chain(ops: Operations, latency: int) -> int | None:
    """Return the chain that alone needs the whole latency; None if there is none."""
    for chain in range(len(ops.chains)):
        if _alone(ops, chain) == latency:
            return chain
    return None


def _period(ops: Operations, chain: int) -> int:
    """Return the work of a micro-batch at the chain's slowest stage."""
    work: dict[int, int] = {}
    for i, op in enumerate(ops.types):
        if op.chain == chain:
            work[op.stage] = work.get(op.stage, 0) + ops.duration[i]
    return max(work.values())


def _alone(ops: Operations, chain: int) -> int:
    """Return the least latency of a chain with equal stages that has all devices for itself."""
    types = [i for i, op in enumerate(ops.types) if op.chain == chain]
    way = max(ops.heads[i] + ops.duration[i] + ops.tails[i] for i in types)
    return way + (ops.count[types[0]] - 1) * _period(ops, chain)


def fits(
    ops: Operations, latency: int, capacity: float, width: int, limits: tuple[float, int, int]
) -> tuple[Orders | None, float]:
    """Return orders within latency and capacity, None if none were found, and the deterministic seconds that it took.

    Args:
        width: units of time that backward passes of the critical chain may start after their earliest start.
        limits: deterministic seconds, threads, and seed of CP-SAT.
    """
    from ortools.sat.python import cp_model

    chain = critical_chain(ops, latency)
    assert chain is not None, "only where a chain decides the latency is there a corridor"
    model = cp_model.CpModel()
    starts = _timed(ops, model, latency, chain, width)
    if not _limited(ops, model, starts, capacity):
        return None, 0.0
    solver = cp_solver(*limits)
    solver.parameters.interleave_search = True  # threads take turns, so that the schedule is always the same
    status = solver.solve(model)
    spent_s = float(solver.response_proto.deterministic_time)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, spent_s
    timed = [(solver.value(start), i) for i, of_type in enumerate(starts) for start in of_type]
    orders = [[i for _, i in sorted(one for one in timed if ops.device[one[1]] == d)] for d in range(len(ops.on_device))]
    return orders, spent_s


def _timed(ops: Operations, model: CpModel, latency: int, chain: int, width: int) -> list[list[IntVar]]:
    """Return start variables by type and micro-batch; micro-batches of a type keep their order."""
    period, starts = _period(ops, chain), []
    for i, op in enumerate(ops.types):
        of_type = []
        for k in range(ops.count[i]):
            first = ops.heads[i] + k * ops.duration[i]
            last = latency - ops.tails[i] - (ops.count[i] - k) * ops.duration[i]
            if op.chain == chain and op.kind != WEIGHTS:
                just_in_time = ops.heads[i] + k * period
                if op.kind == FORWARD:
                    last = min(last, just_in_time)
                else:
                    first, last = max(first, just_in_time), min(last, just_in_time + width)
            of_type.append(model.new_int_var(min(first, last), last, ""))
        for before, then in itertools.pairwise(of_type):
            model.add(then >= before + ops.duration[i])
        starts.append(of_type)
    for i in range(len(ops)):
        for j in ops.before[i]:
            for before, then in zip(starts[j], starts[i], strict=True):
                model.add(then >= before + ops.duration[j] + ops.hop(j, i))
    for types in ops.on_device:
        model.add_no_overlap([model.new_fixed_size_interval_var(s, ops.duration[i], "") for i in types for s in starts[i]])
    return starts


def _limited(ops: Operations, model: CpModel, starts: list[list[IntVar]], capacity: float) -> bool:
    """Add the capacity of every device; False if memory is not in whole parts of a common unit."""
    scale = _scale([x for x in (*ops.taken, *ops.released) if x])
    if scale is None:
        return False
    holdings = _holdings(ops)
    for types, most in zip(ops.on_device, limits(ops, capacity), strict=True):
        intervals: list[Any] = []
        demands: list[int] = []
        for i, j in ((i, j) for i, j in holdings if i in types):
            for start, last in zip(starts[i], starts[j], strict=True):
                end = last + ops.duration[j]
                size = model.new_int_var(ops.duration[i] + ops.duration[j], sum(ops.duration) * max(ops.count), "")
                intervals.append(model.new_interval_var(start, size, end, ""))
                demands.append(round(ops.released[j] * scale))
        if intervals:
            model.add_cumulative(intervals, demands, int(most * scale + 1e-6))
    return True


def _holdings(ops: Operations) -> list[tuple[int, int]]:
    """Return pairs of types: the first takes memory that the second releases."""
    first = {(op.chain, op.stage): i for i, op in enumerate(ops.types) if op.kind == FORWARD}
    return [(first[op.chain, op.stage], j) for j, op in enumerate(ops.types) if ops.released[j]]


def _scale(amounts: list[float]) -> int | None:
    """Return a number that makes all amounts whole; None if none of up to a million does."""
    scale = 1
    for amount in amounts:
        denominator = Fraction(amount).limit_denominator(1000).denominator
        if abs(amount * denominator - round(amount * denominator)) > 1e-9 * denominator:
            return None
        scale = math.lcm(scale, denominator)
    return scale if scale <= 1_000_000 else None
