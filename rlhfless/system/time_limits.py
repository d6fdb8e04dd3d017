"""A time limit of the shell or of a batch system ends a command as Ctrl-C does, so that it can print what is finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_by_time_limits() -> Iterator[None]:
    """Context manager in which SIGTERM raises ``KeyboardInterrupt``; ``timeout`` and batch systems send it.

    Other threads than the main one receive no signals, so nothing changes there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual or signal.SIG_DFL)  # None: it was not set from Python
