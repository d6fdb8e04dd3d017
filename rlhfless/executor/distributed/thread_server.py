"""A server of work whose functions run in a thread of this program, such as a learner that lives here."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from rlhfless.executor.distributed.messages import ActorReport, Close, Order, RunItem

POLL_S = 0.02
"""Seconds after which the loop looks for answers, which do not wake it."""


class ThreadServer:
    """Runs functions one after another in a thread. It is told and answers like a ``RemoteActor`` that serves work.

    Args:
        now_s: seconds since the run's start.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[ActorReport] = queue.SimpleQueue()
        self._answers.put(ActorReport(now_s(), ready_s=(now_s(), now_s())))
        self._thread = threading.Thread(target=self._serve, name="rlhfless-work", daemon=True)
        self._thread.start()

    cpu_s = None

    def send(self, order: Order) -> None:
        """See ``RemoteActor``: ``RunItem`` and ``Close``."""
        self._orders.put(order)

    def reports(self) -> list[ActorReport]:
        """Return what it has answered since the last call."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        return found

    def join(self) -> None:
        """Wait until the function that runs has returned; no other runs afterwards."""
        while not self._orders.empty():
            self._orders.get()
        self._orders.put(Close())
        self._thread.join()

    def _serve(self) -> None:
        while isinstance(order := self._orders.get(), RunItem):
            self._answers.put(order.run(self._now_s))
        self._answers.put(ActorReport(self._now_s(), closed=True))
