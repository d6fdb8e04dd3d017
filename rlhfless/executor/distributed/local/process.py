"""One process of this machine that can run an actor."""

from __future__ import annotations

import queue
from typing import Any

from rlhfless.executor.distributed.worker import process, worker
from rlhfless.system.child import Child

SOON_S = 0.5  # that a process whose pipe has ended has to say how it ended


class Process(Child):
    """A process that can run an actor.

    Args:
        prewarm: what it starts before it accepts orders; None: nothing.

    Attributes:
        device: on which it computes.
    """

    def __init__(
        self,
        device: str,
        backend_module: str,
        inbox: queue.SimpleQueue[tuple[Process, Any]],
        prewarm: worker.PrewarmOrder | None = None,
    ) -> None:
        self.device = device
        super().__init__(process.main, (device, backend_module, prewarm), f"rlhfless-{device}", inbox)

    @property
    def up_s(self) -> float | None:
        """Return when it could accept orders, on this machine's monotonic clock; None before."""
        return None if self.ready is None else float(self.ready.value)

    def how_it_ended(self, wait_s: float = SOON_S) -> str:
        """Return how the process ended, as part of a sentence."""
        return super().how_it_ended(wait_s)
