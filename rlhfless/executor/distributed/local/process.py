"""One process that can run an actor: spawned, connected by a pipe, ended.

Processes are spawned, never forked, and without the caller's main module. So scripts need no main guard and notebooks need no
preparation. Two threads per process make both directions non-blocking. One receives messages, so the process never waits for a
reader. The other sends orders, so the sender never waits for a stopped process.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
from typing import Any

from rlhfless.executor.distributed.worker import process, worker
from rlhfless.executor.distributed.worker.process_messages import ActorReady, Failed
from rlhfless.system.child_processes import how_it_ended, undisturbed, without_main

END_S = 5.0  # that a process that was killed may take to be gone
SOON_S = 0.5  # that a process whose pipe has ended has to say how it ended


class Process:
    """A process that can run an actor, with two threads. One puts its messages into ``inbox`` (None when it has ended), the
    other sends it orders.

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
        self.device, self._inbox = device, inbox
        self.up_s: float | None = None
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._silent = False  # its pipe has ended, so it is about to
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        args = theirs, device, backend_module, prewarm
        self._process = context.Process(target=process.main, args=args, name=f"rlhfless-{device}", daemon=True)
        with undisturbed(), without_main():
            self._process.start()
        theirs.close()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._receive, self._send)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int | None:
        """Return the process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether it runs and its pipe is open."""
        return not self._silent and self._process.is_alive()

    def send(self, order: Any) -> None:
        """Send an order; orders arrive in the order of the calls. If the process has ended, the call does nothing: its end is
        reported.
        """
        self._outbox.put(order)

    def how_it_ended(self) -> str:
        """Return how the process ended, as part of a sentence."""
        return how_it_ended(self._process, SOON_S)

    def kill(self) -> None:
        """Kill the process. It has nothing to clean up: temporary files are removed with it
        (``rlhfless.system.scratch_folders``).
        """
        self._process.kill()

    def join(self) -> None:
        """Wait for the process to end after ``kill``, and for its last messages, with a time limit in case the machine does not
        end it.
        """
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
                self._inbox.put((self, Failed(f"an order that cannot be sent ({error})", "", hopeless=True)))

    def _receive(self) -> None:
        while True:
            try:
                message = self._connection.recv()
                if isinstance(message, ActorReady):
                    self.up_s = message.up_s
                else:
                    self._inbox.put((self, message))
            except (EOFError, OSError):
                self._silent = True
                self._inbox.put((self, None))
                return
            except Exception as error:  # unreadable here; without a word the step would wait for ever
                self._inbox.put((self, Failed(f"an unreadable report ({error})", "")))
                return
