"""Continuous batching on one actor, in whole iterations: which responses are in the batch when, and what each iteration feeds.

The planner and the simulated engine both use it, so a plan is timed exactly as it is simulated. ``solver.model.admission`` has
the rule by which responses join and are evicted. Without a token budget every context is computed in the iteration in which its
response joins.

**Mixed prefill** (vLLM's and SGLang's) has a budget of tokens per iteration. In every iteration

1. each response of the batch whose context is computed is fed one token;
2. what is left of the budget goes to responses of the batch with missing context, in order of admission;
3. while some is left, responses join from the front of the queue, as admission lets them, and are fed likewise.

A response that gets less than its missing context is given a chunk and continues in the next iteration. The iteration that
feeds the last missing token also generates its first token. A response with a complete KV cache is fed one token. So at most
one response of the batch, the youngest, is half computed, and the budget, which is at least the slots, always advances it.

There are three cases, by what binds. Nothing: all responses join at once. Slots and reserved memory: a response joins when
others leave, in one pass over the responses. Memory that is counted as it grows: responses are evicted, and a loop goes from
event to event. That loop could do the reserved case as well (with reserved tokens as contexts that do not grow), but it takes 6
to 13 times as long: ``schedule`` with 64 to 16,384 lognormal lengths in memory for 40 of them.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import numpy as np

from solver.model.admission import Admission
from solver.model.workload import IntArray
from solver.timing.batch import Batch
from solver.timing.residency import Residency

NO_BUDGET = 1 << 62
NOT_READY = -1


def schedule(batch: Batch, token_budget: int | None = None) -> Residency:
    """Return when each response is in the batch.

    Args:
        token_budget: the most tokens that an iteration feeds; None where every context is computed in the iteration in which
            its response joins.
    """
    budget = NO_BUDGET if token_budget is None else token_budget
    if batch.fits_at_once() and (budget == NO_BUDGET or _fed_at_once(batch) <= budget):
        count = len(batch)
        return Residency.at_once(
            np.arange(count), np.zeros(count, np.int64), batch.decode.astype(np.int64), batch.context, batch.prefill
        )
    return _evicting(batch, budget) if batch.admission.rule == "preempt" else _reserving(batch, budget)


def _fed_at_once(batch: Batch) -> int:
    """Return the tokens that an iteration feeds in which all responses join."""
    return int(np.maximum(batch.prefill, 1) @ (batch.decode > 0))


def _reserving(batch: Batch, budget: int) -> Residency:
    """Schedule where memory is reserved: nobody is evicted, so responses, in order, join once and stay."""
    waiting = np.flatnonzero(batch.decode > 0)
    ready = np.zeros(len(batch), np.int64)
    decode, reserved, prefill = (x[waiting] for x in (batch.decode, batch.reserved, np.maximum(batch.prefill, 1)))
    running = int(waiting.searchsorted(batch.running))
    ready[waiting], pieces = _joins(decode, prefill, reserved, batch.admission, running, budget)
    first = ready.copy()
    if pieces.shape[1]:
        pieces[1] = waiting[pieces[1]]
        first[pieces[1, ::-1]] = pieces[0, ::-1]  # the first chunk of each is written last
    first[: batch.running] = 0
    return Residency(np.arange(len(batch)), first, ready + batch.decode, batch.context, batch.prefill, ready, pieces)


def _joins(
    decode: IntArray, prefill: IntArray, reserved: IntArray, admission: Admission, running: int, budget: int
) -> tuple[IntArray, IntArray]:
    """Return the (n,) iterations in which responses are ready, and their (3, Q) chunks before (``Residency.pieces``).

    Args:
        decode: (n,) iterations in which each gets a token, at least 1.
        prefill: (n,) tokens that are fed to each until it is ready, the last one included, at least 1.
        reserved: (n,) tokens of memory. running: the first so many are in the batch in any case.
    """
    capacity, slots = admission.kv_capacity_tokens, admission.max_batch
    budget = min(budget, int(prefill.sum()) + len(prefill) + 1)  # more is never fed; small numbers are fast
    unit = int(reserved.max(initial=0)) + 1  # an entry of the heap is the iteration in which a response leaves, and its tokens
    ends: list[int] = []  # a heap, of those that are ready and stay beyond iteration ``now``
    now = used = 0
    room = budget  # of iteration ``now``
    ready, pieces = [], []
    for i, (length, need, tokens) in enumerate(zip(decode.tolist(), prefill.tolist(), reserved.tolist(), strict=True)):
        while not room or (ends and (used + tokens > capacity or len(ends) >= slots) and i >= running):
            now = ends[0] // unit if room else now + 1
            until = (now + 1) * unit
            while ends and ends[0] < until:
                used -= heappop(ends) % unit
            room = budget - len(ends)
        while need > room:
            pieces.append((now, i, room))
            need -= room
            now += 1
            while ends and ends[0] < (now + 1) * unit:
                used -= heappop(ends) % unit
            room = budget - len(ends)
        room -= need
        ready.append(now)
        heappush(ends, (now + length) * unit + tokens)
        used += tokens
    return np.array(ready, dtype=np.int64), np.array(pieces, dtype=np.int64).reshape(-1, 3).T


def _evicting(batch: Batch, budget: int) -> Residency:
    """Schedule where memory is counted as it grows. It goes from event to event: a completion, an eviction, or the next
    iteration while prompts are fed.

    The code inlines the rule of ``solver.model.admission`` for speed: it is evaluated at every event of every group that is
    timed.
    """
    slots, capacity = batch.admission.max_batch, batch.admission.kv_capacity_tokens
    left, context, missing = batch.decode.tolist(), batch.context.tolist(), batch.prefill.tolist()
    growth = [1] * len(batch) if batch.growth is None else batch.growth.tolist()
    queue = [i for i in range(len(batch) - 1, batch.running - 1, -1) if left[i] > 0]  # its front is the end of the list
    rows: list[tuple[int, int, int, int, int, int]] = []  # response, first, last, context, missing, ready
    rows += [(i, 0, 0, context[i], missing[i], 0) for i in range(len(batch)) if left[i] == 0]
    pieces: list[tuple[int, int, int]] = []  # iteration, response, tokens: of all chunks but the last of each response
    ends = {i: NOT_READY for i in range(batch.running) if left[i] > 0}  # the batch in order of admission: when each is complete
    joined = [0] * len(batch)  # the iteration in which each joined last
    feeding = deque((i, missing[i] or 1) for i in ends)  # those of the batch that are not ready, and what they miss
    unit = len(batch)
    finishing: list[int] = []  # a heap of iteration * unit + response; those that were evicted since are still in it
    now, used = 0, sum(context[i] for i in ends)  # used: KV tokens of the batch as of iteration ``now``
    while queue or ends:
        while finishing and finishing[0] < (now + 1) * unit:
            end, i = divmod(heappop(finishing), unit)
            if ends.get(i) == end:
                del ends[i]
                rows.append((i, joined[i], end, context[i], missing[i], end - left[i]))
                used -= context[i] + growth[i] * left[i]
        if evicts := used > capacity and len(ends) > 1:
            while used > capacity and len(ends) > 1:
                i, end = ends.popitem()  # the youngest
                done = left[i] - (end - now) if end != NOT_READY else 0
                rows.append((i, joined[i], now, context[i], missing[i], now - done))
                used -= context[i] + growth[i] * done
                context[i] += round(growth[i] * done)
                left[i] -= done
                missing[i] = context[i]  # its KV cache is gone: recompute on return
                queue.append(i)
            if feeding:
                feeding = deque(entry for entry in feeding if entry[0] in ends)
        room = budget - len(ends) + len(feeding)
        while room > 0:
            if feeding:
                i, need = feeding.popleft()
            elif evicts or not queue:
                break
            else:
                i = queue[-1]
                if ends and (len(ends) >= slots or used + context[i] > capacity):
                    break
                queue.pop()
                joined[i] = now
                used += context[i]
                need = missing[i] or 1
            if need > room:
                pieces.append((now, i, room))
                feeding.appendleft((i, need - room))
                ends[i] = NOT_READY
                room = 0
            else:
                room -= need
                ends[i] = end = now + left[i]
                heappush(finishing, end * unit + i)
        if not ends:
            continue
        ready = len(ends) - len(feeding)
        grows = ready if batch.growth is None else sum(growth[j] for j, end in ends.items() if end != NOT_READY)
        step = 1
        if not feeding and (room > 0 or ready >= slots):  # nothing but a completion or an eviction changes the batch
            while ends.get(finishing[0] % unit) != finishing[0] // unit:
                heappop(finishing)  # of a response that was evicted since
            step = finishing[0] // unit - now
            if ready > 1:
                step = min(step, max(1, int((capacity - used) // grows) + 1))
        used += step * grows
        now += step
    response, first, last, contexts, prefill, ready_at = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    chunks = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    if pieces:
        order = np.lexsort((first, response))
        keys = response[order] * (now + 1) + first[order]
        chunks[1] = order[keys.searchsorted(chunks[1] * (now + 1) + chunks[0], side="right") - 1]
    return Residency(response, first, last, contexts, prefill, ready_at, chunks)
