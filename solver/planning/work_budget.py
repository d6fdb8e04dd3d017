"""Work budget of a search: counts work in seconds of known cost, with the clock as a safety net.

Each part of a search reports its work as the seconds that it takes on the reference machine (two cores of a 2.4 GHz server).
Counted work is the same in every run, so a search that it stops always stops at the same point. The clock stops a search only
on a slower or busy machine.
"""

from __future__ import annotations

import math
import time


class WorkBudget:
    """Counts work done against its limits.

    Args:
        most_s: counted seconds of work; stop_at: time of the clock (``perf_counter``).

    Attributes:
        spent_s: counted so far. late: whether the clock has stopped something that the counted work would have allowed.
    """

    def __init__(self, most_s: float = math.inf, stop_at: float = math.inf) -> None:
        self.most_s, self.stop_at = most_s, stop_at
        self.spent_s = 0.0
        self.late = False

    def spend(self, seconds: float) -> None:
        """Count this many seconds of work."""
        self.spent_s += seconds

    @property
    def left_s(self) -> float:
        """Return the counted seconds that are left."""
        return self.most_s - self.spent_s

    def late_after(self, seconds: float) -> bool:
        """Return whether work that takes this many seconds would end after ``stop_at``; then the search counts as late."""
        late = time.perf_counter() + seconds > self.stop_at
        self.late |= late
        return late

    @property
    def over(self) -> bool:
        """Return whether to stop now: the counted work is done, or the clock has reached ``stop_at``."""
        if self.left_s <= 0:
            return True
        if time.perf_counter() > self.stop_at:
            self.late = True
        return self.late
