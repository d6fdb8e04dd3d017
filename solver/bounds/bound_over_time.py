"""What bounds on cost over time have in common: the least time at a cost, and how they print."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

from solver.model.errors import check_real
from solver.model.html_tables import facts_table
from solver.model.workload import FloatArray

PRINTED_TIME_FACTORS = (1.2, 1.5, 2.0, 4.0)  # times the shortest time, where a bound that is printed is read


class BoundOverTime(ABC):
    """Lower bound on the cost of any policy as a function of generation time, for one workload.

    Attributes:
        length: (R,) iterations of the responses. ready_s: seconds before an actor decodes. unit: of costs,
            ``gpu_s`` or ``usd``; cost_name: what error messages call them.
    """

    cost_name: ClassVar[str] = "cost"
    length: FloatArray
    ready_s: float
    unit: str

    @abstractmethod
    def cost(self, time_s: float) -> float:
        """Return a lower bound on the cost of any policy that completes the workload within ``time_s``; infinite if
        none can.

        Raises:
            PlanningError: ``time_s`` is no number.
        """

    def shortest_s(self) -> float:
        """Return a lower bound on the time of any policy on the available actors, in seconds."""
        return self._shortest_s

    @cached_property
    def _shortest_s(self) -> float:
        return self.least_time_s(math.inf)

    def least_time_s(self, cost: float) -> float:
        """Return a lower bound on the time of any policy that costs at most ``cost``; infinite if none costs so little.

        The cost of the best policy never rises with time: where the bound exceeds ``cost``, no earlier time is possible.

        Raises:
            PlanningError: ``cost`` is no number.
        """
        check_real(self.cost_name, cost)

        def too_early(time_s: float) -> bool:
            least = self.cost(time_s)
            return math.isinf(least) or least > cost

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

    def _facts(self) -> list[tuple[str, str]]:
        """Return the lines that the bound prints: the shortest time, and the least cost at some multiples of it."""
        count, shortest_s = f"{len(self.length):,}", self.shortest_s()
        if not math.isfinite(shortest_s):
            return [("responses", count), ("shortest possible time", "none: no policy can generate the step")]
        facts = [("responses", count), ("shortest possible time", f"{shortest_s:.4g} s")]
        unit = "GPU-seconds" if self.unit == "gpu_s" else "USD"
        least = (
            (f"lower bound on cost at {factor:g} x that time", self.cost(factor * shortest_s))
            for factor in PRINTED_TIME_FACTORS
        )
        return facts + [(name, f"{cost:.4g} {unit}") for name, cost in least if math.isfinite(cost)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(" + "; ".join(f"{name} {value}" for name, value in self._facts()) + ")"

    def _repr_html_(self) -> str:
        return facts_table("Lower bounds for every policy", self._facts())
