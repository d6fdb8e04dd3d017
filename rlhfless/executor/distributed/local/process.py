"""One process that can be an actor: spawned, spoken to through a pipe, ended.

Knows processes and pipes; nothing of what is said. Processes are spawned, never forked, and without the caller's main module,
so that scripts need no main guard and notebooks nothing at all. A thread per process brings what it says and another takes
orders to it, so that nobody waits: it not for whoever listens, and whoever gives orders not for a process that has stopped.
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
from multiprocessing.process import BaseProcess
from typing import Any

from rlhfless.executor.distributed.worker import worker

END_S = 5.0  # that a process that was killed may take to be gone
SOON_S = 0.5  # that a process whose pipe has ended has to say how it ended


class Process:
    """A process that can be an actor, and threads that bring what it says to ``inbox``, None when it has ended, and orders to
    it.

    Args:
        ahead: what it starts before it can take orders; None: nothing.

    Attributes:
        device: that it computes on.
        up_s: when it could take orders, on this machine's monotonic clock; None before.
    """

    def __init__(
        self, device: str, side: str, inbox: queue.SimpleQueue[tuple[Process, Any]], ahead: worker.PrewarmOrder | None = None
    ) -> None:
        self.device, self._inbox = device, inbox
        self.up_s: float | None = None
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._silent = False  # its pipe has ended, so it is about to
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        args = theirs, device, side, ahead
        self._process = context.Process(target=worker.main, args=args, name=f"rlhfless-{device}", daemon=True)
        with undisturbed(), without_main():
            self._process.start()
        theirs.close()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._receive, self._send)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int | None:
        """Id of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs and its pipe is open."""
        return not self._silent and self._process.is_alive()

    def send(self, order: Any) -> None:
        """Orders arrive in their order. If it is gone, nothing happens here: its end is reported."""
        self._outbox.put(order)

    def end(self) -> str:
        """How it ended, for a sentence."""
        return how_it_ended(self._process, SOON_S)

    def kill(self) -> None:
        """It holds nothing that it would have to put in order: what it leaves goes with it
        (``rlhfless.system.scratch_folders``)."""
        self._process.kill()

    def join(self) -> None:
        """Wait for its end after ``kill``, and for the last that it said; not for ever, should the machine not let go of it."""
        self._process.join(END_S)
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(END_S)
        self._connection.close()

    def _send(self) -> None:
        while (order := self._outbox.get()) is not None:
            try:
                self._connection.send(order)
            except OSError:
                pass  # it is gone, which the other thread says
            except Exception as error:  # without a word the step would wait for what was never asked
                self._inbox.put((self, worker.Failed(f"an order that cannot be sent ({error})", "", hopeless=True)))

    def _receive(self) -> None:
        while True:
            try:
                said = self._connection.recv()
                if isinstance(said, worker.ActorReady):
                    self.up_s = said.up_s
                else:
                    self._inbox.put((self, said))
            except (EOFError, OSError):
                self._silent = True
                self._inbox.put((self, None))
                return
            except Exception as error:  # unreadable here; without a word the step would wait for ever
                self._inbox.put((self, worker.Failed(f"an unreadable report ({error})", "")))
                return


def how_it_ended(process: BaseProcess, wait_s: float) -> str:
    """What became of a process whose pipe has ended, for a sentence that begins with its name; it has ``wait_s`` to be gone."""
    process.join(wait_s)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """What is started in here never sees Ctrl-C, which a terminal sends to everybody: the pool ends its processes itself."""
    resource_tracker.ensure_running()  # else starting it in here would undo the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """What is spawned in here does not import the caller's main module: it needs nothing of it, and might start over."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
