"""A server of work whose functions run in a thread of this program, such as a learner that lives here."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from rlhfless.engine.protocol import Completion
from rlhfless.executor.distributed.messages import ActorReport, ItemAnswer

POLL_S = 0.02
"""Seconds after which the loop looks for answers, which do not wake it."""


class ThreadServer:
    """Runs functions one after another in a thread. It is told and answers like a ``RemoteActor`` that serves work.

    Args:
        now_s: seconds since the run's start.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._orders: queue.SimpleQueue[tuple[int, Any, Sequence[Completion], Sequence[Any]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[ActorReport] = queue.SimpleQueue()
        self._answers.put(ActorReport(now_s(), ready_s=(now_s(), now_s())))
        self._thread = threading.Thread(target=self._serve, name="rlhfless-work", daemon=True)
        self._thread.start()

    def run_item(self, index: int, function: Any, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        """See ``RemoteActor``."""
        self._orders.put((index, function, completions, results))

    def close(self) -> None:
        """See ``RemoteActor``."""
        self._orders.put(None)

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
        self._orders.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            index, function, completions, results = order
            start_s = self._now_s()
            try:
                done = ItemAnswer(index, start_s, start_s, value=function(tuple(completions), tuple(results)))
            except BaseException as error:  # nobody else would hear of it
                said = f"{type(error).__name__}: {error}"
                done = ItemAnswer(index, start_s, start_s, error=said, trace=traceback.format_exc())
            end_s = self._now_s()
            self._answers.put(ActorReport(end_s, item=done.until(end_s)))
        self._answers.put(ActorReport(self._now_s(), closed=True))
