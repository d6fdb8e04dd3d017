"""Simulated engines on the wall clock: one iteration at a time, each of which the actor's process sleeps through."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rlhfless.engine.common.pool_engines import Capabilities
from rlhfless.engine.protocol import Progress
from rlhfless.engine.simulated.engine import SimulatedEngine

SIMULATED = Capabilities("a simulated engine", loads_weights=False)


class RealTimeEngine(SimulatedEngine):
    """A ``SimulatedEngine`` that can also decode in real time.

    Attributes:
        sleep: waits on the wall clock for a number of seconds.
    """

    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """Run one iteration in real time, for the wall-clock event loop; waits until it is over.

        Args:
            from_s: where it begins, unless the last one ended later. clock: returns the time.
        """
        if from_s > self.clock_s:  # the actor did something else meanwhile
            self._leave_schedule()
            self._base_s = from_s
        self._queue_available(-math.inf)
        schedule = self._schedule()
        end_s = schedule.clock_s if schedule.over else schedule.iterations.end_s(schedule.done + 1)
        sleep_until(end_s, clock, self.sleep)
        return self.advance(end_s)


def sleep_until(end_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    """Sleep until ``clock`` is at ``end_s``."""
    while (left_s := end_s - clock()) > 0:
        sleep(left_s)
