"""What every bound on a step answers: the least GPU-seconds within a time, the least time, the least value of an objective."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.model.errors import PlanningError, as_given, check_real, is_number, is_whole
from solver.model.html_tables import facts_table
from solver.model.objective import TOLERANCE, NonGenerationPhases, Objective
from solver.model.workload import FloatArray

PRINTED_TIME_FACTORS = (1.2, 1.5, 2.0, 4.0)  # times the shortest time, where a bound that is printed is read
MAX_TIME_FACTOR, CURVE_POINTS = 20.0, 120  # of a curve: from the shortest time to so many times it, 2.5 % apart
ANY_TIME_S = 1e12


class Curve(NamedTuple):
    """A bound at a grid of times.

    Attributes:
        shortest_s: nothing is faster. min_gpu_s: the least GPU-seconds at any time. time_s, gpu_s: (N,) the curve.
    """

    shortest_s: float
    min_gpu_s: float
    time_s: FloatArray
    gpu_s: FloatArray

    def values(self, objective: Objective, phases_s: float = 0.0, phases_gpu_s: FloatArray | float = 0.0) -> FloatArray:
        """Return (N,) lower bounds on ``T^w C^(1-w)``, each of what takes from one time of the grid to the next.

        Cost falls with time, so nothing between two times is below the earlier time with the later cost.

        Args:
            phases_s, phases_gpu_s: outside the curve, a number or (N,).
        """
        later = np.append(self.gpu_s[1:], self.min_gpu_s)
        return objective.product(self.time_s + phases_s, later + phases_gpu_s)


class Bound(ABC):
    """Lower bound on the GPU-seconds of a step as a function of its time.

    Attributes:
        length: (R,) tokens to generate. ready_s: seconds before an actor decodes.
        phases: of the step, outside the time and the GPU-seconds that are bounded; ``value`` adds them.
    """

    length: FloatArray
    ready_s: float
    phases: NonGenerationPhases = NonGenerationPhases()

    @abstractmethod
    def gpu_seconds(self, time_s: float) -> float:
        """Return the least GPU-seconds of anything that takes at most ``time_s``; infinite if nothing is that fast.

        Raises:
            PlanningError: ``time_s`` is no number.
        """

    @abstractmethod
    def method(self, time_s: float) -> str:
        """Return what proves ``gpu_seconds`` at this time, such as ``configuration LP``."""

    def shortest_s(self) -> float:
        """Return the least time in seconds, at any cost, on the available actors."""
        return self._shortest_s

    @cached_property
    def _shortest_s(self) -> float:
        return self.least_time_s(math.inf)

    def least_time_s(self, gpu_seconds: float) -> float:
        """Return the least time in seconds at a cost of at most ``gpu_seconds``; infinite if nothing costs so little.

        The least cost never rises with time: where the bound exceeds ``gpu_seconds``, no earlier time is possible.

        Raises:
            PlanningError: ``gpu_seconds`` is no number.
        """
        check_real("gpu_seconds", gpu_seconds)

        def too_early(time_s: float) -> bool:
            least = self.gpu_seconds(time_s)
            return math.isinf(least) or least > gpu_seconds

        if not too_early(0.0):  # nothing is to be done
            return 0.0
        low = high = max(self.ready_s, 1e-9)
        for _ in range(200):
            if not too_early(high):
                break
            low, high = high, high * 2
        else:
            return math.inf
        for _ in range(60):
            middle = (low + high) / 2
            if middle in (low, high):  # no number lies between them
                break
            low, high = (middle, high) if too_early(middle) else (low, middle)
        return low

    def value(self, objective: Objective) -> float:
        """Return the least value that a step can have under ``objective``, with its ``phases``; infinite if none is possible.

        Values are ``T^w C^(1-w)`` in seconds and GPU-seconds, or, under a limit, the other of time and cost.

        Raises:
            PlanningError: the objective counts dollars.
        """
        if not isinstance(objective, Objective):
            raise PlanningError(f"objective is {as_given(objective)}; an Objective is needed")
        if objective.cost != "gpu_s":
            raise PlanningError("the objective counts dollars, but bounds count GPU-seconds; give one with cost='gpu_s'")
        shortest_s, phases = self.shortest_s(), self.phases
        if math.isinf(shortest_s):
            return math.inf
        held_gpu_s = phases.step_gpu_s(shortest_s, 0.0)  # of the learner, at least
        limited = objective.with_slack(1 + 2 * TOLERANCE)  # which plans may miss by rounding
        if limited.deadline_s is not None:
            return self.gpu_seconds(limited.deadline_s - phases.seconds) + held_gpu_s
        if limited.budget is not None:
            return phases.step_time_s(self.least_time_s(limited.budget - held_gpu_s))
        curve = self.curve()
        return float(curve.values(objective, phases.seconds, phases.learner_gpus * (curve.time_s + phases.seconds)).min())

    def curve(self, points: int = CURVE_POINTS, furthest: float = MAX_TIME_FACTOR) -> Curve:
        """Return the bound at ``points`` times, from the shortest to ``furthest`` times it.

        A finer grid makes the values on the curve tighter; they are valid on any grid.

        Raises:
            PlanningError: ``points`` is no whole number of 1 or more, or ``furthest`` no number of 1 or more.
        """
        if not is_whole(points, 1):
            raise PlanningError(f"points is {as_given(points)}; a whole number of 1 or more is needed")
        if not is_number(furthest, 1):
            raise PlanningError(f"furthest is {as_given(furthest)}; a number of 1 or more is needed")
        shortest_s = self.shortest_s()
        times = shortest_s * np.geomspace(1.0, furthest, points)
        costs = np.array([self.gpu_seconds(t * (1 + 1e-9)) for t in times])
        feasible = np.isfinite(costs)
        return Curve(shortest_s, self.gpu_seconds(ANY_TIME_S), times[feasible], costs[feasible])

    def _facts(self) -> list[tuple[str, str]]:
        """Return the lines that the bound prints: the shortest time, and the least cost at some multiples of it."""
        count, shortest_s = f"{len(self.length):,}", self.shortest_s()
        if not math.isfinite(shortest_s):
            return [("responses", count), ("shortest possible time", "none: the step is not possible")]
        times = [factor * shortest_s for factor in PRINTED_TIME_FACTORS]
        facts = [("responses", count), ("shortest possible time", f"{shortest_s:.4g} s")]
        for factor, time_s in zip(PRINTED_TIME_FACTORS, times, strict=True):
            if math.isfinite(least := self.gpu_seconds(time_s)):
                facts.append((f"lower bound on cost at {factor:g} x that time", f"{least:.4g} GPU-seconds"))
        return [*facts, ("bounds", " and ".join(sorted({self.method(time_s) for time_s in times})))]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(" + "; ".join(f"{name} {value}" for name, value in self._facts()) + ")"

    def _repr_html_(self) -> str:
        return facts_table("Lower bounds", self._facts())


class LeastBound(Bound):
    """Lower bound on a step that can be run in several ways, such as with actors of several sizes: the least of their bounds.

    A step that uses several of these ways at once, such as actors of two sizes, may be below it.

    Args:
        bounds: one per way, one at least, of the same responses.
    """

    def __init__(self, bounds: Sequence[Bound]) -> None:
        self.bounds = tuple(bounds)
        self.length, self.phases = bounds[0].length, bounds[0].phases
        self.ready_s = min(one.ready_s for one in bounds)

    def gpu_seconds(self, time_s: float) -> float:
        """See ``Bound``."""
        return min(one.gpu_seconds(time_s) for one in self.bounds)

    def method(self, time_s: float) -> str:
        """See ``Bound``."""
        return min((one.gpu_seconds(time_s), one.method(time_s)) for one in self.bounds)[1]

    def value(self, objective: Objective) -> float:
        """See ``Bound``."""
        return min(one.value(objective) for one in self.bounds)
