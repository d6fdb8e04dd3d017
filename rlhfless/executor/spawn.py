"""One process that can be an actor: spawned, spoken to through a pipe, ended.

Knows processes and pipes; nothing of what is said. Processes are spawned, never forked, and without the caller's main module,
so that scripts need no main guard and notebooks nothing at all. A thread per process brings what it says, so that it never
waits for whoever listens.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

from rlhfless.executor import worker

END_S = 5.0  # that a process whose pipe has ended may take to end itself


class Process:
    """A process that can be an actor, and a thread that brings what it says to ``inbox``; None when it has ended.

    Attributes:
        device: that it computes on.
        side, binding: of the engines that it can make (see ``sides.py``).
    """

    def __init__(self, device: str, side: str, binding: Any, inbox: queue.SimpleQueue[tuple[Process, Any]]) -> None:
        self.device, self.side, self.binding, self._inbox = device, side, binding, inbox
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=worker.main, args=(theirs, device, side), name=f"rlhfless-{device}", daemon=True)
        with _undisturbed(), _without_main():
            self._process.start()
        theirs.close()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def send(self, order: Any) -> None:
        """If it is gone, nothing happens here: its end is reported."""
        with contextlib.suppress(OSError):
            self._connection.send(order)

    def end(self) -> str:
        """How it ended, for a sentence."""
        self._process.join(END_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """It holds nothing that it would have to put in order."""
        self._process.kill()

    def join(self) -> None:
        """Wait for its end, and for the last that it said."""
        self._process.join()
        self._thread.join()
        self._connection.close()

    def _receive(self) -> None:
        while True:
            try:
                self._inbox.put((self, self._connection.recv()))
            except (EOFError, OSError):
                self._inbox.put((self, None))
                return
            except Exception as error:  # unreadable here; without a word the step would wait for ever
                self._inbox.put((self, worker.Failed(f"an unreadable report ({error})", "")))
                return


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """What is started in here never sees Ctrl-C, which a terminal sends to everybody: the pool ends its processes itself."""
    resource_tracker.ensure_running()  # else starting it in here would undo the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """What is spawned in here does not import the caller's main module: it needs nothing of it, and might start over."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
