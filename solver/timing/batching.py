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

There are four loops, by what binds. Nothing: all responses join at once. Slots alone, as memory is reserved and holds any full
batch: a response joins when another one leaves. Slots and memory: the same with tokens counted. Memory that is not reserved but
counted as it grows: responses are evicted, and the loop goes from event to event. The last one covers reserved memory as well,
but the pass over the responses is 2 to 3 times as fast. Why slots alone have a loop of their own: docs/decisions/not_kept.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from solver.model.admission import Admission
from solver.model.workload import IntArray
from solver.timing.batch import Batch
from solver.timing.residency import NO_PIECES, Residency

FEW, MANY = 64, 1024  # responses whose prompts are checked against the budget together: at least, and at first
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
    if _only_slots_bind(reserved, batch.admission):
        ready[waiting], pieces = _joins_by_slots(decode, prefill, batch.admission.max_batch, budget)
    else:
        running = int(waiting.searchsorted(batch.running))
        ready[waiting], pieces = _joins_by_slots_and_memory(decode, prefill, reserved, batch.admission, running, budget)
    first = ready.copy()
    if pieces.shape[1]:
        pieces[1] = waiting[pieces[1]]
        first[pieces[1, ::-1]] = pieces[0, ::-1]  # the first chunk of each is written last
    first[: batch.running] = 0
    return Residency(np.arange(len(batch)), first, ready + batch.decode, batch.context, batch.prefill, ready, pieces)


def _only_slots_bind(reserved: IntArray, admission: Admission) -> bool:
    """Return whether any responses that fill the slots also fit into memory, so that memory never matters."""
    slots = min(admission.max_batch, len(reserved))
    if slots * int(reserved.max(initial=0)) <= admission.kv_capacity_tokens:
        return True
    return int(np.partition(reserved, -slots)[-slots:].sum()) <= admission.kv_capacity_tokens


def _joins_by_slots(decode: IntArray, prefill: IntArray, slots: int, budget: int) -> tuple[IntArray, IntArray]:
    """Return the (n,) iterations in which responses are ready, and their (3, Q) chunks before (``Residency.pieces``).

    In a full batch a response joins when another one leaves: a heap of the ends says when. While the prompts of those that
    join fit the budget, that is so with a budget too, and what iterations feed is checked for many responses together. Where
    prompts do not fit, iterations are taken one by one until the batch is full again.

    Args:
        decode: (n,) iterations in which each gets a token, at least 1.
        prefill: (n,) tokens that are fed to each until it is ready, the last one included, at least 1.
    """
    count, left, ready = len(decode), decode.tolist(), np.zeros(len(decode), np.int64)
    if budget == NO_BUDGET:
        runs = np.flatnonzero(np.diff(decode, prepend=-1))
        if 2 * len(runs) < count:
            return _joins_by_run(decode, runs, slots), NO_PIECES
        ends = sorted(left[:slots])  # a heap
        ready[slots:] = [heapreplace(ends, ends[0] + length) for length in left[slots:]]
        return ready, NO_PIECES
    prompts = np.append(0, prefill.cumsum()).tolist()  # tokens that are fed to all before each one
    pieces: list[tuple[int, int, int]] = []
    ends = []  # a heap of when those that are ready leave
    now = place = fed = 0  # place: the first that is not ready; fed: tokens to it and all before
    resume, together = 0, MANY  # where to check responses together again, and how many
    while place < count:
        if len(ends) == slots and place >= resume:  # nobody is half computed: there is no slot
            before, until = ends.copy(), min(place + together, count)
            joins = np.array([heapreplace(ends, ends[0] + length) for length in left[place:until]], dtype=np.int64)
            fits = np.bincount(joins - joins[0], prefill[place:until] - 1) <= budget - slots
            if until == count and fits.all():
                ready[place:] = joins
                break
            fits[-1] &= until == count  # else further responses join there
            now = int(joins[0] + fits.argmin())
            known = int(joins.searchsorted(now))
            ready[place : place + known] = joins[:known]
            ends = [end for end in before + (joins + decode[place:until])[:known].tolist() if end >= now]
            heapify(ends)
            place += known
            fed, resume = prompts[place], place if now == joins[-1] else place + FEW
            together = max(FEW, 4 * known)
        while ends and ends[0] <= now:
            heappop(ends)
        most = min(place + slots - len(ends), count)
        feeds = fed + budget - len(ends)
        if prompts[most] <= feeds:
            stop, fed = most, prompts[most]
        else:
            stop = bisect_right(prompts, feeds, place, most) - 1
            if begun := feeds - max(fed, prompts[stop]):
                pieces.append((now, stop, begun))
            fed = feeds
        if stop > place:
            ready[place:stop] = now
            for length in left[place:stop]:
                heappush(ends, now + length)
            place = stop
        now = ends[0] if stop == most else now + 1
    return ready, np.array(pieces, dtype=np.int64).reshape(-1, 3).T


def _joins_by_run(decode: IntArray, runs: IntArray, slots: int) -> IntArray:
    """Return the iterations in which responses join without a budget; neighbours of equal length are scheduled together, from
    each of ``runs`` to the next. This is 2 to 5 times as fast for the sorted responses of a planner."""
    free_at, free = [0], {0: slots}  # a heap of the iterations from which slots are free, and how many are
    joins, counts = [], []
    for length, remaining in zip(decode[runs].tolist(), np.diff(runs, append=len(decode)).tolist(), strict=True):
        while remaining:
            now = free_at[0]
            count = free[now]
            if count > remaining:
                free[now] = count - remaining
                count = remaining
            else:
                heappop(free_at)
                del free[now]
            joins.append(now)
            counts.append(count)
            remaining -= count
            now += length
            if now in free:
                free[now] += count
            else:
                free[now] = count
                heappush(free_at, now)
    return np.repeat(np.array(joins, dtype=np.int64), counts)


def _joins_by_slots_and_memory(
    decode: IntArray, prefill: IntArray, reserved: IntArray, admission: Admission, running: int, budget: int
) -> tuple[IntArray, IntArray]:
    """Return ``_joins_by_slots`` where reserved memory may bind as well; the first ``running`` are in the batch in any case."""
    capacity, slots = admission.kv_capacity_tokens, admission.max_batch
    budget = min(budget, int(prefill.sum()) + len(prefill) + 1)  # more is never fed; small numbers are fast
    unit = int(reserved.max()) + 1  # an entry of the heap is the iteration in which a response leaves, and its tokens
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
