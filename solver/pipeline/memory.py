"""Lowers the peak memory at a latency: CP-SAT in a corridor where one chain decides, else annealing under a capacity.

A capacity is tried as a hard constraint: list schedules by rules first, whose orders are then changed.

**Corridor.** Where one chain alone needs the whole latency, its backward passes have next to no freedom. Holding them to
``width`` units after their earliest start leaves CP-SAT with few choices. Deadline and capacity are constraints, and there is
no objective.

A corridor without a schedule, and annealing that fails, prove nothing: only a schedule at the memory bound is known to be
optimal.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from solver.model.cp_sat import cp_solver
from solver.pipeline.bounds import memory_bound
from solver.pipeline.kernels import Kernels, kernels_for
from solver.pipeline.listing import MEMORY_SLACK, Orders, evaluate_orders, limits, peaks
from solver.pipeline.problem import FORWARD, WEIGHTS, Operations
from solver.pipeline.search import LARGE, PASSES, OrderSearch, Work, orders_within, pass_s

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

FIRST_STEP, LEAST_STEP = 0.25, 0.01  # shares by which a capacity is below the least memory so far
TRIES = 2  # attempts per capacity, with different seeds
ATTEMPTS = 12  # of the work, an attempt at a capacity takes at most this part
RULES_SHARE, LEAST_PASSES = 0.25, 100  # of an attempt, for rules; but so many passes
CHANGES_SHARE = 0.75  # of the work, for changes of orders, which come first up to LARGE operations
ROUNDS, AGAIN = 3, 0.85  # bisections by rules; all but the first begin at this share of the least memory so far
NEAR = 5  # mean durations that rules may leave orders late, so that these are changed
CHANGES_PART = 6  # of the work, changes of such orders take at most this part

CORRIDOR_SHARE, WIDTHS = 0.5, (0, 2, 6)  # of the work, for CP-SAT; widths of the corridors
MOST_OPERATIONS = 1_100  # for CP-SAT


class MemorySearch:
    """Lowers the peak memory of a schedule that ends by ``latency``.

    Args:
        orders: the schedule. work: that may be spent. workers: threads of CP-SAT.

    Attributes:
        orders, peak: the schedule of least memory so far, and its peak memory.
        finished: nothing is left that the search would try, or the bound is reached.
        compiled: the search ran compiled by numba.
    """

    def __init__(self, ops: Operations, orders: Orders, latency: int, work: Work, seed: int, workers: int) -> None:
        self._ops, self._latency, self._work, self._seed, self._workers = ops, latency, work, seed, workers
        self._bound = memory_bound(ops, latency)
        self._keep(orders)
        self.finished, self.compiled = self._at_bound, False

    def run(self) -> None:
        """Search until the bound is reached or nothing is left to try."""
        if not self.finished:
            self._by_corridor()
        if not self.finished:
            self.compiled = kernels_for(self._work.left_s).compiled
            if self._ops.total <= LARGE:
                self._by_changes()
            self._by_rules()

    def _keep(self, orders: Orders) -> None:
        self.orders, self.peak = orders, max(peaks(self._ops, orders))

    @property
    def _at_bound(self) -> bool:
        return self.peak <= self._bound * (1 + 1e-9)

    def _by_corridor(self) -> None:
        """Try the bound itself with CP-SAT, in wider and wider corridors."""
        chain, work = critical_chain(self._ops, self._latency), self._work
        if chain is None or self._ops.total > MOST_OPERATIONS:
            return
        end_s = work.spent_s + CORRIDOR_SHARE * work.left_s
        for width in WIDTHS:
            if work.spent_s < end_s:
                orders, spent_s = _orders_in_corridor(
                    self._ops, self._latency, self._bound, chain, width, end_s - work.spent_s, self._workers, self._seed
                )
                work.spent_s += spent_s
                if orders is not None:
                    self._keep(orders)
                    self.finished = True
                    return

    def _by_changes(self) -> None:
        """Lower the capacity by a share of the least memory so far, which is halved where attempts find no schedule.

        Attempts start from rules until these fail once, then from the schedule of least memory so far.
        """
        ops, work, left_s = self._ops, self._work, self._work.left_s
        kernels, share, failed, by_rules = kernels_for(left_s), FIRST_STEP, 0, True
        until_s = work.spent_s + CHANGES_SHARE * left_s
        while share >= LEAST_STEP and work.spent_s < until_s and not self._at_bound:
            capacity = max(self._bound, self.peak * (1 - share))
            start = None if by_rules else squeezed(ops, self.orders, limits(ops, capacity))
            orders = self._within(capacity, left_s / ATTEMPTS, self._seed + failed, kernels, start)
            if orders is not None:
                self._keep(orders)
                continue
            failed += 1
            if by_rules or failed % TRIES == 0:
                share /= 2
            by_rules = False

    def _within(self, capacity: float, attempt_s: float, seed: int, kernels: Kernels, start: Orders | None) -> Orders | None:
        """Return orders within capacity and latency, None if none were found, by changes of ``start`` or of those of a rule."""
        ops, latency, work = self._ops, self._latency, self._work
        if start is None:
            passes = max(LEAST_PASSES, int(RULES_SHARE * attempt_s / pass_s(ops.total, kernels) / 2))  # in both directions
            ruled = orders_within(ops, capacity, latency, work, seed, min(PASSES, passes), kernels)
            if ruled is None or ruled[0] == 0:
                return None if ruled is None else ruled[1]
            start = ruled[1]
        search = OrderSearch(ops, limits(ops, capacity), latency, kernels)
        energy, orders = search.search(start, work, (1 - RULES_SHARE) * attempt_s, seed)
        return orders if energy == 0 else None

    def _by_rules(self) -> None:
        """Bisect capacities between the bound and the least memory so far, each with a few seeds; then once more, just below
        it.

        Above LARGE operations, orders that rules leave late by little are changed; where they are late by more, no second seed
        is tried.
        """
        ops, latency, work, left_s = self._ops, self._latency, self._work, self._work.left_s
        kernels = kernels_for(left_s)
        passes = min(PASSES, max(LEAST_PASSES, int(left_s / ATTEMPTS / pass_s(ops.total, kernels) / 2)))  # in both directions
        near = NEAR * sum(ops.duration) / len(ops) if ops.total > LARGE else 0.0
        low, tried, failed, rounds = self._bound, 0, 0, 0
        while not work.over and not self._at_bound:
            capacity = max(self._bound, math.sqrt(low * self.peak))
            answer = orders_within(ops, capacity, latency, work, self._seed + tried, passes, kernels, near)
            is_near = answer is not None and answer[0] <= near
            if answer is not None and is_near and answer[0] > 0:
                search = OrderSearch(ops, limits(ops, capacity), latency, kernels)
                answer = search.search(answer[1], work, left_s / CHANGES_PART, self._seed + tried)
            if answer is not None and answer[0] == 0:
                self._keep(answer[1])
                failed = 0
            else:
                tried, failed = tried + 1, failed + 1
                if failed == TRIES or (near > 0 and not is_near):
                    low, failed = capacity, 0
            if self.peak < low * (1 + LEAST_STEP):
                rounds += 1
                if rounds == ROUNDS:
                    break
                low = max(self._bound, AGAIN * self.peak)
        self.finished = not work.over or self._at_bound


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


def _orders_in_corridor(
    ops: Operations, latency: int, capacity: float, chain: int, width: int, most_s: float, workers: int, seed: int
) -> tuple[Orders | None, float]:
    """Return CP-SAT's orders within latency and capacity, None if it found none, and the deterministic seconds that it took.

    Args:
        width: units of time that backward passes of the critical ``chain`` may start after their earliest start.
        most_s: deterministic seconds. workers: threads.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    starts = _timed(ops, model, latency, chain, width)
    if not _limited(ops, model, starts, capacity):
        return None, 0.0
    solver = cp_solver(most_s, workers, seed)
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
