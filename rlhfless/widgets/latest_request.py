"""A worker thread that processes only the newest request; earlier requests that have not started are dropped.

A moving slider sends dozens of requests a second, and all but the last are obsolete. When the program ends, work under way is
told that it is obsolete and waited for: native threads of a solver that the interpreter leaves behind would abort the process.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")
EXIT_S = 30.0
"""The longest that the end of the program waits for work under way."""
Newest = Callable[[], bool]
"""Whether the request that is worked on is still the newest; work asks between its parts, and stops where it is not."""


class LatestRequestWorker(Generic[T]):
    """Passes the newest request to ``work``, in one thread that lives as long as there are requests.

    Args:
        work: called with a request and a ``Newest``.
        on_error: called with what ``work`` raised; the next request is processed all the same.
        wait_s: pause between two requests. A request that arrives while the worker is idle starts at once. Of the requests that
            arrive during work, only the newest starts, after this pause.
    """

    def __init__(self, work: Callable[[T, Newest], None], on_error: Callable[[Exception], None], wait_s: float = 0.03) -> None:
        self._work, self._on_error, self._wait_s = work, on_error, wait_s
        self._changed = threading.Condition()
        self._request: T | None = None
        self._asked = self._begun = 0
        self._thread: threading.Thread | None = None

    def submit(self, request: T) -> None:
        """Request this, replacing any request that has not started."""
        with self._changed:
            self._request, self._asked = request, self._asked + 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlhfless-latest", daemon=True)
                _workers.add(self)
                self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no request is left; returns whether that happened within the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def stop(self, timeout_s: float | None = None) -> bool:
        """Drop what is requested, and wait for the work under way; returns whether it ended within the timeout."""
        with self._changed:
            self._asked += 1
            self._begun = self._asked
        return self.wait(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._begun == self._asked:
                    self._thread = None
                    self._changed.notify_all()
                    return
                number, request = self._asked, self._request
                self._begun = number
            try:
                self._work(request, partial(self._is_newest, number))  # type: ignore[arg-type]
            except Exception as error:
                self._report_error(error)
            time.sleep(self._wait_s)

    def _report_error(self, error: Exception) -> None:
        """Report the error. The error callback may fail as well: the next request is processed all the same."""
        try:
            self._on_error(error)
        except Exception:
            logging.getLogger(__name__).exception("an error could not be shown")

    def _is_newest(self, number: int) -> bool:
        return number == self._asked


_workers: weakref.WeakSet[LatestRequestWorker[Any]] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for worker in list(_workers):
        worker.stop(EXIT_S)
