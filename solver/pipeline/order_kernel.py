"""Anneals the orders of a pipeline under a memory capacity; the same source runs as Python on lists and compiled by numba.

Memory of a device depends on its order alone, so the capacity is hard: a change that exceeds it is refused before anything is
timed. What is searched is the latency. Changes move one of two neighbours on a critical path. Knows nothing of problems:
``order_search.py`` builds the arrays and calls ``anneal``. An operation is a number; a place is its position in the orders of
all devices, one after the other.

Args that all functions share, tuples of arrays:
    shape: duration, device, operation before, hop after it, up to two operations after (-1 for none), first place of each
        device, least tail of each device, (latency,).
    memory: type, memory taken, memory released of each operation, capacity of each device.
    state: operation at each place, place of each operation, its end, sums of work and memory before each place.
    scratch: per device the first place to time anew, next place, time; new ends, devices to go on with, critical places,
        (operations timed,).
"""

from __future__ import annotations

import math
from typing import Any

KERNELS = ("uniform", "energy_of", "retime", "trace", "shift", "reach", "fits", "keep", "anneal")  # callees first

MODULUS, FACTOR = 2147483647, 48271  # a random stream that is the same in Python and compiled
MEAN_WEIGHT = 0.3  # of the mean lateness of devices beside that of the latest one
ANY_LATE = 0.3  # of critical paths end at any late device instead of the latest
SWAPS = 0.5  # of changes exchange two neighbours; the others move one by 2 to FARTHEST places
FARTHEST = 8
FAILURES = 4  # changes refused in a row, after which another critical path is traced
CHANGE = 30  # work of a change beside the operations that it times, in operations
LATE = -1.0


def uniform(stream: Any) -> float:
    """Return the next random number in (0, 1) of a stream, and advance it."""
    stream[0] = stream[0] * FACTOR % MODULUS
    return float(stream[0] / MODULUS)


def energy_of(shape: Any, ends: Any) -> float:
    """Return how late devices are that end at these times: the latest one, and a little of their mean."""
    least_tail, latency = shape[7], shape[8]
    worst, total = 0, 0
    for d in range(len(ends)):
        late = max(0, ends[d] + least_tail[d] - latency[0])
        worst = max(worst, late)
        total += late
    return float(worst + MEAN_WEIGHT * total / len(ends))


def retime(shape: Any, state: Any, scratch: Any, since: int, most: float) -> float:
    """Fill the new ends of all operations that started at ``since`` or later; return the energy, or LATE if above ``most``.

    An order that deadlocks is late, too. A device stops as soon as its remaining work makes it too late.
    """
    duration, device, before, hop, after, also, first, least_tail, latency = shape
    sequence, place, ends, worked, _ = state
    began, at, free, new_ends, stack, _, timed = scratch
    latest, depth = latency[0] + int(most), len(began)
    for d in range(len(began)):
        low, high = first[d], first[d + 1]
        while low < high:
            middle = (low + high) // 2
            if ends[sequence[middle]] - duration[sequence[middle]] >= since:
                high = middle
            else:
                low = middle + 1
        began[d] = at[d] = low
        free[d] = ends[sequence[low - 1]] if low > first[d] else 0
        stack[d] = d
    while depth:
        depth -= 1
        d = stack[depth]
        now, left = free[d], least_tail[d] + worked[first[d + 1]] - worked[at[d]]
        while at[d] < first[d + 1]:
            x = sequence[at[d]]
            if before[x] >= 0:
                there = device[before[x]]
                if place[before[x]] >= at[there]:
                    break  # goes on when the operation before is timed
                ready = new_ends[before[x]] if place[before[x]] >= began[there] else ends[before[x]]
                now = max(now, ready + hop[x])
            if now + left > latest:
                return LATE
            now += duration[x]
            left -= duration[x]
            new_ends[x] = now
            at[d] += 1
            timed[0] += 1
            for then in (after[x], also[x]):
                if then >= 0 and device[then] != d and sequence[at[device[then]]] == then:
                    stack[depth] = device[then]
                    depth += 1
        free[d] = now
    for d in range(len(began)):
        if at[d] < first[d + 1]:
            return LATE
    energy = energy_of(shape, free)
    return energy if energy <= most else LATE


def trace(shape: Any, state: Any, scratch: Any, stream: Any) -> int:
    """Collect the places of neighbours on a critical path of a late device; return how many, each with its successor."""
    duration, device, before, hop, _, _, first, least_tail, latency = shape
    sequence, place, ends, _, _ = state
    critical = scratch[5]
    any_late = uniform(stream) < ANY_LATE
    x, most, ties, found = -1, 0, 0, 0
    for d in range(len(least_tail)):
        if first[d + 1] > first[d]:
            late = ends[sequence[first[d + 1] - 1]] + least_tail[d] - latency[0]
            late = min(late, 1) if any_late else late
            if late > most:
                most, ties = late, 0
            if late == most > 0:
                ties += 1
                if uniform(stream) * ties < 1.0:
                    x = sequence[first[d + 1] - 1]
    while x >= 0:
        start, p, needs = ends[x] - duration[x], place[x], before[x]
        by_device = p > first[device[x]] and ends[sequence[p - 1]] == start
        by_chain = needs >= 0 and ends[needs] + hop[x] == start
        if by_device and by_chain and sequence[p - 1] != needs:
            by_device = uniform(stream) < 0.5
        if by_device:
            if sequence[p - 1] != needs:
                critical[found] = p - 1
                found += 1
            x = sequence[p - 1]
        else:
            x = needs if by_chain else -1
    return found


def shift(state: Any, source: int, target: int) -> None:
    """Move an operation from one place to another of the same device; those between close the gap."""
    sequence, place = state[0], state[1]
    x = sequence[source]
    step = 1 if target > source else -1
    for p in range(source, target, step):
        sequence[p] = sequence[p + step]
        place[sequence[p]] = p
    sequence[target] = x
    place[x] = target


def reach(shape: Any, state: Any, kind: Any, places: Any) -> int:
    """Return how far an operation gets from its place to another: not past its own type, nor what it follows or leads to."""
    device, before, first = shape[1], shape[2], shape[6]
    sequence = state[0]
    p, target = int(places[0]), int(places[1])
    x = sequence[p]
    step = 1 if target > p else -1
    while p != target and first[device[x]] <= p + step < first[device[x] + 1]:
        other = sequence[p + step]
        if kind[other] == kind[x] or before[other] == x or before[x] == other:
            break
        p += step
    return p


def fits(shape: Any, state: Any, memory: Any, low: int, high: int) -> bool:
    """Return whether the operations at places ``low`` to ``high`` stay within the capacity of their device."""
    sequence, held = state[0], state[4]
    _, taken, released, capacity = memory
    now, most = held[low], capacity[shape[1][sequence[low]]]
    for p in range(low, high + 1):
        now += taken[sequence[p]]
        if now > most:
            return False
        now -= released[sequence[p]]
    return True


def keep(shape: Any, state: Any, memory: Any, scratch: Any, places: Any) -> None:
    """Make new ends the ends, and sum work and memory anew over the places ``low`` to ``high``."""
    duration, first = shape[0], shape[6]
    sequence, _, ends, worked, held = state
    began, new_ends = scratch[0], scratch[3]
    for d in range(len(began)):
        for p in range(began[d], first[d + 1]):
            ends[sequence[p]] = new_ends[sequence[p]]
    for p in range(places[0], places[1]):
        worked[p + 1] = worked[p] + duration[sequence[p]]
        held[p + 1] = held[p] + memory[1][sequence[p]] - memory[2][sequence[p]]


def anneal(shape: Any, memory: Any, state: Any, scratch: Any, best: Any, plan: Any) -> float:
    """Anneal ``state``, fill ``best`` with the best order, and return its energy; 0 ends the search.

    Args:
        plan: random stream, work in operations timed, first and last temperature, energy of the state.
    """
    stream, most_timed, hot, cold, energy = plan
    duration, sequence, ends, critical, timed = shape[0], state[0], state[2], scratch[5], scratch[6]
    least, found, refused = energy, 0, FAILURES
    while least > 0.0 and timed[0] < most_timed:
        timed[0] += CHANGE
        if refused >= FAILURES:
            found, refused = trace(shape, state, scratch, stream), 0
            if not found:
                continue
        refused += 1
        source = critical[min(found - 1, int(uniform(stream) * found))]
        target, drawn = source + 1, uniform(stream)
        if drawn > SWAPS:
            far = 2 + int(uniform(stream) * (FARTHEST - 1))
            if drawn > SWAPS + (1.0 - SWAPS) / 2:
                source, target = source + 1, source + 1 - far
            else:
                target = source + far
        target = reach(shape, state, memory[0], (source, target))
        if target == source:
            continue
        low, high = min(source, target), max(source, target)
        since = ends[sequence[low]] - duration[sequence[low]]
        shift(state, source, target)
        changed = LATE
        if fits(shape, state, memory, low, high):
            temperature = hot * (cold / hot) ** (timed[0] / most_timed)
            changed = retime(shape, state, scratch, since, energy - temperature * math.log(uniform(stream)))
        if changed == LATE:
            shift(state, target, source)
            continue
        energy, refused = changed, FAILURES
        keep(shape, state, memory, scratch, (low, high))
        if energy < least:
            least = energy
            for p in range(len(best)):
                best[p] = sequence[p]
    return float(least)
