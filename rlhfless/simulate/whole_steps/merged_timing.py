"""Times ways to learn quickly: preparation and learning of a response are one item, and items start in the order of readiness.

Planning tries thousands of ways on many scenarios. ``merged_totals`` times all of them at once: arrays have one column per way.
The rules are those of ``schedule_work``: no server idles while an item is ready, and a server that has worked goes
first. Only here a response is prepared right before it is learned from. Executed steps are always timed exactly
(``GeneratedStep.step_totals``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rlhfless.simulate.whole_steps.generated import GeneratedStep
from solver.model.workload import FloatArray, IntArray
from solver.step.work import Learner, StepWork, TokenWork


class MergedStep:
    """Generation of one scenario with its work, merged into blocks of responses that are unlocked one after another.

    Args:
        blocks: number of items; None: one per response. together: servers that are counted as one, which is as many times as
            fast, so that the blocks of a large step occupy all servers.
    """

    def __init__(self, generated: GeneratedStep, work: StepWork, blocks: int | None = None, together: int = 1) -> None:
        self.size, self.generation_gpu_s = work.gpus_per_actor, generated.gpu_seconds
        self.makespan_s, self.actors, self.together = generated.makespan_s, len(generated.free_s), together
        self.free_s = _last_of(generated.free_s, together)
        self.completed = _blocks(generated.completion_s, [work.prepare_s], blocks)
        self.unlocked = _blocks(work.unlocked_s(generated.completion_s), [work.prepare_s, work.learn_s], blocks)


def merged_totals(cases: Sequence[tuple[MergedStep, Learner]], costs: TokenWork) -> FloatArray:
    """Return (W, 2) seconds and GPU-seconds of whole steps, each a generation with a way to learn beside it.

    The generations have equal numbers of items, and as many servers are counted as one in each.
    """
    totals = np.zeros((len(cases), 2))
    kinds = [way.streams + 2 * (way.overlaps and not way.streams) for _, way in cases]
    for kind in set(kinds):
        numbers = [number for number, own in enumerate(kinds) if own == kind]
        totals[numbers] = _of_one_kind([cases[number] for number in numbers], costs)
    return totals


def _of_one_kind(cases: Sequence[tuple[MergedStep, Learner]], costs: TokenWork) -> FloatArray:
    """Return the totals where all ways stream, or all overlap preparation only, or none do."""
    place: dict[int, int] = {}
    of = np.array([place.setdefault(id(step), len(place)) for step, _ in cases])
    steps = list({id(step): step for step, _ in cases}.values())
    together, first_way = steps[0].together, cases[0][1]
    servers = [way.servers(step.actors) for step, way in cases]
    load_s = np.array([costs.charges.loading_s(count) for count in servers])
    slower = np.array([costs.charges.slower(count) for count in servers])
    finish_s = np.array([costs.charges.finish_s(count) for count in servers])
    pools = _Pools(cases, load_s)
    makespan_s = np.array([step.makespan_s for step in steps])[of]
    learn_s = _columns([step.unlocked[2] for step in steps], of) * (slower / together)
    prepare_s = _columns([step.unlocked[1] for step in steps], of) / together
    if first_way.streams:
        end_s = pools.run(_columns([step.unlocked[0] for step in steps], of), prepare_s + learn_s)
    elif first_way.overlaps:
        completed = [_columns([step.completed[part] for step in steps], of) for part in (0, 1)]
        prepared_s = np.maximum(pools.run(completed[0], completed[1] / together), makespan_s)
        end_s = pools.run(np.broadcast_to(prepared_s, learn_s.shape), learn_s)
    else:
        end_s = pools.run(np.broadcast_to(makespan_s, learn_s.shape), prepare_s + learn_s)
    end_s = np.maximum(end_s, pools.latest_s) + finish_s
    own = np.array([way.own for _, way in cases])
    from_s = np.array([way.from_s if way.own else 0.0 for _, way in cases])
    actors = np.array([step.actors for step, _ in cases]) / np.array([len(step.free_s) for step, _ in cases])
    held_s = own * (end_s - from_s) + actors * pools.freed_held_s(end_s, load_s, finish_s)
    generation_gpu_s = np.array([step.generation_gpu_s for step in steps])[of]
    return np.column_stack([end_s, generation_gpu_s + steps[0].size * held_s])


class _Pools:
    """The servers of W ways, and when each has started its first item.

    A server that has not worked yet is taken in the order in which servers become free. Those that have worked are sorted by
    when they are idle again: row 0 and the last row are minus and plus infinity.
    """

    def __init__(self, cases: Sequence[tuple[MergedStep, Learner]], load_s: FloatArray) -> None:
        ways = len(cases)
        own = np.array([math.ceil(way.own / step.together) for step, way in cases])
        from_s = np.array([way.from_s for _, way in cases])
        own_s = np.where(from_s > 0, from_s + load_s, 0.0)
        gets_freed = np.array([way.grows or not way.own for _, way in cases])
        steps = {id(step): step for step, _ in cases}
        number = {key: column for column, key in enumerate(steps)}
        freed_s = np.full((max(len(step.free_s) for step in steps.values()), len(steps)), np.inf)
        for column, step in enumerate(steps.values()):
            freed_s[: len(step.free_s), column] = step.free_s
        freed_s = np.where(gets_freed, freed_s[:, [number[id(step)] for step, _ in cases]] + load_s, np.inf)
        rows_s = np.where(np.arange(own.max())[:, None] < own, own_s, np.inf)
        free_s = np.concatenate([rows_s, freed_s, np.full((1, ways), np.inf)])
        order = np.argsort(free_s, axis=0, kind="stable")
        self.free_s = np.take_along_axis(free_s, order, axis=0)
        self.is_freed = (order >= len(rows_s)) & np.isfinite(self.free_s)
        self.latest_s = np.where(np.isfinite(free_s), free_s, -np.inf).max(axis=0)
        most = len(free_s) - 1
        self.first_s = np.full((most + 1, ways), np.inf)
        self.used_s = np.full((most + 2, ways), np.inf)
        self.used_s[0] = -np.inf
        self.unused = np.zeros(ways, np.int64)  # of each way: the first server that has not worked

    def run(self, ready_s: FloatArray, seconds: FloatArray) -> FloatArray:
        """Run (B, W) items, each column sorted by when they are ready; returns (W,) when the last one of each way ends."""
        used, end_s, ways = self.used_s, np.zeros(ready_s.shape[1]), np.arange(ready_s.shape[1])
        next_s = self.free_s[self.unused, ways]
        for ready, takes in zip(ready_s, seconds, strict=True):
            idle = used[1]
            from_used = (idle <= ready) | (idle < np.inf) & (idle <= next_s)
            end = np.maximum(np.where(from_used, idle, next_s), ready)
            opens = np.flatnonzero(~from_used)
            if len(opens):
                number = self.unused[opens]
                self.first_s[number, opens] = end[opens]
                self.unused[opens] = number + 1
                next_s[opens] = self.free_s[number + 1, opens]
            end += takes
            below = used[1:-1] if not len(opens) else np.where(from_used, used[1:-1], used[:-2])
            above = used[2:] if not len(opens) else np.where(from_used, used[2:], used[1:-1])
            used[1:-1] = np.minimum(np.maximum(below, end), above)  # the end takes its place among those that are sorted
            np.maximum(end_s, end, out=end_s)
        return end_s

    def freed_held_s(self, end_s: FloatArray, load_s: FloatArray, finish_s: FloatArray) -> FloatArray:
        """Return (W,) the seconds for which the learner holds servers that actors gave back, those for loading included.

        Those that never worked are held for the reduction of gradients.
        """
        started = np.isfinite(self.first_s)
        held = np.where(started, end_s - np.where(started, self.first_s, 0.0), finish_s) + load_s
        return np.asarray((held * self.is_freed).sum(axis=0))


def _columns(rows: Sequence[FloatArray], of: IntArray) -> FloatArray:
    """Return (B, W) numbers of items, a column per way, from (B,) of each generation."""
    return np.ascontiguousarray(np.stack(rows, axis=1)[:, of])


def _last_of(free_s: FloatArray, together: int) -> FloatArray:
    """Return when servers are free that are counted together, in the order in which they become so: the last of each."""
    edges = np.append(np.arange(together, len(free_s), together), len(free_s)) - 1
    return np.asarray(np.sort(free_s)[edges])


def _blocks(ready_s: FloatArray, seconds: Sequence[FloatArray], blocks: int | None) -> tuple[FloatArray, ...]:
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
