"""How much work a search may do, counted in parts whose cost is known, with the clock behind it as a safety net.

Knows nothing of planning. Whoever works says what it did in the seconds that this takes about on the machine for which the
constants of the parts were measured (two cores of a 2.4 GHz server). Counted work is the same in every run, so what it stops is
the same too; the clock only stops what other load on the machine, or a slower one, keeps from its end.
"""

from __future__ import annotations

import math
import time


class WorkBudget:
    """Work done and the limits on it.

    Args:
        most_s: counted seconds of work; stop_at: of the clock (``perf_counter``).

    Attributes:
        spent_s: counted so far. late: whether the clock has stopped something that the counted work would have allowed.
    """

    def __init__(self, most_s: float = math.inf, stop_at: float = math.inf) -> None:
        self.most_s, self.stop_at = most_s, stop_at
        self.spent_s = 0.0
        self.late = False

    def spend(self, seconds: float) -> None:
        """Count work that was done."""
        self.spent_s += seconds

    @property
    def left_s(self) -> float:
        """Counted seconds that are left."""
        return self.most_s - self.spent_s

    @property
    def over(self) -> bool:
        """Whether to stop now: the counted work is done, or the clock says so."""
        if self.left_s <= 0:
            return True
        if time.perf_counter() > self.stop_at:
            self.late = True
        return self.late
