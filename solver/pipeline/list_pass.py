"""One list-scheduling pass over plain arrays; the same source runs as Python on lists and compiled by numba on arrays.

Knows nothing of problems and rules: ``listing.py`` builds the arrays and calls it.
"""

from __future__ import annotations

from typing import Any

LATE, STUCK = -1, -2
NO_START = 1 << 62


def list_pass(shape: Any, rule: Any, latest: int, state: Any) -> int:
    """Fill ``state`` with a list schedule and return its latency, or LATE or STUCK.

    Commit, over and over, the device with the least next start (ties: the lowest device). On a device take the type with the
    least ``start + delay``, ties by priority, then by number.

    Args:
        shape: the problem, see ``listing.py``. rule: delay, priority, in-flight limit per type (0 for none).
        latest: give up as soon as a type cannot end early enough for this latency.
        state: (ends, order, free) to fill: end of each operation, types in order of each device, end of each device.
    """
    device, duration, count, offset, first, members, links, memory = shape
    before, before_hop, also, also_hop, after, after_also, tails = links
    taken, released, opens, frees, limit = memory
    delay, priority, most = rule
    ends, order, free = state
    devices, types = len(first) - 1, len(duration)
    done = [0] * types
    flying = [0] * types
    held = [0.0] * devices
    placed = [0] * devices
    start_of = [NO_START] * devices
    best_of = [-1] * devices
    left = 0
    base = [0] * devices
    for i in range(types):
        left += count[i]
        base[device[i]] += count[i]
    at = 0
    for d in range(devices):
        base[d], at = at, at + base[d]
        free[d] = 0
    latency = 0
    touched = list(range(max(devices, 3)))
    touches = devices
    while True:
        for number in range(touches):
            d = touched[number]
            best, best_key, best_start = -1, 0, NO_START
            for place in range(first[d], first[d + 1]):
                i = members[place]
                k = done[i]
                if k == count[i]:
                    continue
                j = before[i]
                ready = free[d]
                if j >= 0:
                    if done[j] <= k:
                        continue
                    ready = max(ready, ends[offset[j] + k] + before_hop[i])
                    j = also[i]
                    if j >= 0:
                        if done[j] <= k:
                            continue
                        ready = max(ready, ends[offset[j] + k] + also_hop[i])
                if taken[i] > 0 and held[d] + taken[i] > limit[d]:
                    continue
                if opens[i] and most[i] > 0 and flying[i] >= most[i]:
                    continue
                key = ready + delay[i]
                if best < 0 or key < best_key or (key == best_key and priority[i] < priority[best]):
                    best, best_key, best_start = i, key, ready
            best_of[d] = best
            start_of[d] = best_start
        if left == 0:
            return latency
        d, start = -1, NO_START
        for other in range(devices):
            if start_of[other] < start:
                d, start = other, start_of[other]
        if d < 0:
            return STUCK
        i = best_of[d]
        k = done[i]
        end = start + duration[i]
        if end + duration[i] * (count[i] - k - 1) + tails[i] > latest:
            return LATE
        done[i] = k + 1
        ends[offset[i] + k] = end
        order[base[d] + placed[d]] = i
        placed[d] += 1
        free[d] = end
        latency = max(latency, end)
        held[d] += taken[i] - released[i]
        if opens[i]:
            flying[i] += 1
        if frees[i] >= 0:
            flying[frees[i]] -= 1
        left -= 1
        touches = 1
        touched[0] = d
        if after[i] >= 0 and device[after[i]] != d:
            touched[touches] = device[after[i]]
            touches += 1
        if after_also[i] >= 0 and device[after_also[i]] != d:
            touched[touches] = device[after_also[i]]
            touches += 1
