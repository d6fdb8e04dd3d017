"""Simulated engines on the wall clock: one iteration at a time, each of which the actor's process sleeps through.

``RemoteFactory`` is what pools need of a factory whose engines have no weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ClassVar, Self

from rlhfless.engine.protocol import Progress
from rlhfless.engine.simulated.engine import SimulatedEngine
from solver.model.latency import LatencyModel


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


class RemoteFactory:
    """A factory of simulated engines for actors in separate processes (see ``RemoteEngines`` of the executor)."""

    backend_module: ClassVar[str] = "rlhfless.engine.simulated.worker_backend"
    one_gpu: ClassVar[bool] = False
    min_start_timeout_s: ClassVar[float] = 0.0
    starts_server: ClassVar[bool] = False
    takes_prefixes: ClassVar[bool] = False
    weights_version: ClassVar[None] = None
    weight_bytes: ClassVar[int] = 0

    def measured(self) -> Self:
        """Return itself: its engines sleep for as long as they are charged."""
        return self

    def to_remote(self) -> Self:
        """Return the form of the factory that other machines receive: itself."""
        return self

    def compatibility_key(self, latency: LatencyModel) -> None:
        """Return the compatibility key of a process for these engines: None, because any process can make them."""


def sleep_until(end_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    """Sleep until ``clock`` is at ``end_s``."""
    while (left_s := end_s - clock()) > 0:
        sleep(left_s)
