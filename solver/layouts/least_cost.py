"""Bounds from below for how many GPU-seconds a step's calls and reallocations hold their GPUs, for partial plans.

A call counts GPUs times seconds: of the chosen option, of the fastest strategy where only the mesh is chosen (on one mesh the
fastest is the cheapest), and of the cheapest option where nothing is. A reallocation counts exactly where both layouts are
chosen. Where both meshes are, what ``least_sent.py`` knows of it counts on the smaller mesh. A role counts no less than in the
cheapest combination of its training with each of its other calls that fits beside it, and with the weights that are sent.
"""

from __future__ import annotations

import numpy as np

from solver.layouts.options import FloatArray, IntArray
from solver.layouts.plan_space import PlanSpace


class LeastCost:
    """Least GPU-seconds of the partial plans of a space.

    Attributes:
        area: for every call the (n,) GPU-seconds of its options.
    """

    def __init__(self, space: PlanSpace) -> None:
        assert not space.options.freed_early, "GPUs that are given back early are not counted here"
        self.space = space
        options = space.options
        self.width = [spans[:, 1] - spans[:, 0] for spans in options.spans]
        self.area = [seconds * width for seconds, width in zip(options.seconds, self.width, strict=True)]
        self.fits = [np.concatenate(list(meshes.values())) for meshes in space.by_mesh]
        self.cheapest = [own[np.argsort(area[own], kind="stable")] for area, own in zip(self.area, self.fits, strict=True)]
        self.least_area = [float(area[own[0]]) for area, own in zip(self.area, self.cheapest, strict=True)]
        trained_by = options.graph.trained_by
        self.others = {train: [c for c, by in enumerate(trained_by) if by == train != c] for train in space.trains}
        self.of_role = {train: self._of_role(train) for train in space.trains}
        frozen = sum(area for area, train in zip(self.least_area, trained_by, strict=True) if train is None)
        self.gpu_s = frozen + sum(self.of_role.values())

    def of(self, rows: IntArray, depth: int, target_s: float) -> FloatArray:
        """Return (P,) least GPU-seconds of plans with these choices whose period is below ``target_s``.

        Args:
            rows: (P, K) partial plans after ``depth`` steps: first every call gets its mesh, then every call its strategy.
        """
        space = self.space
        exact = set(space.strategy_calls[: max(0, depth - space.calls)])
        of_calls = [
            np.where(rows[:, call] >= 0, area[rows[:, call]], least)
            for call, (area, least) in enumerate(zip(self.area, self.least_area, strict=True))
        ]
        total = np.zeros(len(rows))
        for call, train in enumerate(space.options.graph.trained_by):
            if train is None:
                total += of_calls[call]
        for train, others in self.others.items():
            role = sum((of_calls[call] for call in others), of_calls[train])
            for sent in space.least_sent:
                if sent.train == train and len(rows) and rows[0, train] >= 0 and rows[0, sent.call] >= 0:
                    role = role + self._sent(rows, train, sent.call, exact, target_s)
            total += np.maximum(role, self.of_role[train])
        return total

    def _sent(self, rows: IntArray, train: int, call: int, exact: set[int], target_s: float) -> FloatArray:
        """Return (P,) least GPU-seconds of a reallocation, and of slower strategies in place of it."""
        space, options = self.space, self.space.options
        one, other = rows[:, train], rows[:, call]
        if {train, call} <= exact:
            return options.reallocation_s(call, one, other) * self._together(train, one, call, other)
        number = options.reallocated.index(call)
        fastest = space.fastest_of[train][one], space.fastest_of[call][other]
        seconds = options.seconds
        slower_s = seconds[train][one] - seconds[train][fastest[0]] + seconds[call][other] - seconds[call][fastest[1]]
        more_s = np.maximum(0.0, space.least_sent[number].more_s(*fastest, target_s) - slower_s)
        return np.asarray(more_s * np.minimum(self.width[train][one], self.width[call][other]))

    def _together(self, train: int, one: IntArray, call: int, other: IntArray) -> IntArray:
        """Return (P,) GPUs of an option of a training and an option of a call together."""
        spans = self.space.options.spans
        common = np.minimum(spans[train][one, 1], spans[call][other, 1]) - np.maximum(
            spans[train][one, 0], spans[call][other, 0]
        )
        return np.asarray(self.width[train][one] + self.width[call][other] - np.maximum(common, 0))

    def _of_role(self, train: int) -> float:
        """Return the least GPU-seconds of a role's calls and of what is sent to them; infinite if they never fit."""
        others = self.others[train]
        rest = sum(self.least_area[call] for call in others)
        least = np.inf
        for one in self.cheapest[train].tolist():
            total = float(self.area[train][one])
            if total + rest >= least:
                break
            total += sum(self._of_call(train, one, call) for call in others)
            least = min(least, total)
        return least

    def _of_call(self, train: int, one: int, call: int) -> float:
        """Return the least GPU-seconds of a call beside option ``one`` of its role's training, with what is sent to it."""
        space, options, least = self.space, self.space.options, np.inf
        own, trained = self.cheapest[call], np.array([one])
        spans = options.spans
        apart = (spans[call][own, 0] >= spans[train][one, 1]) | (spans[call][own, 1] <= spans[train][one, 0])
        needed = space.keeps[train][one] + space.works[call][own] + options.copies(call, own, np.full(len(own), one))
        for other in own[apart | (needed <= space.limit_bytes)].tolist():
            area = float(self.area[call][other])
            if area >= least:
                break
            sent_s = options.reallocation_s(call, trained, np.array([other]))
            least = min(least, area + float((sent_s * self._together(train, trained, call, np.array([other])))[0]))
        return least
