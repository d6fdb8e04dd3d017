"""Gives a call of partial plans its mesh, in all ways that may lead to a period below a target.

A call without a mesh counts with its least seconds in chains, apart from others by the graph alone. In the sum of GPU-seconds
it counts with the least of any option that leaves its heaviest chain below the target. Calls with a mesh need at least the
least bytes of any strategy there.
"""

from __future__ import annotations

import numpy as np

from solver.layouts.bound import best_within
from solver.layouts.options import FloatArray, IntArray
from solver.layouts.plan_space import Extended, PlanSpace


class MeshStep:
    """Gives a call a mesh in all ways."""

    def __init__(self, space: PlanSpace, depth: int) -> None:
        self.space = space
        self.call, self.placed = space.mesh_calls[depth], space.mesh_calls[:depth]
        self.later = space.mesh_calls[depth + 1 :]
        pairs = [(number, {one.train, one.call}) for number, one in enumerate(space.least_sent)]
        self.sent = [number for number, pair in pairs if pair <= set(self.placed)]
        self.newly_sent = [number for number, pair in pairs if self.call in pair and pair <= {self.call, *self.placed}]

    def extend(self, rows: IntArray, bounds: FloatArray, target_s: float) -> tuple[Extended, int]:
        """Return what may lead to a plan below the target, and the number of partial plans that were bounded.

        Args:
            rows: (P, K) partial plans. bounds: (P,) of them.
        """
        space, options, call = self.space, self.space.options, self.call
        graph = space.apart
        choices = space.fastest[call]
        seconds, span = options.seconds[call][choices], options.spans[call][choices]
        of_tasks = self._seconds(rows, target_s)
        spans = space.extended_spans(rows)
        meet, _ = options.meeting_on(spans)
        shared = (meet * (1 << np.arange(options.tasks))).sum(axis=2)
        best = best_within(of_tasks, graph | shared, space.joined(self.sent))
        shares_with = np.zeros((len(rows), len(choices)), np.int64)
        for other in self.placed:
            shares = (span[None, :, 0] < spans[:, other, None, 1]) & (spans[:, other, None, 0] < span[None, :, 1])
            tasks = 1 << other
            for number in self.sent:
                if other in (space.least_sent[number].train, space.least_sent[number].call):
                    tasks |= 1 << space.calls + number
            shares_with |= np.where(shares, tasks, 0)
        beside = shares_with | graph[call]
        without = ((1 << options.tasks) - 1) & ~(1 << call)
        chain_s = np.maximum(seconds + np.take_along_axis(best, beside & without, axis=1), best[:, without, None])
        width = spans[:, :, 1] - spans[:, :, 0]
        area = (
            options.always_gpu_s
            + (of_tasks[:, : space.calls] * width).sum(axis=1)[:, None]
            + seconds * (span[:, 1] - span[:, 0])
        )
        for other in self.later:
            rest_s = best[:, graph[other] & without, None]
            if graph[other] >> call & 1:
                rest_s = np.maximum(rest_s, seconds + np.take_along_axis(best, beside & graph[other] & without, axis=1))
            allowed = np.searchsorted(space.sorted_s[other], target_s - rest_s, side="right")
            area = area + space.least_area[other][allowed]
        bound_s = np.maximum(np.maximum(chain_s, area / options.gpus), bounds[:, None])
        bounded = bound_s.size
        parent, choice = np.nonzero(bound_s < target_s)
        found = Extended(parent, choices[choice], bound_s[parent, choice])
        shares_with = shares_with[parent, choice]
        for number in self.newly_sent:
            sent_s = self._sent_s(rows, found, (shared, best, shares_with), number, target_s)
            found = found._replace(bound_s=np.maximum(found.bound_s, sent_s))
            alive = found.bound_s < target_s
            found, shares_with = found.where(alive), shares_with[alive]
        return found.where(space.fits(found.rows(rows, call), {*self.placed, call}, set())), bounded

    def _seconds(self, rows: IntArray, target_s: float) -> FloatArray:
        """Return (P, T) seconds of tasks: of reallocations how much longer they make training and call."""
        space, options = self.space, self.space.options
        seconds = np.zeros((len(rows), options.tasks))
        seconds[:, : space.calls] = space.least_s
        for call in self.placed:
            seconds[:, call] = options.seconds[call][rows[:, call]]
        for number in self.sent:
            one = space.least_sent[number]
            seconds[:, space.calls + number] = one.more_s(rows[:, one.train], rows[:, one.call], target_s)
        return seconds

    def _sent_s(
        self, rows: IntArray, found: Extended, of_parents: tuple[IntArray, FloatArray, IntArray], number: int, target_s: float
    ) -> FloatArray:
        """Return (C,) chains with the call, the other one of its role, and the reallocation between them."""
        space, options = self.space, self.space.options
        (parent, option, _), (shared, best, shares_with), sent = found, of_parents, space.least_sent[number]
        call = self.call
        other = sent.train if call == sent.call else sent.call
        other_option = rows[parent, other]
        trained, used = (option, other_option) if call == sent.train else (other_option, option)
        more_s = sent.more_s(trained, used, target_s)
        task = space.calls + number
        own, others = shares_with | space.apart[call], shared[parent, other] | space.apart[other]
        moved = shares_with | shared[parent, other] | space.apart[task]
        common = own & others & moved & ~(1 << call) & ~(1 << other) & ~(1 << task)
        chain_s = more_s + options.seconds[call][option] + options.seconds[other][other_option] + best[parent, common]
        apart = (own >> other | others >> call) & 1 == 1
        return np.where(apart, chain_s, 0.0)
