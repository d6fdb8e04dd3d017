"""Rounds a makespan to whole plans: groups of sorted items that end in time, longest items first.

Input: ``SortedWork``. A group that fits into the batch at once needs exactly

    start and sync + first prefill call + a * longest + sum of loads .

One that refills its s slots, longest response first, needs at most the same with a * longest replaced by a * I and a prefill
call for every response beyond s, where (longest processing time first, after Graham 1969)

    I <= max(longest, max over j > s of (sum_{i <= j} n_i) / s + (1 - 1/s) n_j) :

response j starts once a slot is free, and until then all slots worked on the responses before it. Under ``preempt``
recomputed responses may add to that. Where neither slots nor memory bind, next-fit at M + w_max, w_max the largest load, costs
no more than the relaxation at M. ``solver.planning.single_kind.fill`` makes better use of leftovers and of slots that are free
again.
"""

from __future__ import annotations

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.planning.single_kind.items import SortedWork


def next_fit(work: SortedWork, makespan_s: float) -> IntArray | None:
    """Return (N+1,) edges of contiguous groups of items, each filled until its time would exceed the makespan.

    None if that takes more actors than there are.
    """
    return _edges(work, makespan_s, work.max_actors, refills=True)


def shortest_next_fit_s(work: SortedWork) -> float:
    """Return the least makespan for which next-fit finds groups, by bisection."""
    low, high = work.shortest_makespan_s, work.longest_makespan_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if next_fit(work, middle) is not None else (middle, high)
    return high


def wave_edges(work: SortedWork, makespan_s: float, most: int) -> IntArray | None:
    """Return (W+1,) edges of contiguous groups that each fit into the batch at once and end by the makespan on an actor of
    their own.

    None if there are more than ``most`` of them, or an item is late even alone.
    """
    return _edges(work, makespan_s, most, refills=False)


def _edges(work: SortedWork, makespan_s: float, most_groups: int, refills: bool) -> IntArray | None:
    total = len(work)
    simple = work.previous.max(initial=-1) < 0
    edges = [0]
    while edges[-1] < total:
        first = edges[-1]
        if len(edges) > most_groups:
            return None
        room = makespan_s - work.ready_of(len(edges) - 1) - work.call_s - work.base_s * float(work.length[first])
        room += 1e-9 * max(makespan_s, 1.0)
        if room < 0:
            return None
        if simple:
            most = int(work.load.searchsorted(work.load[first] + room, side="right")) - 1
        else:
            most = first + _shared_prefix(work, first, room)
        last = min(most, int(work.held.searchsorted(work.held[first] + work.kv_capacity_tokens, side="right")) - 1)
        last = min(last, int(work.edge.searchsorted(work.edge[first] + work.max_batch, side="right")) - 1)
        if refills and last < most:
            last = max(last, _refilled(work, first, most, room))
        if last <= first:
            return None
        edges.append(min(last, total))
    return np.array(edges, dtype=np.int64)


def loads_in_groups(work: SortedWork, edges: IntArray) -> FloatArray:
    """Return the (n,) loads of the n items from the first to the last edge; each group between two edges computes a
    prompt once."""
    first, last = edges[0], edges[-1]
    shared = work.previous[first:last] >= np.repeat(edges[:-1], np.diff(edges))
    return np.asarray(work.item_load[first:last] - np.where(shared, work.repeated[first:last], 0.0))


def _shared_prefix(work: SortedWork, first: int, room: float) -> int:
    """Return how many items from ``first`` on have loads within ``room`` when they share their prompts' prefill."""
    most = int(work.load.searchsorted(work.load[first] + room, side="right"))  # by the least that they can cost
    loads = np.cumsum(loads_in_groups(work, np.array([first, min(most, len(work))])))
    return int(loads.searchsorted(room, side="right"))


def _refilled(work: SortedWork, first: int, most: int, room: float) -> int:
    """Return the last edge, up to ``most``, of a group from ``first`` that refills its slots and stays within
    ``room`` over its longest."""
    s = work.slots
    responses = (work.edge[first + 1 : most + 1] - work.edge[first]).astype(float)
    steps = (work.steps[first + 1 : most + 1] - work.steps[first]) / s
    beyond = np.where(responses > s, steps + (1 - 1 / s) * _last_to_start(work, first, most), 0.0)
    longest = float(work.length[first])
    iterations = np.maximum.accumulate(np.maximum(beyond, longest)) - longest
    time = np.cumsum(loads_in_groups(work, np.array([first, most]))) + work.base_s * iterations
    time += work.call_s * np.maximum(responses - s, 0.0)
    return first + int(np.maximum.accumulate(time).searchsorted(room, side="right"))


def _last_to_start(work: SortedWork, first: int, most: int) -> FloatArray:
    """Return (most - first,) the most iterations of the response that starts last in the group.

    That is its own length where items are responses, else the longest of the group.
    """
    if len(work.edge) == len(work.order) + 1:
        return work.length[first:most].astype(float)
    return np.full(most - first, float(work.length[first]))


def at_least(groups: list[IntArray], min_actors: int) -> list[IntArray]:
    """Return the groups with the largest of them halved until there are ``min_actors``; there must be as many items."""
    groups = list(groups)
    while len(groups) < min_actors:
        largest = max(range(len(groups)), key=lambda g: len(groups[g]))
        half = (len(groups[largest]) + 1) // 2
        groups[largest : largest + 1] = [groups[largest][:half], groups[largest][half:]]
    return groups
