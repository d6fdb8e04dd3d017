"""Best-first search over the makespan: the plan and the proof for one GPU kind.

Knows the relaxation and next-fit; nothing of CP-SAT. For every makespan M the relaxation says what any plan within M costs
at least, next-fit gives a plan. Between two makespans M_q <= M_{q+1} the value of any plan whose own makespan lies there is
at least ``w * M_q / T_ref + (1 - w) * C(M_{q+1}) / C_ref``, because the relaxed cost C never rises with M. The interval with
the least bound is halved until the bound meets the best plan.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from solver.objective import Objective, StepRest
from solver.relaxation import SortedWork
from solver.rounding import next_fit

Groups = list[tuple[int, int]]


@dataclass
class MakespanSearch:
    """State of the search: the best groups, their value, and the bound below every plan.

    Args:
        work: the sorted workload; gpus: GPUs of an actor.
        value_of: exact value of groups (evaluation by the caller).
        best_value: of a plan that is known already; only better groups are kept.
    """

    work: SortedWork
    gpus: int
    objective: Objective
    rest: StepRest
    reference: tuple[float, float]
    value_of: Callable[[Groups], float]
    best_value: float = math.inf
    best_groups: Groups | None = None
    lower_bound: float = 0.0
    _tried: set[tuple[int, ...]] = field(default_factory=set)

    def run(self, gap: float, deadline: float, most_halvings: int = 60) -> None:
        """Search until the relative gap is reached, the clock passes ``deadline`` (perf_counter) or halvings run out.

        While no plan is known at all, the clock does not stop the first pass over the grid.
        """
        low, high = self._range()
        if high < low:
            self.lower_bound = math.inf
            return
        grid = [low * (high / low) ** (i / 12) for i in range(13)] if high > low > 0 else [low, high]
        grid[-1] = high
        intervals = [(self._interval_bound(a, b), a, b) for a, b in itertools.pairwise(grid)]
        intervals.sort()  # which makes it a heap
        for makespan_s in [*(b for _, _, b in intervals), low]:
            self._try(makespan_s)
            if self.best_value < math.inf and time.perf_counter() > deadline:
                break
        for _ in range(most_halvings):
            bound, a, b = intervals[0]
            if bound >= self.best_value * (1 - gap) or b - a <= 1e-9 * b or time.perf_counter() > deadline:
                break
            heapq.heappop(intervals)
            middle = (a + b) / 2
            self._try(middle)
            for x, y in ((a, middle), (middle, b)):
                heapq.heappush(intervals, (max(bound, self._interval_bound(x, y)), x, y))
        self.lower_bound = min(intervals[0][0], self.best_value)

    def bound_beyond(self, actors: int, enough: float, most_halvings: int = 60) -> float:
        """No plan of more than ``actors`` actors has a smaller value; the search for it ends at ``enough``."""
        low, high = self._range()
        intervals = [(self._interval_bound(low, high, actors + 1), low, high)] if low <= high else [(math.inf, low, high)]
        for _ in range(most_halvings):
            bound, a, b = intervals[0]
            if bound >= enough or b - a <= 1e-9 * b:
                break
            heapq.heappop(intervals)
            middle = (a + b) / 2
            for x, y in ((a, middle), (middle, b)):
                heapq.heappush(intervals, (max(bound, self._interval_bound(x, y, actors + 1)), x, y))
        return intervals[0][0]

    def _range(self) -> tuple[float, float]:
        """The makespans between which the best plan lies; empty (low above high) when the deadline is too early."""
        low, high = self.work.shortest_makespan_s, self.work.longest_makespan_s * (1 + 1e-9)
        if self.objective.deadline_s is not None:
            high = min(high, self.objective.deadline_s - self.rest.seconds)
        return low, high

    def _interval_bound(self, low_s: float, high_s: float, least_actors: int = 1) -> float:
        """No plan (of ``least_actors`` or more) whose makespan lies in [low_s, high_s] has a smaller value; infinite when there
        is none."""
        relaxed = self.work.relaxed(high_s, least_actors)
        if relaxed is None:
            return math.inf
        gpu_s = self.rest.step_gpu_s(low_s, self.gpus * relaxed.actor_s)
        return self.objective.value(self.rest.step_time_s(low_s), gpu_s, self.reference)

    def _try(self, makespan_s: float) -> None:
        groups = next_fit(self.work, makespan_s)
        if groups is None:
            return
        key = tuple(last for _, last in groups)
        if key in self._tried:
            return
        self._tried.add(key)
        value = self.value_of(groups)
        if value < self.best_value:
            self.best_value, self.best_groups = value, groups
