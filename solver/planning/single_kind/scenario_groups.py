"""Searches contiguous groups for all scenarios of lengths together: where the sorted responses are cut is chosen by mean value.

The longest of many uncertain responses outlasts its prediction, by an amount that differs from group to group. A search for
the predicted lengths alone does not see this. Here every group is timed in every scenario. Responses are sorted by predicted
length, longest first (contiguous groups of known lengths are optimal, see solver.planning.single_kind.relaxation).

1. For every target time M of a grid, responses join a group while its mean time over the scenarios is within M.
2. The best such groups are polished: one cut at a time moves by a step, while the value falls; then the step is halved.

The number of timings is fixed beforehand, so the same problem has the same plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.timing.group_times import GroupTimes, Split

TARGETS = 20  # makespans that groups are filled up to
TIMED = 1_500_000  # lengths that are timed to polish edges: about 0.05 s
FIRST_STEP = 0.25  # of a mean group, by which cuts move first
POLISHED = 2  # of the best filled groups, with different numbers of actors

Value = Callable[[FloatArray], float]
"""Value of groups that are busy for (S, N) seconds."""


def scenario_groups(times: GroupTimes, value_of: Value, max_actors: int, min_actors: int = 1, work: int = TIMED) -> list[Split]:
    """Return the best contiguous groups found for up to ``POLISHED`` numbers of actors, best first.

    Args:
        times: of the responses in sorted order, for every scenario.
        work: lengths that may be timed.
    """
    cuts = _Cuts(times, value_of)
    per_count: dict[int, tuple[float, list[int]]] = {}
    for edges in cuts.filled(max_actors):
        actors = len(edges) - 1
        if min_actors <= actors:
            value = cuts.value(edges)
            if actors not in per_count or value < per_count[actors][0]:
                per_count[actors] = value, edges
    best = sorted(per_count.values())[:POLISHED]
    polished = sorted(cuts.polished(*pair, cuts.timed_lengths + work // len(best)) for pair in best)
    return [Split(times.order, np.array(edges)) for _, edges in polished]


class _Cuts:
    """Times of contiguous groups in every scenario, each computed once."""

    def __init__(self, times: GroupTimes, value_of: Value) -> None:
        self.times, self.value_of = times, value_of
        self.cases, self.responses = times.length.shape
        admission, slots = times.admission, times.admission.max_batch
        if admission.rule == "reserve":
            slots = min(slots, int(admission.kv_capacity_tokens // max(1, int(times.cases[0].reserved_tokens.max()))))
        self.slots = max(1, slots)
        self.timed_lengths = 0
        self._known: dict[tuple[int, int], FloatArray] = {}

    def busy_s(self, start: int, stop: int) -> FloatArray:
        """Return the (S,) seconds of a group: exact where it fits at once, else an estimate."""
        if (start, stop) not in self._known:
            times, slots = self.times, self.slots
            self.timed_lengths += self.cases * (stop - start)
            length = times.length[:, start:stop]
            iterations = length.max(axis=1)
            if stop - start > slots:
                iterations = _last_end(length, slots)
            tokens = times.tokens[:, stop] - times.tokens[:, start]
            self._known[start, stop] = np.asarray(
                times.latency.base_s * iterations + times.load[:, stop] - times.load[:, start]
                + np.where(tokens > 0, times.latency.prefill_s(tokens), 0.0)
            )  # fmt: skip
        return self._known[start, stop]

    def value(self, edges: list[int]) -> float:
        return self.value_of(np.stack([self.busy_s(a, b) for a, b in itertools.pairwise(edges)], axis=1))

    def filled(self, max_actors: int) -> list[list[int]]:
        """Return the edges of groups that are filled up to each target time, without those that need too many actors."""
        whole = float(self.busy_s(0, self.responses).mean())
        alone = float(self.times.latency.base_s * self.times.length.mean(axis=0).max())
        groupings: list[list[int]] = []
        for target in np.geomspace(max(alone, 1e-3 * whole, 1e-9), max(whole, alone * 1.01, 1e-9), TARGETS).tolist():
            edges = self._filled_to(target, max_actors)
            if edges is not None and edges not in groupings:
                groupings.append(edges)
        return groupings

    def _filled_to(self, target_s: float, max_actors: int) -> list[int] | None:
        """Return the edges of groups whose mean time is within the target; None if more than ``max_actors`` are needed."""
        edges = [0]
        while edges[-1] < self.responses:
            if len(edges) > max_actors:
                return None
            start = low = edges[-1]
            high = self.responses
            while high - low > 1:  # the most that are within the target
                middle = (low + high) // 2
                low, high = (middle, high) if float(self.busy_s(start, middle).mean()) <= target_s else (low, middle)
            whole = float(self.busy_s(start, self.responses).mean()) <= target_s
            edges.append(self.responses if whole else max(start + 1, low))
        return edges

    def polished(self, value: float, edges: list[int], until: int) -> tuple[float, list[int]]:
        """Return value and edges after moving one edge at a time while that helps, until ``until`` lengths are timed."""
        step = max(1, int(FIRST_STEP * self.responses / (len(edges) - 1)))
        while step >= 1 and self.timed_lengths < until:
            improved = False
            for edge, move in itertools.product(range(1, len(edges) - 1), (step, -step)):
                moved = [*edges[:edge], edges[edge] + move, *edges[edge + 1 :]]
                if not moved[edge - 1] < moved[edge] < moved[edge + 1]:
                    continue
                after = self.value(moved)
                if after < value:
                    value, edges, improved = after, moved, True
            if not improved:
                step //= 2
        return value, edges


def _last_end(length: IntArray, slots: int) -> IntArray:
    """Return the (S,) iteration in which the last response ends when ``slots`` responses decode at a time.

    Slots are refilled in waves: each takes one response of every wave, the slot that is free first the first. Single refills
    are at least about as fast.
    """
    ends = np.sort(length[:, :slots], axis=1)
    for first in range(slots, length.shape[1], slots):
        wave = length[:, first : first + slots]
        ends[:, : wave.shape[1]] += wave
        ends.sort(axis=1)
    return np.asarray(ends[:, -1])
