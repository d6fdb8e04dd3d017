"""Lower bounds on latency and memory of pipeline schedules.

**Latency.** (1) A micro-batch needs its whole way: head, time and tail of any type. (2) A device starts no operation before
its least head, then works, and after its last operation the least tail is left. So ``head + work + tail`` of any device is
a bound. It holds for the operations of one chain on the device, too: for equal stages that is ``(m + S - 1)(f + b)``, at the
last stage.

**Memory at latency T.** A micro-batch holds its activation at a stage for at least ``span``: from the start of its forward to
the end of its last backward pass, its way to the last stage and back included.

1. *Average.* On a device all of this happens within ``T - least head - least tail``. So the mean memory over that time is at
   least ``sum of micro-batches x activation x span / (T - head - tail)``, and the peak is no less.
2. *Ramp.* Before time ``t`` = least head of any backward type of the device, only forward passes can run on it. At most
   ``slack = T - head - work - tail`` of its time may be idle. So it spends at least ``t - head - slack`` on forward passes, and
   each second of them takes at least ``min(activation / forward time)``. All of that memory is still held at ``t``, but for an
   unfinished pass, which has taken its memory when it started. The same holds from the end, with backward passes.
3. *Chain.* Let micro-batch k start at time t at stage s. Micro-batches k, ..., m - 1 then still pass every later stage s', so
   ``t + way to s' + (m - k) x (forward + backward at s') + least tail there <= T``. That gives a latest start. No micro-batch
   leaves stage s before ``head + span``. Those that must have started by then are held at once.

What a device holds is a sum of activations, so each bound is rounded up to the next such sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.pipeline.problem import FORWARD, Operations

MOST_SUMS = 100_000


def latency_bound(ops: Operations) -> int:
    """Return the larger of the bounds (1) and (2)."""
    heads, tails, duration = ops.heads, ops.tails, ops.duration
    found = max(heads[i] + duration[i] + tails[i] for i in range(len(ops)))
    for on_device in ops.on_device:
        chains = {ops.types[i].chain for i in on_device}
        for types in (on_device, *([i for i in on_device if ops.types[i].chain == chain] for chain in chains)):
            if types:
                work = sum(duration[i] * ops.count[i] for i in types)
                found = max(found, min(heads[i] for i in types) + work + min(tails[i] for i in types))
    return found


def memory_bound(ops: Operations, latency: int) -> float:
    """Return a lower bound on the peak memory of any schedule that ends by ``latency``."""
    found = 0.0
    for types in ops.on_device:
        if types:
            chains = [_chain(ops, i, latency) for i in types if ops.taken[i]]
            least = max(_average(ops, types, latency), _ramp(ops, types, latency), _ramp(ops.reversed, types, latency))
            found = max(found, next_sum(ops, types, least), *chains)
    return found


def next_sum(ops: Operations, types: Sequence[int], least: float) -> float:
    """Return the least memory of at least ``least`` that a device can hold; ``least`` itself if there are too many sums."""
    parts = sorted({round(x, 9) for i in types for x in _holdings(ops, i)})
    least = round(least * (1 - 1e-12), 9)
    sums = {0.0}
    for part in parts:
        multiples = [part * n for n in range(int(least / part) + 2)]
        if len(sums) * len(multiples) > MOST_SUMS:
            return least
        sums = {round(held + more, 9) for held in sums for more in multiples if held + more < least + parts[-1] + part}
    return min((held for held in sums if held >= least), default=least)


def _holdings(ops: Operations, i: int) -> list[float]:
    """Return what one micro-batch of a stage can hold, from the type that takes the memory first."""
    if ops.types[i].kind != FORWARD:
        return []
    stage = (ops.types[i].chain, ops.types[i].stage)
    parts = [ops.released[j] for j in range(len(ops)) if (ops.types[j].chain, ops.types[j].stage) == stage and ops.released[j]]
    return [ops.taken[i], *([parts[-1]] if len(parts) > 1 else [])] if ops.taken[i] else []


def _spans(ops: Operations, i: int) -> list[tuple[int, float]]:
    """Return, for a type that takes memory, the pairs of (least time until a release ends, memory that it releases)."""
    reach = {i: ops.duration[i]}
    for j in ops.topological:
        ways = [reach[k] + ops.hop(k, j) + ops.duration[j] for k in ops.before[j] if k in reach]
        if ways and j not in reach:
            reach[j] = max(ways)
    stage = (ops.types[i].chain, ops.types[i].stage)
    return [(way, ops.released[j]) for j, way in reach.items() if (ops.types[j].chain, ops.types[j].stage) == stage]


def _average(ops: Operations, types: tuple[int, ...], latency: int) -> float:
    time = latency - min(ops.heads[i] for i in types) - min(ops.tails[i] for i in types)
    held = sum(ops.count[i] * way * memory for i in types if ops.taken[i] for way, memory in _spans(ops, i))
    return held / time if time > 0 else 0.0


def _ramp(ops: Operations, types: tuple[int, ...], latency: int) -> float:
    """Bound (2), for the start; for the end in the reversed problem."""
    forward = [i for i in types if ops.taken[i]]
    other = [i for i in types if not ops.taken[i]]
    if not forward or not other:
        return 0.0
    head, tail = min(ops.heads[i] for i in types), min(ops.tails[i] for i in types)
    slack = latency - head - sum(ops.duration[i] * ops.count[i] for i in types) - tail
    filled = min(ops.heads[i] for i in other) - head - slack
    return max(0.0, filled * min(ops.taken[i] / ops.duration[i] for i in forward))


def _chain(ops: Operations, i: int, latency: int) -> float:
    """Bound (3), for the stage of a forward type."""
    if ops.types[i].kind != FORWARD:
        return 0.0
    leaves = ops.heads[i] + min((way for way, memory in _spans(ops, i) if memory), default=0)
    stages = _stages_from(ops, i)
    most = 0
    for k in range(ops.count[i]):
        left = ops.count[i] - k
        latest = latency - max(way + left * work + tail for way, work, tail in stages)
        most += latest < leaves
    return most * ops.taken[i]


def _stages_from(ops: Operations, i: int) -> list[tuple[int, int, int]]:
    """Return for each stage from that of forward type ``i`` on: way to it, work of a micro-batch at it, least tail there."""
    chain = ops.types[i].chain
    found, way, at = [], 0, i
    while True:
        own = [j for j in range(len(ops)) if (ops.types[j].chain, ops.types[j].stage) == (chain, ops.types[at].stage)]
        found.append((way, sum(ops.duration[j] for j in own), min(ops.tails[j] for j in own)))
        then = [j for j in ops.after[at] if ops.types[j].kind == FORWARD]
        if not then:
            return found
        way += ops.duration[at] + ops.hop(at, then[0])
        at = then[0]
