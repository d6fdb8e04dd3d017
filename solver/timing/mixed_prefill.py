"""Mixed prefill on one actor: which iteration feeds which chunk of which prompt, under a budget of tokens per iteration.

**The rule** (vLLM's and SGLang's), on top of ``solver.model.admission``. In every iteration

1. each response of the batch whose context is computed is fed one token;
2. what is left of the budget goes to responses of the batch with missing context, in order of admission;
3. while some is left, responses join from the front of the queue, as admission lets them, and are fed likewise.

A response that gets less than its missing context is given a chunk and continues in the next iteration. The iteration that
feeds the last missing token also generates its first token. A response with a complete KV cache is fed one token. So at most
one response of the batch, the youngest, is half computed, and the budget, which is at least the slots, always advances it.

Where no iteration of the schedule without a budget feeds more than the budget, that schedule is the one with it.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from solver.model.admission import Admission
from solver.model.workload import IntArray
from solver.timing.mixed_slots import ready_with_slots
from solver.timing.pass_tokens import PassTokens
from solver.timing.refill import only_slots_bind
from solver.timing.residency import Residency


def keeps_budget(residency: Residency, budget: int) -> bool:
    """Return whether no iteration of a schedule that computes every context at once feeds more than ``budget`` tokens."""
    if not len(residency.response) or int(residency.prefill.sum()) + len(residency.response) <= budget:
        return True
    batch, _, prompts = residency.per_iteration()
    return int((batch + prompts).max(initial=0)) <= budget


def exceeds_budget(remaining: IntArray, prefill: IntArray, max_tokens: IntArray, admission: Admission, budget: int) -> bool:
    """Return whether the responses that join an empty batch surely miss more than ``budget`` tokens, where memory is reserved.
    They are the first ones of the queue that slots and memory let in. False says nothing."""
    joining = min(admission.max_batch, len(remaining))
    if int(max_tokens[:joining].sum()) > admission.kv_capacity_tokens:
        return False
    return int(np.maximum(prefill[:joining], 1) @ (remaining[:joining] > 0)) > budget


def schedule_reserved(
    remaining: IntArray, context: IntArray, max_tokens: IntArray, prefill: IntArray, admission: Admission, budget: int
) -> Residency:
    """Schedule where memory is reserved and nobody is in the batch yet: responses, in order, join where slots, memory and
    budget let them."""
    waiting = np.flatnonzero(remaining > 0)
    ready = np.zeros(len(remaining), np.int64)
    lengths, reserved, needed = (x[waiting] for x in (remaining, max_tokens, np.maximum(prefill, 1)))
    if only_slots_bind(reserved, admission):
        ready[waiting], pieces = ready_with_slots(lengths, needed, admission.max_batch, budget)
    else:
        ready[waiting], pieces = _ready_with_memory(lengths, reserved, needed, admission, budget)
    pieces[1] = waiting[pieces[1]]
    first = ready.copy()
    first[pieces[1, ::-1]] = pieces[0, ::-1]  # the first chunk of each is written last
    return Residency(np.arange(len(remaining)), first, ready + remaining, context, prefill, ready, pieces)


def _ready_with_memory(
    lengths: IntArray, max_tokens: IntArray, needed: IntArray, admission: Admission, budget: int
) -> tuple[IntArray, IntArray]:
    """Return ``ready_with_slots`` where memory may bind as well."""
    capacity, slots = admission.kv_capacity_tokens, admission.max_batch
    columns = [x.tolist() for x in (lengths, max_tokens, needed)]
    horizon = int(lengths.max(initial=0)) + 2
    leaving, freed, leaves = [0] * horizon, [0] * horizon, bytearray(horizon)  # per iteration: how many, their tokens, whether
    now = used = batch = 0  # batch: responses that are ready before or in iteration ``now`` and have not left
    room = budget  # of iteration ``now``
    readies, pieces = [], []
    for i, (length, reserved, need) in enumerate(zip(*columns, strict=True)):
        while not room or (batch and (batch >= slots or used + reserved > capacity)):
            now = leaves.find(1, now + 1) if room else now + 1
            batch -= leaving[now]
            used -= freed[now]
            room = budget - batch
        while need > room:
            pieces.append((now, i, room))
            need -= room
            now += 1
            if now < horizon:
                batch -= leaving[now]
                used -= freed[now]
            room = budget - batch
        room -= need
        readies.append(now)
        end = now + length
        if end >= horizon:
            leaving += [0] * end
            freed += [0] * end
            leaves += bytes(end)
            horizon += end
        leaving[end] += 1
        freed[end] += reserved
        leaves[end] = 1
        batch += 1
        used += reserved
    return np.array(readies, dtype=np.int64), np.array(pieces, dtype=np.int64).reshape(-1, 3).T


def schedule_general(
    remaining: IntArray,
    context: IntArray,
    max_tokens: IntArray,
    prefill: IntArray,
    admission: Admission,
    budget: int,
    running: int,
    passes: PassTokens | None = None,
) -> Residency:
    """Schedule the general case, with evictions and responses that are in the batch already. It goes from event to event: a
    completion, an eviction, or the next iteration while prompts are fed."""
    preempt, slots, capacity = admission.rule == "preempt", admission.max_batch, admission.kv_capacity_tokens
    left, ctx, missing = remaining.tolist(), context.tolist(), prefill.tolist()
    counts = ctx if preempt else max_tokens.tolist()
    growth = [1] * len(left) if passes is None else passes.growth.tolist()
    queue = [i for i in range(len(left) - 1, running - 1, -1) if left[i] > 0]  # its front is the end of the list
    rows: list[tuple[int, int, int, int, int, int]] = []  # response, first, last, context, missing, ready
    rows += [(i, 0, 0, ctx[i], missing[i], 0) for i in range(len(left)) if left[i] == 0]
    pieces: list[tuple[int, int, int]] = []  # iteration, response, tokens: of all chunks but the last of each response
    joined = {i: 0 for i in range(running) if left[i] > 0}  # the batch in order of admission, with when each joined
    ends: dict[int, int] = {}  # of those of the batch whose context is computed: when each is complete
    feeding = deque((i, max(1, missing[i])) for i in joined)
    unit = len(left)
    finishing: list[int] = []  # a heap of iteration * unit + response; those that were evicted since are still in it
    now, used = 0, sum(counts[i] for i in joined)
    while queue or joined:
        while finishing and finishing[0] < (now + 1) * unit:
            end, i = divmod(heapq.heappop(finishing), unit)
            if ends.get(i) == end:
                del ends[i]
                rows.append((i, joined.pop(i), end, ctx[i], missing[i], end - left[i]))
                used -= ctx[i] + growth[i] * left[i] if preempt else counts[i]
        if not (preempt or queue or feeding):  # nothing changes any more what is left
            in_order = sorted((end, i) for i, end in ends.items())
            rows += [(i, joined[i], end, ctx[i], missing[i], end - left[i]) for end, i in in_order]
            now = in_order[-1][0] if in_order else now
            break
        evicts = preempt and used > capacity and len(joined) > 1
        while evicts and used > capacity and len(joined) > 1:
            i, joined_at = joined.popitem()  # the youngest
            done = left[i] - (ends.pop(i) - now) if i in ends else 0
            rows.append((i, joined_at, now, ctx[i], missing[i], now - done))
            used -= ctx[i] + growth[i] * done
            ctx[i] += round(growth[i] * done)
            left[i] -= done
            missing[i] = ctx[i]  # its KV cache is gone: recompute on return
            queue.append(i)
        if evicts:
            feeding = deque(entry for entry in feeding if entry[0] in joined)
        room = budget - len(ends)
        while room > 0:
            if not feeding:
                if evicts or not queue:
                    break
                i = queue[-1]
                if joined and (len(joined) >= slots or used + counts[i] > capacity):
                    break
                joined[queue.pop()] = now
                used += counts[i]
                feeding.append((i, max(1, missing[i])))
            i, need = feeding.popleft()
            fed = min(need, room)
            room -= fed
            if fed < need:
                feeding.appendleft((i, need - fed))
                pieces.append((now, i, fed))
            else:
                ends[i] = end = now + left[i]
                heapq.heappush(finishing, end * unit + i)
        if not joined:
            continue
        step, grows = 1, len(ends) if passes is None else sum(growth[j] for j in ends)
        if not feeding and (room > 0 or len(joined) >= slots):  # nothing but a completion or an eviction changes the batch
            while ends.get(finishing[0] % unit) != finishing[0] // unit:
                heapq.heappop(finishing)  # of a response that was evicted since
            step = finishing[0] // unit - now
            if preempt and len(joined) > 1:
                step = min(step, max(1, int((capacity - used) // grows) + 1))
        if preempt:
            used += step * grows
        now += step
    response, first, last, context, prefill, ready = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    chunks = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    order = np.lexsort((first, response))
    keys = response[order] * (now + 1) + first[order]
    chunks[1] = order[keys.searchsorted(chunks[1] * (now + 1) + chunks[0], side="right") - 1]
    return Residency(response, first, last, context, prefill, ready, chunks)
