"""Next-fit: an integer plan for a makespan, in contiguous groups of the sorted responses.

Knows ``SortedWork`` only. Groups fill up in order of length, longest first, each until its time would exceed the makespan.
An actor that takes its whole group at once needs exactly ``ready + a * longest + sum of loads``. One that refills its slots
needs at most ``ready + a * (sum n / s + longest) + sum of loads`` plus one prefill call per response: list scheduling ends
by (sum n) / s + (1 - 1/s) * longest iterations (Graham 1969); under ``preempt`` recomputed responses may add to that. Where
slots and memory do not bind, next-fit at M + w_max, w_max the largest load, costs no more than the relaxation at M.
"""

from __future__ import annotations

import itertools

import numpy as np

from solver.relaxation import SortedWork
from solver.workload import IntArray


def next_fit(work: SortedWork, makespan_s: float) -> list[tuple[int, int]] | None:
    """Groups as half-open ranges of sorted positions, or None when they take more actors than there are."""
    room = makespan_s - work.ready_at_most_s
    total = len(work.order)
    groups: list[tuple[int, int]] = []
    first = 0
    while first < total:
        if len(groups) == work.most_actors:
            return None
        longest = work.step_s * float(work.length[first])
        slack = 1e-9 * max(room, 1.0)
        at_once = min(
            int(np.searchsorted(work.load, work.load[first] + room - longest + slack, side="right")) - 1,
            int(np.searchsorted(work.held, work.held[first] + work.kv_capacity_tokens, side="right")) - 1,
            first + work.max_batch,
        )
        refilled = int(np.searchsorted(work.refill_load, work.refill_load[first] + room - longest + slack, side="right")) - 1
        last = min(total, max(at_once, refilled))
        if last <= first:
            return None
        groups.append((first, last))
        first = last
    return groups


def equal_counts(count: int, groups: int) -> list[tuple[int, int]]:
    """``groups`` half-open ranges over ``count`` positions whose sizes differ by at most one; none is empty."""
    edges: IntArray = np.linspace(0, count, min(groups, count) + 1).round().astype(np.int64)
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]
