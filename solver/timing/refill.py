"""Refilling where memory is counted as it grows: the peak of a batch, and the schedule of completions and evictions."""

from __future__ import annotations

import heapq

import numpy as np

from solver.model.admission import Admission
from solver.model.workload import FloatArray, IntArray
from solver.timing.pass_tokens import PassTokens
from solver.timing.residency import Residency


def fits_at_once(
    remaining: IntArray, context: IntArray, max_tokens: IntArray, admission: Admission, passes: PassTokens | None = None
) -> bool:
    """Return whether the memory holds all responses at once, until the last is complete."""
    if admission.rule == "reserve":
        return int(max_tokens.sum()) <= admission.kv_capacity_tokens
    grown = remaining if passes is None else passes.growth * remaining
    if (context + grown).sum() <= admission.kv_capacity_tokens:
        return True
    growth = None if passes is None else passes.growth
    edges = np.array([0, len(remaining)])
    return bool(peak_tokens(remaining, context, edges, growth)[0] <= admission.kv_capacity_tokens)


def only_slots_bind(max_tokens: IntArray, admission: Admission) -> bool:
    """Return whether any responses that fill the slots also fit into memory, so that memory never matters."""
    if admission.rule != "reserve" or not len(max_tokens):
        return False
    slots = min(admission.max_batch, len(max_tokens))
    if slots * int(max_tokens.max()) <= admission.kv_capacity_tokens:
        return True
    return int(np.partition(max_tokens, -slots)[-slots:].sum()) <= admission.kv_capacity_tokens


def peak_tokens(
    remaining: IntArray, context: IntArray, edges: IntArray, growth: FloatArray | None = None
) -> IntArray | FloatArray:
    """Return the (G,) peak KV tokens of each group ``edges[g]:edges[g + 1]`` if all its responses join at once. Memory grows
    until a response completes, so the peak is in some response's last iteration.

    Args:
        growth: (n,) tokens that each response grows by per iteration, 1 when None.
    """
    sizes = np.diff(edges)
    group = np.repeat(np.arange(len(sizes)), sizes)
    shortest_first = np.lexsort((remaining, group))
    left = remaining[shortest_first]
    context_before = np.concatenate([[0], np.cumsum(context[shortest_first])])
    context_from_here = np.repeat(context_before[edges[1:]], sizes) - context_before[:-1]
    if growth is None:
        grows: IntArray | FloatArray = np.repeat(edges[1:], sizes) - np.arange(len(left))  # one token of each not complete
    else:
        growth_before = np.concatenate([[0.0], np.cumsum(growth[shortest_first])])
        grows = np.repeat(growth_before[edges[1:]], sizes) - growth_before[:-1]
    held = np.where(left > 0, context_from_here + grows * (left - 1), 0)
    return np.asarray(np.maximum.reduceat(held, edges[:-1]))


def schedule_with_refill(
    remaining: IntArray,
    context: IntArray,
    max_tokens: IntArray,
    prefill: IntArray,
    admission: Admission,
    running: int,
    passes: PassTokens | None = None,
) -> Residency:
    """Schedule the general case, jumping from event to event (completion or eviction) in whole iterations.

    The code inlines the rule of ``solver.model.admission`` for speed: it is evaluated at every event of every group that is
    timed.
    """
    preempt, slots, capacity = admission.rule == "preempt", admission.max_batch, admission.kv_capacity_tokens
    left, ctx, to_compute = remaining.tolist(), context.tolist(), prefill.tolist()
    growth = [1] * len(left) if passes is None else passes.growth.tolist()
    counts = ctx if preempt else max_tokens.tolist()  # what a response takes of the memory when it joins
    queue = [i for i in range(len(left) - 1, running - 1, -1) if left[i] > 0]  # the front of the queue is the end of the list
    rows: list[tuple[int, int, int, int, int]] = [(i, 0, 0, ctx[i], to_compute[i]) for i in range(len(left)) if left[i] == 0]
    ends: dict[int, int] = {}  # of those in the batch, in order of admission: the iteration in which each is complete
    unit = len(left)
    finishing: list[int] = []  # a heap of iteration * unit + response; those that were evicted since are still in it
    now = used = 0  # used: KV tokens counted by the admission rule, for `preempt` as of iteration `now`
    for i in range(running):
        if left[i] > 0:
            ends[i] = left[i]
            used += counts[i]
            heapq.heappush(finishing, left[i] * unit + i)
    while queue or ends:
        while finishing:
            end, i = divmod(finishing[0], unit)
            if ends.get(i) == end:
                if end > now:
                    break
                del ends[i]
                rows.append((i, now - left[i], now, ctx[i], to_compute[i]))
                used -= ctx[i] + growth[i] * left[i] if preempt else counts[i]
            heapq.heappop(finishing)
        if preempt and used > capacity and len(ends) > 1:
            while used > capacity and len(ends) > 1:
                i, end = ends.popitem()  # the youngest
                done = left[i] - (end - now)
                rows.append((i, now - done, now, ctx[i], to_compute[i]))
                used -= ctx[i] + growth[i] * done
                ctx[i] += round(growth[i] * done)
                left[i] -= done
                to_compute[i] = ctx[i]  # its KV cache is gone: recompute on return
                queue.append(i)
        else:
            while queue:
                i = queue[-1]
                if ends and (len(ends) >= slots or used + counts[i] > capacity):
                    break
                queue.pop()
                ends[i] = end = now + left[i]
                used += counts[i]
                heapq.heappush(finishing, end * unit + i)
        if not ends:
            continue
        while True:
            end, i = divmod(finishing[0], unit)
            if ends.get(i) == end:
                break
            heapq.heappop(finishing)  # of a response that was evicted since
        if preempt:
            batch = len(ends)
            grows = batch if passes is None else sum(growth[j] for j in ends)
            step = end - now
            if batch > 1:
                step = min(step, max(1, int((capacity - used) // grows) + 1))
            used += step * grows
            now += step
        else:
            now = end
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return Residency.at_once(*table.T)
