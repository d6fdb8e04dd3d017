"""Lowers the peak memory at a latency: CP-SAT in a corridor where one chain decides, else annealing under a capacity.

A capacity is tried as a hard constraint: list schedules by rules first, whose orders are then changed. A corridor without a
schedule, and annealing that fails, prove nothing: only a schedule at the memory bound is known to be optimal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solver.pipeline.bounds import memory_bound
from solver.pipeline.compiled import Kernels, kernels_for
from solver.pipeline.corridor import MOST_OPERATIONS, WIDTHS, critical_chain, fits
from solver.pipeline.evaluate import peaks
from solver.pipeline.listing import Orders, limits
from solver.pipeline.operations import Operations
from solver.pipeline.order_search import OrderSearch
from solver.pipeline.rule_search import LARGE, PASSES, orders_within
from solver.pipeline.search import Work
from solver.pipeline.squeeze import squeezed

FIRST_STEP, LEAST_STEP = 0.25, 0.01  # shares by which a capacity is below the least memory so far
TRIES = 2  # attempts per capacity, with different seeds
ATTEMPTS = 12  # of the work, an attempt at a capacity takes at most this part
RULES_SHARE, LEAST_PASSES = 0.25, 100  # of an attempt, for rules; but so many passes
CHANGES_SHARE = 0.75  # of the work, for changes of orders, which come first up to LARGE operations
ROUNDS, AGAIN = 3, 0.85  # bisections by rules; all but the first begin at this share of the least memory so far
NEAR = 5  # mean durations that rules may leave orders late, so that these are changed
CHANGES_PART = 6  # of the work, changes of such orders take at most this part
CORRIDOR_SHARE = 0.5  # of the work, for CP-SAT


@dataclass
class MemorySearch:
    """The least memory found at a latency.

    Attributes:
        orders, peak: the schedule, and its peak memory.
        finished: nothing is left that the search would try, or the bound is reached.
        compiled: the search ran compiled by numba.
    """

    orders: Orders
    peak: float
    finished: bool = False
    compiled: bool = False


def lower_memory(ops: Operations, orders: Orders, latency: int, work: Work, options: tuple[int, int]) -> MemorySearch:
    """Return a schedule that ends by ``latency`` with less memory, or the given one.

    Args:
        orders: a schedule that ends by ``latency``. work: that may be spent.
        options: seed, and threads of CP-SAT.
    """
    found = MemorySearch(orders, max(peaks(ops, orders)))
    bound = memory_bound(ops, latency)
    if found.peak <= bound * (1 + 1e-9):
        found.finished = True
        return found
    _by_corridor(ops, latency, bound, found, work, options)
    if not found.finished:
        found.compiled = kernels_for(work.most_s - work.spent_s) is not None
        if ops.total <= LARGE:
            _by_changes(ops, latency, bound, found, work, options[0])
        _by_rules(ops, latency, bound, found, work, options[0])
    return found


def _by_corridor(
    ops: Operations, latency: int, bound: float, found: MemorySearch, work: Work, options: tuple[int, int]
) -> None:
    """Try the bound itself with CP-SAT, in wider and wider corridors."""
    if critical_chain(ops, latency) is None or ops.total > MOST_OPERATIONS:
        return
    seed, workers = options
    end_s = work.spent_s + CORRIDOR_SHARE * (work.most_s - work.spent_s)
    for width in WIDTHS:
        if work.spent_s < end_s:
            orders, spent_s = fits(ops, latency, bound, width, (end_s - work.spent_s, workers, seed))
            work.spent_s += spent_s
            if orders is not None:
                found.orders, found.peak, found.finished = orders, max(peaks(ops, orders)), True
                return


def _by_changes(ops: Operations, latency: int, bound: float, found: MemorySearch, work: Work, seed: int) -> None:
    """Lower the capacity by a share of the least memory so far, which is halved where attempts find no schedule.

    Attempts start from rules until these fail once, then from the schedule of least memory so far.
    """
    kernels = kernels_for(work.most_s - work.spent_s)
    share, failed, by_rules = FIRST_STEP, 0, True
    left_s = work.most_s - work.spent_s
    until_s = work.spent_s + CHANGES_SHARE * left_s
    while share >= LEAST_STEP and work.spent_s < until_s and found.peak > bound * (1 + 1e-9):
        capacity = max(bound, found.peak * (1 - share))
        start = None if by_rules else squeezed(ops, found.orders, limits(ops, capacity))
        orders = _within(ops, capacity, latency, (work, left_s / ATTEMPTS, seed + failed), kernels, start)
        if orders is not None:
            found.orders, found.peak = orders, max(peaks(ops, orders))
            continue
        failed += 1
        if by_rules or failed % TRIES == 0:
            share /= 2
        by_rules = False


def _within(
    ops: Operations,
    capacity: float,
    latency: int,
    spent: tuple[Work, float, int],
    kernels: Kernels | None,
    start: Orders | None,
) -> Orders | None:
    """Return orders within capacity and latency, None if none were found, by changes of given ones or of those of a rule.

    Args:
        spent: work, the seconds of it for this attempt, and seed.
    """
    work, attempt_s, seed = spent
    if start is None:
        one_pass = Work(0.0)
        one_pass.spend(ops.total, kernels is not None)
        passes = max(LEAST_PASSES, int(RULES_SHARE * attempt_s / one_pass.spent_s / 2))  # in both directions of time
        compiled = None if kernels is None else kernels.list_pass
        ruled = orders_within(ops, capacity, latency, (work, seed, min(PASSES, passes)), compiled)
        if ruled is None or ruled[0] == 0:
            return None if ruled is None else ruled[1]
        start = ruled[1]
    search = OrderSearch(ops, limits(ops, capacity), latency, kernels)
    energy, orders = search.search(start, (work, (1 - RULES_SHARE) * attempt_s, seed))
    return orders if energy == 0 else None


def _by_rules(ops: Operations, latency: int, bound: float, found: MemorySearch, work: Work, seed: int) -> None:
    """Bisect capacities between the bound and the least memory so far, each with a few seeds; then once more, just below it.

    Above LARGE operations, orders that rules leave late by little are changed; where they are late by more, no second seed is
    tried.
    """
    kernels = kernels_for(work.most_s - work.spent_s)
    compiled = None if kernels is None else kernels.list_pass
    one_pass = Work(0.0)
    one_pass.spend(ops.total, kernels is not None)
    left_s = work.most_s - work.spent_s
    passes = min(PASSES, max(LEAST_PASSES, int(left_s / ATTEMPTS / one_pass.spent_s / 2)))  # in both directions of time
    near = NEAR * sum(ops.duration) / len(ops) if ops.total > LARGE else 0.0
    low, tried, failed, rounds = bound, 0, 0, 0
    while not work.over and found.peak > bound * (1 + 1e-9):
        capacity = max(bound, math.sqrt(low * found.peak))
        answer = orders_within(ops, capacity, latency, (work, seed + tried, passes), compiled, near)
        is_near = answer is not None and answer[0] <= near
        if answer is not None and is_near and answer[0] > 0:
            search = OrderSearch(ops, limits(ops, capacity), latency, kernels)
            answer = search.search(answer[1], (work, left_s / CHANGES_PART, seed + tried))
        if answer is not None and answer[0] == 0:
            found.orders, found.peak, failed = answer[1], max(peaks(ops, answer[1])), 0
        else:
            tried, failed = tried + 1, failed + 1
            if failed == TRIES or (near > 0 and not is_near):
                low, failed = capacity, 0
        if found.peak < low * (1 + LEAST_STEP):
            rounds += 1
            if rounds == ROUNDS:
                break
            low = max(bound, AGAIN * found.peak)
    found.finished = not work.over or found.peak <= bound * (1 + 1e-9)
