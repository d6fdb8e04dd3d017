"""One process that can run an actor: spawned, connected by a pipe, ended.

Processes are spawned, never forked, and without the caller's main module. So scripts need no main guard and notebooks need no
preparation. Neither direction of the pipe waits for a process that stands still (``rlhfless.system.piped_processes``).
"""

from __future__ import annotations

import queue
from typing import Any

from rlhfless.executor.distributed.worker import process, worker
from rlhfless.executor.distributed.worker.process_messages import ActorReady, Failed
from rlhfless.system.piped_processes import PipedProcess

SOON_S = 0.5  # that a process whose pipe has ended has to say how it ended


class Process(PipedProcess):
    """A process that can run an actor. Its messages are put into ``inbox`` (None when it has ended).

    Args:
        prewarm: what it starts before it accepts orders; None: nothing.

    Attributes:
        device: on which it computes.
        up_s: when it could accept orders, on this machine's monotonic clock; None before.
    """

    def __init__(
        self,
        device: str,
        backend_module: str,
        inbox: queue.SimpleQueue[tuple[Process, Any]],
        prewarm: worker.PrewarmOrder | None = None,
    ) -> None:
        self.device, self.up_s = device, None
        super().__init__(process.main, (device, backend_module, prewarm), f"rlhfless-{device}", inbox)

    up_s: float | None

    def how_it_ended(self, wait_s: float = SOON_S) -> str:
        """Return how the process ended, as part of a sentence."""
        return super().how_it_ended(wait_s)

    def _hear(self, message: Any) -> None:
        if isinstance(message, ActorReady):
            self.up_s = message.up_s
        else:
            self._inbox.put((self, message))

    def _unsendable(self, error: Exception) -> None:
        self._inbox.put((self, Failed(f"an order that cannot be sent ({error})", "", unrecoverable=True)))

    def _unreadable(self, error: Exception) -> None:
        self._inbox.put((self, Failed(f"an unreadable report ({error})", "")))

    def _ended(self) -> None:
        self._inbox.put((self, None))
