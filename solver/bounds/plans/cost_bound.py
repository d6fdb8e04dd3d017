"""What the lower bounds on the cost of plans within a makespan have in common.

``late_opening`` is for one offer of actors and takes a tenth of a millisecond; ``sequence_bound`` is for several.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from solver.timing.items import Items

BISECTIONS, NARROW = 40, 1e-4  # of the least makespan, and the relative width at which they end


class CostBound(ABC):
    """Lower bound on the cost of generation as a function of the makespan, for the predicted lengths of ``items``.

    Attributes:
        least_actors: actors of every plan in question, at least.
        done: whether actors release their GPUs once done; else they hold them for ``after_s`` seconds beyond the makespan.
    """

    def __init__(self, items: Items, least_actors: int | None = None) -> None:
        problem, self.items = items.problem, items
        self.least_actors = problem.needed_actors if least_actors is None else least_actors
        self.done = problem.release == "done"
        self.after_s = problem.phases.seconds if problem.release == "step" else 0.0

    @abstractmethod
    def at(self, makespan_s: float, stop_above: float = math.inf, low_s: float = 0.0) -> float:
        """Return the bound for plans with makespans between ``low_s`` and ``makespan_s``, or ``stop_above`` if it is higher.

        It never rises with ``makespan_s``, and is infinite when there is no such plan. ``low_s`` only matters where GPUs are
        held until the end.
        """

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan: every item takes its time alone."""
        return self.items.shortest_makespan_s

    @property
    def longest_makespan_s(self) -> float:
        """Return the makespan of everything one after the other on the slowest actor, from which on the bound no longer
        falls."""
        return max(self.items.shortest_makespan_s, self.items.longest_makespan_s)

    @property
    def least_makespan_s(self) -> float:
        """Return a lower bound on the makespan of every plan, by bisection; infinite when there is no plan."""
        low, high = self.shortest_makespan_s, self.longest_makespan_s
        if math.isinf(self.at(high)):
            return math.inf
        for _ in range(BISECTIONS):
            if high - low <= NARROW * high:
                break
            middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
            low, high = (low, middle) if math.isfinite(self.at(middle)) else (middle, high)
        return low
