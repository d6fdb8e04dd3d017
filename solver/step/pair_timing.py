"""Times pairs of a generation and a learner: all pairs and all scenarios as one array.

Planning tries thousands of pairs. Here preparation and learning of a response are one item, and items start in the order in
which they are ready. The rules are those of ``schedule_work``: no server idles while an item is ready, and a server that has
worked goes first. So a response is prepared right before it is learned from, which is the only simplification. Plans that are
executed are timed exactly (``Generated.step_totals``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.step.follow import Generated
from solver.step.learners import Learners
from solver.step.work import StepWork

CHUNK = 12_000  # servers of all pairs that are timed together: as many as a processor's cache holds


class StepItems:
    """A generation on one scenario with the work that follows it, merged into blocks of responses.

    Args:
        generated: of the scenario. work: of the scenario, at full speed.
        blocks: number of items, of about equally many responses that are unlocked one after another; None: one per response.
        together: servers that are counted as one, which is as many times as fast, so that the blocks of a large step occupy all
            servers.
    """

    def __init__(self, generated: Generated, work: StepWork, blocks: int | None = None, together: int = 1) -> None:
        completion_s, free_s = generated.completion_s, generated.free_s
        self.gpus, self.gpu_s, self.makespan_s = work.gpus_per_actor, generated.gpu_seconds, generated.makespan_s
        self.actors, self.together = len(free_s), together
        edges = np.append(np.arange(together, len(free_s), together), len(free_s)) - 1
        self.free_s = np.sort(free_s)[edges]  # of servers that are counted together, the last
        self.completed = _merged(completion_s, [work.prepare_s], blocks)
        self.unlocked = _merged(work.unlocked_s(completion_s), [work.prepare_s, work.learn_s], blocks)


def pair_totals(steps: Sequence[StepItems], of: IntArray, learners: Learners) -> FloatArray:
    """Return (W, 2) seconds and GPU-seconds of whole steps.

    Args:
        steps: generations, each on one scenario. of: (W,) the number of each pair's generation among them.
        learners: (W,) of the pairs, with servers as their generation's actors have.
    """
    totals = np.zeros((len(of), 2))
    for numbers in _groups(steps, of, learners):
        totals[numbers] = _totals(steps, of[numbers], learners.chosen(numbers))
    return totals


def _groups(steps: Sequence[StepItems], of: IntArray, learners: Learners) -> Iterator[IntArray]:
    """Return the numbers of pairs that are timed together: with as many items, of which the same overlaps with decoding."""
    together, items, released = (
        np.array(column)[of] for column in zip(*((s.together, len(s.unlocked[0]), len(s.free_s)) for s in steps), strict=True)
    )
    rows = -(-learners.own // together) + np.where(learners.servers > learners.own, released, 0)
    kind = 3 * items + learners.streams + 2 * (learners.overlaps & ~learners.streams)
    order = np.lexsort((rows, kind))
    chunk = np.cumsum(rows[order] + 2) // CHUNK  # of pairs with about equally many servers
    yield from np.split(order, np.flatnonzero(np.diff(kind[order]) | np.diff(chunk)) + 1)


def _totals(steps: Sequence[StepItems], of: IntArray, learners: Learners) -> FloatArray:
    """Return the totals where all learners stream, or all overlap preparation only, or none overlaps anything."""
    names, of = np.unique(of, return_inverse=True)
    steps = [steps[name] for name in names.tolist()]
    together, makespan_s, gpu_s, gpus, actors = (
        np.array(column)[of]
        for column in zip(*((s.together, s.makespan_s, s.gpu_s, s.gpus, s.actors / len(s.free_s)) for s in steps), strict=True)
    )
    pools = _Pools(steps, of, learners, together)
    unlocked_s, prepare_s, learn_s = (_columns([s.unlocked[part] for s in steps], of) for part in range(3))
    learn_s, prepare_s = learn_s * (learners.slower / together), prepare_s / together
    if learners.streams[0]:
        end_s = pools.run(unlocked_s, prepare_s + learn_s)
    elif learners.overlaps[0]:
        completed_s, seconds = (_columns([s.completed[part] for s in steps], of) for part in range(2))
        prepared_s = np.maximum(pools.run(completed_s, seconds / together), makespan_s)
        end_s = pools.run(np.broadcast_to(prepared_s, learn_s.shape), learn_s)
    else:
        end_s = pools.run(np.broadcast_to(makespan_s, learn_s.shape), prepare_s + learn_s)
    end_s = np.maximum(end_s, pools.latest_s) + learners.finish_s
    own_s = learners.own * (end_s - np.where(learners.own > 0, learners.from_s, 0.0))
    held_s = own_s + actors * pools.released_held_s(end_s, learners)
    return np.column_stack([end_s, gpu_s + gpus * held_s])


class _Pools:
    """The servers of W learners, and when each has started its first item.

    A server that has not worked yet is taken in the order in which servers become free. Those that have worked are sorted by
    when they are idle again: row 0 and the last row are minus and plus infinity.
    """

    def __init__(self, steps: Sequence[StepItems], of: IntArray, learners: Learners, together: IntArray) -> None:
        own = -(-learners.own // together)
        own_s = np.where(learners.from_s > 0, learners.from_s + learners.load_s, 0.0)
        own_s = np.where(np.arange(own.max())[:, None] < own, own_s, np.inf)
        released_s = np.full((max(len(step.free_s) for step in steps), len(steps)), np.inf)
        for column, step in enumerate(steps):
            released_s[: len(step.free_s), column] = step.free_s
        released_s = np.where(learners.servers > learners.own, released_s[:, of] + learners.load_s, np.inf)
        free_s = np.concatenate([own_s, released_s, np.full((1, len(of)), np.inf)])
        order = np.argsort(free_s, axis=0, kind="stable")
        self.free_s = np.take_along_axis(free_s, order, axis=0)
        self.is_released = (order >= len(own_s)) & np.isfinite(self.free_s)
        self.latest_s = np.where(np.isfinite(free_s), free_s, -np.inf).max(axis=0)
        rows = int(np.isfinite(self.free_s).sum(axis=0).max())
        self.free_s, self.is_released = self.free_s[: rows + 1], self.is_released[: rows + 1]
        self.first_s = np.full((rows + 1, len(of)), np.inf)
        self.used_s = np.full((rows + 2, len(of)), np.inf)
        self.used_s[0] = -np.inf
        self.unused = np.zeros(len(of), np.int64)  # of each learner: the first server that has not worked

    def run(self, ready_s: FloatArray, seconds: FloatArray) -> FloatArray:
        """Run (B, W) items, each column sorted by when they are ready; returns (W,) when the last one of each ends."""
        used, other, end_s = self.used_s, self.used_s.copy(), np.zeros(ready_s.shape[1])
        next_s = self.free_s[self.unused, np.arange(ready_s.shape[1])]
        for ready, takes in zip(ready_s, seconds, strict=True):
            idle = used[1]
            opens = np.flatnonzero((idle > ready) & (next_s < idle))
            end = np.maximum(np.minimum(idle, next_s), ready)
            if len(opens):
                number = self.unused[opens]
                self.first_s[number, opens] = end[opens]
                self.unused[opens] = number + 1
                next_s[opens] = self.free_s[number + 1, opens]
            end += takes
            np.maximum(used[1:-1], end, out=other[1:-1])  # a server that has worked: its end takes its place among the others
            np.minimum(other[1:-1], used[2:], out=other[1:-1])
            if len(opens):  # a further server: none of the others gives up its place
                before = used[:, opens]
                other[1:-1, opens] = np.minimum(np.maximum(before[:-2], end[opens]), before[1:-1])
            used, other = other, used
            np.maximum(end_s, end, out=end_s)
        self.used_s = used
        return end_s

    def released_held_s(self, end_s: FloatArray, learners: Learners) -> FloatArray:
        """Return (W,) seconds for which a learner holds servers that actors have released, those for loading included.

        Those that never worked are held for the reduction of gradients.
        """
        started = np.isfinite(self.first_s)
        held = np.where(started, end_s - np.where(started, self.first_s, 0.0), learners.finish_s) + learners.load_s
        return np.asarray((held * self.is_released).sum(axis=0))


def _columns(rows: Sequence[FloatArray], of: IntArray) -> FloatArray:
    """Return (B, W) numbers of items, a column per pair, from (B,) of each generation."""
    return np.ascontiguousarray(np.stack(rows, axis=1)[:, of])


def _merged(ready_s: FloatArray, seconds: Sequence[FloatArray], blocks: int | None) -> tuple[FloatArray, ...]:
    """Return items in the order of readiness: when each is ready in the mean, and its seconds of each kind of work."""
    order = np.argsort(ready_s, kind="stable")
    if blocks is None or blocks >= len(order):
        return ready_s[order], *(one[order] for one in seconds)
    first, sizes = _edges(len(order), blocks)
    means = np.add.reduceat(ready_s[order], first) / sizes
    return means, *(np.add.reduceat(one[order], first) for one in seconds)


@lru_cache(maxsize=4)
def _edges(items: int, blocks: int) -> tuple[IntArray, IntArray]:
    """Return (B,) the first item of each block of about equally many, and how many it has."""
    edges = np.arange(blocks + 1) * items // blocks
    return edges[:-1], np.diff(edges)
