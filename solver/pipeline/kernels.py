"""The inner loops of pipeline scheduling over plain arrays: one list-scheduling pass, and the annealing of orders.

The same source runs as Python on lists and compiled by numba on arrays, where numba is installed (extra ``pipeline``). The
results are the same. The loops know nothing of problems: ``listing.py`` and ``search.py`` build the arrays.

**Annealing.** Memory of a device depends on its order alone, so the capacity is hard: a change that exceeds it is refused
before anything is timed. What is searched is the latency. Changes move one of two neighbours on a critical path. An operation
is a number; a place is its position in the orders of all devices, one after the other. All its functions share tuples of
arrays:

    shape: duration, device, operation before, hop after it, up to two operations after (-1 for none), first place of each
        device, least tail of each device, (latency,).
    memory: type, memory taken, memory released of each operation, capacity of each device.
    state: operation at each place, place of each operation, its end, sums of work and memory before each place.
    scratch: per device the first place to time anew, next place, time; new ends, devices to go on with, critical places,
        (operations timed,).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

COMPILED = ("list_pass", "uniform", "lateness", "retime", "trace", "shift", "reach", "fits", "keep", "anneal")  # callees first
LEAST_S = 0.4  # of search, for which loading compiled code takes too long

LATE, STUCK = -1, -2  # instead of a latency or an energy
NO_START = 1 << 62

MODULUS, FACTOR = 2147483647, 48271  # a random stream that is the same in Python and compiled
MEAN_WEIGHT = 0.3  # of the mean lateness of devices beside that of the latest one
ANY_LATE = 0.3  # of critical paths end at any late device instead of the latest
SWAPS = 0.5  # of changes exchange two neighbours; the others move one by 2 to FARTHEST places
FARTHEST = 8
FAILURES = 4  # changes refused in a row, after which another critical path is traced
CHANGE = 30  # work of a change beside the operations that it times, in operations


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


def uniform(stream: Any) -> float:
    """Return the next random number in (0, 1) of a stream, and advance it."""
    stream[0] = stream[0] * FACTOR % MODULUS
    return float(stream[0] / MODULUS)


def lateness(ends: Any, least_tail: Any, latency: int) -> float:
    """Return how late devices are that end at these times: the latest one, and a little of their mean."""
    worst, total = 0, 0
    for d in range(len(ends)):
        late = max(0, ends[d] + least_tail[d] - latency)
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
    energy = lateness(free, least_tail, latency[0])
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
        changed: float = LATE
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


class Kernels(NamedTuple):
    """The two inner loops, in plain Python or compiled, with what they are counted to cost.

    Attributes:
        operation_s: seconds of a list-scheduling pass per operation, on one core of the reference machine.
        timed_s: seconds of annealing per operation that a change times.
    """

    list_pass: Callable[..., int]
    anneal: Callable[..., float]
    operation_s: float
    timed_s: float
    compiled: bool

    def arrays(self, lists: Any) -> Any:
        """Return nested tuples of lists as they are, or with arrays for compiled code."""
        if not self.compiled:
            return lists
        if isinstance(lists, tuple):
            return tuple(self.arrays(one) for one in lists)
        return np.asarray(lists, dtype=float if any(isinstance(x, float) for x in lists) else np.int64)


PLAIN = Kernels(list_pass, anneal, operation_s=2e-6, timed_s=1e-6, compiled=False)


def is_compiled(seconds: float) -> bool:
    """Return whether a search of so many counted seconds is compiled; a short one is not. Imports nothing."""
    return seconds >= LEAST_S and importlib.util.find_spec("numba") is not None


def kernels_for(seconds: float) -> Kernels:
    """Return the inner loops for a search of so many counted seconds: compiled, but for a short one and without numba."""
    return compiled_kernels() if is_compiled(seconds) else PLAIN


@cache
def compiled_kernels() -> Kernels:
    """Return the inner loops compiled by numba, which keeps them on disk; ``PLAIN`` where numba is not installed."""
    try:
        import numba
    except ImportError:
        return PLAIN

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(cache=True)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder that it can write to
            return numba.njit(function)  # type: ignore[no-any-return]

    copy = _second_instance()
    for name in COMPILED:
        setattr(copy, name, compiled(getattr(copy, name)))
    return Kernels(copy.list_pass, copy.anneal, operation_s=6e-8, timed_s=2e-8, compiled=True)


def _second_instance() -> ModuleType:
    """Return a second instance of this module, whose functions call each other compiled; the first one stays plain Python."""
    spec = importlib.util.find_spec(__name__)
    assert spec is not None, "a module that was imported is found"
    assert spec.loader is not None, "it has a source file"
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy
