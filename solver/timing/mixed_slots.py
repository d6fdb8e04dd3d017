"""Mixed prefill on one actor where only slots and the budget bind: memory is reserved, and suffices for any full batch.

In a full batch a response joins when another one leaves. While prompts of those that join fit the budget, a heap of the ends
says when, as it does without a budget, and what iterations feed is checked for many responses together. Where prompts do not
fit, iterations are taken one by one until the batch is full again.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from solver.model.workload import IntArray

FEW, MANY = 64, 1024  # responses that are checked together: at least, and at first


def ready_with_slots(lengths: IntArray, needed: IntArray, slots: int, budget: int) -> tuple[IntArray, IntArray]:
    """Return the (n,) iterations in which responses are ready, and their (3, Q) chunks before (``Residency.pieces``).

    Args:
        lengths: (n,) iterations in which each gets a token, at least 1.
        needed: (n,) tokens that are fed to each until it is ready, the last one included, at least 1.
    """
    count, left, ready = len(lengths), lengths.tolist(), np.zeros(len(lengths), np.int64)
    prompts = np.append(0, needed.cumsum()).tolist()  # tokens that are fed to all before each one
    pieces: list[tuple[int, int, int]] = []
    ends: list[int] = []  # a heap of when those that are ready leave
    now = place = fed = 0  # place: the first that is not ready; fed: tokens to it and all before
    resume, together = 0, MANY  # where to check responses together again, and how many
    while place < count:
        if len(ends) == slots and place >= resume:  # nobody is half computed: there is no slot
            before, until = ends.copy(), min(place + together, count)
            joins = np.array([heapreplace(ends, ends[0] + length) for length in left[place:until]], dtype=np.int64)
            fits = np.bincount(joins - joins[0], needed[place:until] - 1) <= budget - slots
            if until == count and fits.all():
                ready[place:] = joins
                break
            fits[-1] &= until == count  # else further responses join there
            now = int(joins[0] + fits.argmin())
            known = int(joins.searchsorted(now))
            ready[place : place + known] = joins[:known]
            ends = [end for end in before + (joins + lengths[place:until])[:known].tolist() if end >= now]
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
