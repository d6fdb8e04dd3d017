"""Times a way to learn quickly: preparation and learning of a response are one item, and items start in the order of readiness.

Planning tries thousands of ways on many scenarios. This file times one in a fraction of a millisecond. The rules are those of
``solver.schedule_work``: no server idles while an item is ready, and a server that has worked goes first. Only here a response
is prepared right before it is learned from. Executed steps are always timed exactly (``LearnerWay.totals``).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from rlhfless.simulate.whole_steps.generated import GeneratedStep
from rlhfless.simulate.whole_steps.learner_way import LearnerWay
from rlhfless.simulate.whole_steps.step_costs import StepCosts
from solver.model.workload import FloatArray
from solver.stage_fusion.work import PhaseWork


class MergedStep:
    """Generation of one scenario with its work, merged into blocks of responses that are unlocked one after another.

    Args:
        blocks: number of items; None: one per response. together: servers that are counted as one, which is as many times as
            fast, so that the blocks of a large step occupy all servers.
    """

    def __init__(self, generated: GeneratedStep, work: PhaseWork, blocks: int | None = None, together: int = 1) -> None:
        self.size, self.generation_gpu_s = work.gpus_per_actor, generated.gpu_seconds
        self.makespan_s, self.actors, self.together = generated.makespan_s, len(generated.free_s), together
        self.free_s = generated.free_s.tolist() if together == 1 else _last_of(generated.free_s, together)
        self.completed = _blocks(generated.completion_s, work.prepare_s, blocks)
        unlocked = work.unlocked_s(generated.completion_s)
        self.unlocked = _blocks(unlocked, work.prepare_s, blocks)
        self.learned = _blocks(unlocked, work.learn_s, blocks)

    def totals(self, way: LearnerWay, costs: StepCosts) -> tuple[float, float]:
        """Return seconds and GPU-seconds of the whole step."""
        servers = way.servers(self.actors)
        load_s = costs.charges.loading_s(servers)
        slower, finish_s = costs.charges.slower(servers), costs.charges.finish_s(servers)
        own_s = way.from_s + load_s if way.from_s else 0.0
        freed = self.free_s if way.grows or not way.own else []
        own = math.ceil(way.own / self.together)
        pool = _Pool([own_s] * own, [at_s + load_s for at_s in freed])
        prepare, learn = self.unlocked[1] / self.together, self.learned[1] * (slower / self.together)
        if way.streams:
            end_s = pool.run(self.unlocked[0], prepare + learn)
        elif way.overlaps:
            prepared_s = max(pool.run(self.completed[0], self.completed[1] / self.together), self.makespan_s)
            end_s = pool.run(np.full(len(learn), prepared_s), learn)
        else:
            end_s = pool.run(np.full(len(learn), self.makespan_s), prepare + learn)
        end_s = max(end_s, pool.latest_s()) + finish_s
        held_s = way.own * (end_s - (way.from_s if way.own else 0.0))
        freed_s = sum(end_s - first_s + load_s for first_s in pool.first_s[own:] if math.isfinite(first_s))
        freed_s += sum(finish_s + load_s for first_s in pool.first_s[own:] if not math.isfinite(first_s))
        held_s += freed_s * self.actors / len(self.free_s)
        return end_s, self.generation_gpu_s + self.size * held_s


class _Pool:
    """Servers that become free, and when each has started its first item."""

    def __init__(self, own_s: Sequence[float], freed_s: Sequence[float]) -> None:
        free_s = [*own_s, *freed_s]
        self.free_s = free_s
        self.first_s = [math.inf] * len(free_s)
        self.used: list[tuple[float, int]] = []
        self.unused = [(at_s, server) for server, at_s in enumerate(free_s)]
        heapq.heapify(self.unused)

    def run(self, ready_s: FloatArray, seconds: FloatArray) -> float:
        """Run items that are sorted by when they are ready; returns when the last one ends."""
        used, unused, end_s = self.used, self.unused, 0.0
        for ready, takes in zip(ready_s.tolist(), seconds.tolist(), strict=True):
            from_used = bool(used) and (used[0][0] <= ready or not unused or used[0][0] <= unused[0][0])
            free, server = heapq.heappop(used if from_used else unused)
            start = max(free, ready)
            if not from_used:
                self.first_s[server] = start
            heapq.heappush(used, (start + takes, server))
            end_s = max(end_s, start + takes)
        return end_s

    def latest_s(self) -> float:
        """Return when the last server is free for the end of learning."""
        return max(self.free_s)


def _last_of(free_s: FloatArray, together: int) -> list[float]:
    """Return when servers are free that are counted together, in the order in which they become so: the last of each."""
    edges = np.append(np.arange(together, len(free_s), together), len(free_s)) - 1
    return [float(free) for free in np.sort(free_s)[edges]]


def _blocks(ready_s: FloatArray, seconds: FloatArray, blocks: int | None) -> tuple[FloatArray, FloatArray]:
    """Return items in the order of readiness: when each is ready at last, and its seconds."""
    order = np.argsort(ready_s, kind="stable")
    if blocks is None or blocks >= len(order):
        return ready_s[order], seconds[order]
    edges = np.unique(np.linspace(0, len(order), blocks + 1).astype(int))
    sums = np.add.reduceat(seconds[order], edges[:-1])
    means = np.add.reduceat(ready_s[order], edges[:-1]) / np.diff(edges)
    return means, sums
