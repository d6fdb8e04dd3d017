"""Looks for a schedule within a latency and a memory capacity: list schedules by rules with in-flight limits, annealed.

The capacity is hard: no pass exceeds it, and passes that it leaves stuck are dropped. What is searched is the latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from solver.pipeline.listing import NEVER, ListScheduler, Orders, Rule, backwards, limits, longest_tail_first
from solver.pipeline.operations import FORWARD, Operations
from solver.pipeline.search import Work, by_kind

FAMILY, PASSES = 200, 6_000  # random first rules, and passes of annealing, per direction of time
LARGE, LARGE_FAMILY = 1_100, 400  # operations above which first rules are more, and may delay what releases memory
HOT, COLD = 3.0, 0.2  # temperatures at first and last, in quarters of the shortest operation
MEAN_WEIGHT = 0.3  # of the mean lateness of devices beside that of the latest one
MOST_IN_FLIGHT = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5)  # per stage that follows


class RuleSearch:
    """Searches rules for one direction of time under a capacity.

    Args:
        ops: operations of the problem, or of its reverse. capacity: memory of every device. latency: latest end.
        compiled: see ``ListScheduler``.
    """

    def __init__(self, ops: Operations, capacity: float, latency: int, compiled: Callable[..., int] | None) -> None:
        self.ops, self.latency, self._compiled = ops, latency, compiled is not None
        self._scheduler = ListScheduler(ops, limits(ops, capacity), compiled)
        self._least_tail = [min((ops.tails[i] for i in types), default=0) for types in ops.on_device]
        self._neighbours = by_kind(ops)
        self._unit = max(1, min(ops.duration) // 4)
        backward = ops.types[ops.topological[0]].kind != FORWARD
        self._opens = [(op.kind == FORWARD) != backward for op in ops.types]  # whose in-flight limits count

    def search(self, work: Work, rng: np.random.Generator, passes: int = PASSES) -> tuple[float, Orders] | None:
        """Return the least energy and its orders, 0 where the latency is kept; None if every pass got stuck."""
        first: tuple[float, Rule] | None = None
        best: tuple[float, Orders] | None = None
        for _ in range(min(LARGE_FAMILY if self.ops.total > LARGE else FAMILY, passes // 4 + 1)):
            if work.over:
                return best
            rule = self._random_rule(rng)
            energy = self._energy(rule, math.inf, work)
            if energy is not None and (first is None or energy < first[0]):
                first, best = (energy, rule), (energy, self._scheduler.orders())
                if energy == 0:
                    return best
        if first is None or best is None:
            return None
        kept, rule = first
        for number in range(passes):
            if work.over:
                return best
            hot = self._unit * HOT * (COLD / HOT) ** (number / passes)
            most = kept - hot * math.log(1.0 - rng.random())
            changed = self._changed(rule, rng)
            energy = self._energy(changed, most, work)
            if energy is not None and energy <= most:
                kept, rule = energy, changed
                if energy < best[0]:
                    best = energy, self._scheduler.orders()
                    if energy == 0:
                        return best
        return best

    def _energy(self, rule: Rule, most: float, work: Work) -> float | None:
        """Return how late the devices end; None if a pass is stuck, or above ``most``."""
        latest = NEVER if math.isinf(most) else self.latency + int(most)
        latency = self._scheduler.schedule(rule, latest)
        work.spend(self.ops.total, self._compiled)
        if latency is None:
            return None
        if latency <= self.latency:
            return 0.0
        ends = zip(self._scheduler.device_ends(), self._least_tail, strict=True)
        late = [max(0, end + tail - self.latency) for end, tail in ends]
        return max(late) + MEAN_WEIGHT * sum(late) / len(late)

    def _random_rule(self, rng: np.random.Generator) -> Rule:
        """Return in-flight limits that fall with the stage, priorities, and one delay for what takes or releases memory."""
        ops = self.ops
        stages: dict[int, int] = {}
        for op in ops.types:
            stages[op.chain] = max(stages.get(op.chain, 0), op.stage + 1)
        share = {chain: float(rng.choice(MOST_IN_FLIGHT)) for chain in (0, 1)}
        more = {chain: int(rng.integers(4)) for chain in (0, 1)}
        kind = [min(op.chain, 1) for op in ops.types]  # the first chain, and all others
        limit = [
            max(1, round(share[c] * (stages[op.chain] - op.stage) + more[c])) for c, op in zip(kind, ops.types, strict=True)
        ]
        takes = [bool(taken) for taken in ops.taken]
        delay = int(rng.integers(4)) * self._unit
        rule = longest_tail_first(ops)
        waits = ops.total <= LARGE or rng.random() < 0.5
        rule.delay, rule.in_flight = [delay * (taking == waits) for taking in takes], limit
        longest = float(max(ops.tails))
        ahead: list[Callable[[int], float]] = [
            lambda i: 0.0,
            lambda i: longest * 10 * takes[i],
            lambda i: longest / 3 * takes[i],
            lambda i: longest * 10 * kind[i],
            lambda i: longest * 10 * (1 - kind[i]),
            lambda i: longest * (takes[i] + ops.types[i].chain / 10) + ops.tails[i],
        ]
        chosen = ahead[int(rng.integers(len(ahead)))]
        rule.priority = [priority + chosen(i) for i, priority in enumerate(rule.priority)]
        return rule

    def _changed(self, rule: Rule, rng: np.random.Generator) -> Rule:
        """Return the rule with one or two changes of delay, priority or in-flight limit of neighbouring stages."""
        changed = rule.copy()
        for _ in range(int(rng.integers(1, 3))):
            types = self._neighbours[int(rng.integers(len(self._neighbours)))]
            types = types[: 1 + int(rng.integers(len(types)))]
            drawn = rng.random()
            if drawn < 0.4:
                step = int(rng.integers(-3, 4)) * self._unit
                for i in types:
                    changed.delay[i] = max(0, changed.delay[i] + step)
            elif drawn < 0.65 or not self._opens[types[0]]:
                shift = float(rng.normal(0.0, 0.2 * max(self.ops.tails) + 1.0))
                for i in types:
                    changed.priority[i] += shift
            else:
                step = 1 if rng.random() < 0.5 else -1
                for i in types:
                    changed.in_flight[i] = max(1, changed.in_flight[i] + step)
        return changed


def orders_within(
    ops: Operations,
    capacity: float,
    latency: int,
    spent: tuple[Work, int, int],
    compiled: Callable[..., int] | None,
    near: float = 0.0,
) -> tuple[float, Orders] | None:
    """Return the least late orders under a capacity, with how late they are: 0 within the latency; None if all got stuck.

    Args:
        spent: work, seed, and passes of annealing per direction of time.
        near: how late orders may be that end the search; backwards in time is searched first.
    """
    work, seed, passes = spent
    best: tuple[float, Orders] | None = None
    for backward in (True, False):
        searched = RuleSearch(ops.reversed if backward else ops, capacity, latency, compiled)
        found = searched.search(work, np.random.default_rng([seed, backward]), passes)
        if found is not None and (best is None or found[0] < best[0]):
            best = found[0], backwards(found[1]) if backward else found[1]
            if best[0] <= near:
                break
    return best
