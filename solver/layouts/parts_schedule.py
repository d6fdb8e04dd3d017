"""Times of following steps whose calls may run in parts: the list schedule of ``schedule.py``, with servers to choose from.

A node is a call, a reallocation, one prompt's part of a divided call, or an optimizer step of a divided training. Nodes start
in order of time: the node that can start first is next. Where several can, it is the one with the longest remaining path. A
part runs on the server of its call that is free first. Free servers are shared evenly by the parts of the call that are ready,
if they may. Without divided calls, all times are those of ``schedule.py``.

All seconds are rounded to multiples of ``GRID_S``, so sums are exact. Two nodes that could start at the same time then do so in
the plan and in its execution, whose seconds differ in the last digit, and the same one is next.

What a part waits for: of a generate call, the responses of its prompt; of a divided call, the part of its prompt; of any other
call, its end. A training's parts of one mini-batch follow the optimizer step of the mini-batch before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solver.layouts.options import CallOptions, FloatArray, IntArray
from solver.layouts.parts import CallParts
from solver.layouts.schedule import MORE_STEPS, STEPS, UnrolledTimes

WHOLE = -1
GRID_S = 2.0**-33  # about 1e-10 s; multiples up to 1e6 s are exact
Edge = tuple[int, int, float | None]  # steps later, node, seconds after the start; None: after the end


@dataclass(frozen=True, eq=False)
class PartTimes(UnrolledTimes):
    """Times of one plan, of n nodes in S steps: ``start_s`` and ``end_s`` are (1, n, S).

    Attributes:
        task: (n,) call, or reallocation, of each node. part: (n,) ``WHOLE``, a prompt, or the number of prompts plus that of an
            optimizer step.
        gpus: by node and step, on which it runs.
    """

    task: IntArray
    part: IntArray
    gpus: list[list[IntArray]]

    def of_task(self, task: int) -> tuple[FloatArray, FloatArray]:
        """Return (S,) first starts and last ends of a task."""
        own = self.task == task
        return self.start_s[0, own].min(axis=0), self.end_s[0, own].max(axis=0)


class PartsSchedule:
    """The nodes of a step, and what they wait for.

    Args:
        plan: (K,) option of every call. divided: by call. complete_s: by divided or generate call's number, (G,) when the
            responses of each prompt are complete, from the start of the generate call.
    """

    def __init__(
        self, options: CallOptions, plan: IntArray, divided: Mapping[int, CallParts], complete_s: Mapping[int, FloatArray]
    ) -> None:
        self.options, self.divided = options, divided
        self.calls, self.tasks = len(options.graph.calls), options.tasks
        self.complete_s = {call: _rounded(of).tolist() for call, of in complete_s.items()}
        self.nodes: list[tuple[int, int]] = []
        self.first: list[int] = []
        for task in range(self.tasks):
            self.first.append(len(self.nodes))
            parts = divided.get(task)
            self.nodes += [(task, part) for part in ([WHOLE] if parts is None else range(len(parts.part_s) + parts.updates))]
        self.first.append(len(self.nodes))
        durations = _rounded(options.durations(plan[None])[0]).tolist()
        self.seconds = [self._seconds(task, part, durations) for task, part in self.nodes]
        self.followers: list[list[Edge]] = [[] for _ in self.nodes]
        self._connect()
        self._place(plan)

    def times(self, steps: int) -> PartTimes:
        """Return the times of so many steps."""
        return _Run(self, steps).times

    def steady(self, steps: int = 0) -> PartTimes:
        """Return the times of at least so many steps and two that follow; more are unrolled where they do not repeat."""
        times = self.times(max(steps + 2, STEPS))
        return times if times.periodic.all() else self.times(max(steps + 2, MORE_STEPS))

    def _seconds(self, task: int, part: int, durations: list[float]) -> float:
        if part == WHOLE:
            return durations[task]
        parts = self.divided[task]
        return float(_rounded(parts.least_s[part] if part < len(parts.part_s) else parts.update_s))

    def shared_by(self, node: int, free: int, ready: int) -> int:
        """Return how many of the free servers a node runs on, where so many nodes of its queue are ready."""
        task, part = self.nodes[node]
        parts = self.divided.get(task)
        if parts is None or part >= len(parts.part_s):
            return 1
        return max(1, min(free // ready, parts.most[part]))

    def takes_s(self, node: int, servers: int) -> float:
        """Return the seconds of a node on so many servers."""
        task, part = self.nodes[node]
        parts = self.divided.get(task)
        if parts is None or part >= len(parts.part_s):
            return self.seconds[node]
        return float(_rounded(parts.part_s[part] / servers))

    def _last(self, task: int) -> int:
        """Return the node with which an undivided call, or a training, ends."""
        return self.first[task + 1] - 1

    def _connect(self) -> None:
        """Enter what every node waits for."""
        same, before, early = self.options.task_graph
        for task in range(self.tasks):
            parts = self.divided.get(task)
            count = 1 if parts is None else len(parts.part_s)
            for part in range(count):
                node = self.first[task] + part
                for other in same[task]:
                    self._wait(node, None if parts is None else part, other)
                for later, waited in ((1, before[task]), (2, early[task])):
                    for other in waited:
                        self.followers[self._last(other)].append((later, node, None))
            if parts is None:
                continue
            for update in range(parts.updates):
                node = self.first[task] + count + update
                for part, batch in enumerate(parts.batch_of):
                    if batch == update:
                        self.followers[self.first[task] + part].append((0, node, None))
                    elif batch == update + 1:
                        self.followers[node].append((0, self.first[task] + part, None))
                if update:
                    self.followers[node - 1].append((0, node, None))

    def _wait(self, node: int, part: int | None, other: int) -> None:
        """Let a node, with the part of a prompt or None, wait for another task of its step."""
        if part is not None and other in self.complete_s:
            self.followers[self.first[other]].append((0, node, self.complete_s[other][part]))
        elif other not in self.divided:
            self.followers[self.first[other]].append((0, node, None))
        elif self.divided[other].updates:
            self.followers[self._last(other)].append((0, node, None))
        elif part is not None:
            self.followers[self.first[other] + part].append((0, node, None))
        else:
            for one in range(self.first[other], self.first[other + 1]):
                self.followers[one].append((0, node, None))

    def _place(self, plan: IntArray) -> None:
        """Make a queue of each task's nodes that run on its whole mesh, and one of its parts."""
        takes_time = self.options.durations(plan[None])[0] > 0  # what takes none needs no GPU
        blocks = self.options.blocks(plan[None])[0] & takes_time[:, None]
        self.servers: list[IntArray] = []  # (servers, GPUs of each) by queue
        self.queue_of: list[int] = []
        self.release_s: dict[int, FloatArray] = {}  # by node of a generate call, on its mesh
        for task in range(self.tasks):
            gpus = np.flatnonzero(blocks[task])
            parts = self.divided.get(task)
            self.servers += [gpus.reshape(1 if parts is None else parts.servers, -1), gpus[None]]
            for node in range(self.first[task], self.first[task + 1]):
                part = self.nodes[node][1]
                whole = parts is None or part == WHOLE or part >= len(parts.part_s)
                self.queue_of.append(2 * task + whole)
            if task in self.options.freed_early:
                self.release_s[self.first[task]] = _rounded(self.options.freed_early[task].release_s[plan[task]][gpus])
        gpu = np.zeros((len(self.servers), self.options.gpus), bool)
        for queue, servers in enumerate(self.servers):
            gpu[queue, servers.reshape(-1)] = True
        self.meets = [np.flatnonzero((gpu & gpu[queue]).any(axis=1)).tolist() for queue in range(len(gpu))]


class _Run:
    """One list schedule of several steps."""

    def __init__(self, of: PartsSchedule, steps: int) -> None:
        self.of, self.steps, count = of, steps, len(of.nodes)
        missing = np.zeros((steps, count), np.int64)
        for edges in of.followers:
            for later, node, _ in edges:
                missing[later:, node] += 1
        self.missing = missing.tolist()
        self.ready_s = np.zeros((steps, count)).tolist()
        self.left_s = self._remaining_paths()
        queues = len(of.servers)
        self.coming: list[list[tuple[float, float, int, int]]] = [[] for _ in range(queues)]  # (ready, -left, step, node)
        self.ready: list[list[tuple[float, int, int]]] = [[] for _ in range(queues)]  # (-left, step, node)
        self.free_s = np.zeros(of.options.gpus)
        self.servers_s: list[FloatArray | None] = [None] * queues  # when each server is free
        start, end = np.zeros((count, steps)), np.zeros((count, steps))
        gpus: list[list[IntArray]] = [[np.zeros(0, np.int64)] * steps for _ in range(count)]
        for step in range(steps):
            for node in range(count):
                if not self.missing[step][node]:
                    self._enter(step, node)
        for _ in range(steps * count):
            queue, begin_s, step, node, servers = self._next()
            start[node, step], gpus[node][step] = begin_s, of.servers[queue][servers].reshape(-1)
            end[node, step] = begin_s + of.takes_s(node, len(servers))
            self._commit(queue, begin_s, float(end[node, step]), step, node, gpus[node][step])
        task, part = np.array(of.nodes).T
        self.times = PartTimes(start[None], end[None], task, part, gpus)

    def _remaining_paths(self) -> list[list[float]]:
        """Return by step and node the seconds of the longest path from its start to the end of the last step."""
        of = self.of
        order = _backwards(of.followers)
        left = [[0.0] * len(of.nodes) for _ in range(self.steps)]
        for step in range(self.steps - 1, -1, -1):
            for node in order:
                longest, after = 0.0, 0.0
                for later, follower, lag in of.followers[node]:
                    if step + later < self.steps:
                        path = left[step + later][follower]
                        if lag is None:
                            longest = max(longest, path)
                        else:
                            after = max(after, lag + path)
                left[step][node] = max(longest + of.seconds[node], after)
        return left

    def _enter(self, step: int, node: int) -> None:
        entry = (self.ready_s[step][node], -self.left_s[step][node], step, node)
        heapq.heappush(self.coming[self.of.queue_of[node]], entry)

    def _next(self) -> tuple[int, float, int, int, IntArray]:
        """Return the queue whose first node can start first, when, its step, the node, and the servers that it takes."""
        best = (math.inf, 0.0)
        chosen = -1
        for queue, coming in enumerate(self.coming):
            ready = self.ready[queue]
            if not coming and not ready:
                continue
            free = self.servers_s[queue]
            if free is None:
                free = self.servers_s[queue] = self.free_s[self.of.servers[queue]].max(axis=1, initial=0.0)
            first_s = float(free.min())
            while coming and coming[0][0] <= first_s:
                heapq.heappush(ready, heapq.heappop(coming)[1:])
            key = (first_s, ready[0][0]) if ready else coming[0][:2]
            if key < best:
                best, chosen = key, queue
        begin_s, ready, coming = best[0], self.ready[chosen], self.coming[chosen]
        while coming and coming[0][0] <= begin_s:
            heapq.heappush(ready, heapq.heappop(coming)[1:])
        waiting = len(ready)
        _, step, node = heapq.heappop(ready)
        free = self.servers_s[chosen]
        assert free is not None, "it was computed for the choice"
        idle = np.flatnonzero(free <= begin_s)
        servers = idle[np.argsort(free[idle], kind="stable")][: self.of.shared_by(node, len(idle), waiting)]
        return chosen, begin_s, step, node, servers

    def _commit(self, queue: int, begin_s: float, end_s: float, step: int, node: int, gpus: IntArray) -> None:
        """Run a node from ``begin_s`` on."""
        of = self.of
        release_s = of.release_s.get(node)
        until_s = end_s if release_s is None else np.where(release_s > 0, begin_s + release_s, 0.0)
        self.free_s[gpus] = np.maximum(self.free_s[gpus], until_s)
        for other in of.meets[queue]:
            self.servers_s[other] = None
        for later, follower, lag in of.followers[node]:
            if (at := step + later) < self.steps:
                ready_s = self.ready_s[at]
                ready_s[follower] = max(ready_s[follower], end_s if lag is None else begin_s + lag)
                self.missing[at][follower] -= 1
                if not self.missing[at][follower]:
                    self._enter(at, follower)


def _rounded(seconds: ArrayLike) -> FloatArray:
    return np.asarray(np.round(np.asarray(seconds, dtype=float) / GRID_S) * GRID_S)


def _backwards(followers: list[list[Edge]]) -> list[int]:
    """Return the nodes in reverse topological order of the edges within a step."""
    waits = [0] * len(followers)
    for edges in followers:
        for later, node, _ in edges:
            waits[node] += not later
    order = [node for node, count in enumerate(waits) if not count]
    for node in order:
        for later, follower, _ in followers[node]:
            if not later:
                waits[follower] -= 1
                if not waits[follower]:
                    order.append(follower)
    return order[::-1]
