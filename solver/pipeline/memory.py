"""Lowers the peak memory at a latency: CP-SAT in a corridor where one chain decides, else rules under a capacity.

A capacity is tried as a hard constraint. A corridor without a schedule, and rules that fail, prove nothing: only a schedule at
the memory bound is known to be optimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from solver.pipeline.bounds import memory_bound
from solver.pipeline.corridor import MOST_OPERATIONS, WIDTHS, critical_chain, fits
from solver.pipeline.evaluate import evaluate_orders, peaks
from solver.pipeline.listing import Orders
from solver.pipeline.operations import Operations
from solver.pipeline.rule_search import PASSES, orders_within
from solver.pipeline.search import Work

LEAST_STEP = 0.01  # the bisection ends at capacities that differ by this share
TRIES = 2  # seeds per capacity
ROUNDS, AGAIN = 3, 0.85  # bisections; all but the first begin at this share of the least memory so far
ATTEMPTS, LEAST_PASSES = 12, 100  # of the rest of the work, an attempt takes at most this part, but so many passes
CORRIDOR_SHARE = 0.5  # of the work, for CP-SAT


@dataclass
class MemorySearch:
    """The least memory found at a latency.

    Attributes:
        orders, peak: the schedule, and its peak memory.
        finished: nothing is left that the search would try, or the bound is reached.
        compiled: rules were tried compiled by numba.
    """

    orders: Orders
    peak: float
    finished: bool = False
    compiled: bool = False


def lower_memory(ops: Operations, orders: Orders, latency: int, work: Work, options: tuple[int, int]) -> MemorySearch:
    """Return a schedule that ends by ``latency`` with less memory, or the given one.

    Args:
        orders: a schedule that ends by ``latency``, when it does not stay. work: that may be spent.
        options: seed, and threads of CP-SAT.
    """
    found = MemorySearch(orders, max(peaks(ops, orders)))
    bound = memory_bound(ops, latency)
    if evaluate_orders(ops, orders).latency > latency:
        return found
    if found.peak <= bound * (1 + 1e-9):
        found.finished = True
        return found
    _by_corridor(ops, latency, bound, found, work, options)
    if not found.finished:
        _by_rules(ops, latency, bound, found, work, options[0])
    return found


@cache
def compiled_pass() -> Callable[..., int] | None:
    """Return the list-scheduling pass compiled by numba, None where numba is not installed."""
    try:
        from numba import njit
    except ImportError:
        return None
    from solver.pipeline.list_pass import list_pass

    compiled: Callable[..., int] = njit(list_pass)
    return compiled


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


def _by_rules(ops: Operations, latency: int, bound: float, found: MemorySearch, work: Work, seed: int) -> None:
    """Bisect capacities between the bound and the least memory so far, each with a few seeds; then once more, just below it."""
    compiled = compiled_pass()
    found.compiled = compiled is not None
    one_pass = Work(0.0)
    one_pass.spend(ops.total, found.compiled)
    passes = int((work.most_s - work.spent_s) / ATTEMPTS / one_pass.spent_s / 2)  # in both directions of time
    passes = min(PASSES, max(LEAST_PASSES, passes))
    low, failed, rounds = bound, 0, 0
    while not work.over:
        capacity = max(bound, math.sqrt(low * found.peak))
        answer = orders_within(ops, capacity, latency, (work, seed + failed, passes), compiled)
        if answer is not None and answer[0] == 0:
            found.orders, found.peak = answer[1], max(peaks(ops, answer[1]))
        else:
            failed += 1
            if failed % TRIES == 0:
                low = capacity
        if found.peak <= bound * (1 + 1e-9):
            found.finished = True
            return
        if found.peak < low * (1 + LEAST_STEP):
            rounds += 1
            if rounds == ROUNDS:
                found.finished = True
                return
            low = max(bound, AGAIN * found.peak)
