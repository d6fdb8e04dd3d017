"""A process of our own at the other end of a pipe: neither orders to it nor messages from it wait for one that hangs.

A process sends heartbeats from a thread of its own, also while it computes. So one that computes for hours is known to live.
One that was stopped, or that can run no thread any more, is lost after ``heartbeat_timeout_s``. Before it counts as lost it is
watched for a moment: one that uses the processor lives, although a long call of a library may keep its heartbeats back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from rlhfless.system.child_processes import cpu_seconds, how_it_ended, undisturbed, without_main

BEAT_S = 1.0  # between two heartbeats
HEARTBEAT_TIMEOUT_S = 30.0
"""Seconds without a heartbeat after which a process counts as lost, unless an option says otherwise."""
START_TIMEOUT_S = 300.0  # that a process may take to its first heartbeat: it imports its libraries before
GRACE_S = 1.0  # for which a silent process is watched: this program may have been stopped itself, so its heartbeats wait
LEAST_CPU_S = 0.02  # of processor time in the meantime, from which on a process lives
END_S = 5.0  # that a process that was killed may take to be gone
REMEDY = "if it was only slow, give a larger heartbeat_timeout_s"
"""What to do about a process that counted as lost, for the end of an error message."""


class Heartbeat(NamedTuple):
    """Message that the process lives; ``so_far``: what it has done of its order, if it says so."""

    so_far: Any = None


class Ended(NamedTuple):
    """Message that the process has ended; nothing follows."""


class Broken(NamedTuple):
    """Message that an order could not be sent, or a message not be read."""

    error: Exception


class SilentProcess(Exception):
    """A process hangs: it has sent no heartbeat for too long.

    Attributes:
        process: which. timeout_s: how long it was waited for.
    """

    def __init__(self, process: PipedProcess, timeout_s: float) -> None:
        super().__init__(f"sent no heartbeat for {timeout_s:g} s")
        self.process, self.timeout_s = process, timeout_s


class HeartbeatConnection:
    """The process's end of the pipe: sends heartbeats, and lets several threads send.

    Args:
        connection: the pipe, on which nobody else sends.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        with contextlib.suppress(OSError):  # the parent is gone, which ``recv`` says
            self.send(Heartbeat())
        threading.Thread(target=self._beat, name="rlhfless-heartbeat", daemon=True).start()

    def send(self, message: Any) -> None:
        """See ``Connection``."""
        with self._lock:
            self._connection.send(message)

    def recv(self) -> Any:
        """See ``Connection``: waits for an order; a parent that ends closes the pipe."""
        return self._connection.recv()

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # the parent is gone
            while True:
                time.sleep(BEAT_S)
                self.send(Heartbeat())


@contextlib.contextmanager
def beating(beat: Callable[[], object]) -> Iterator[None]:
    """Context in which a thread calls ``beat`` every ``BEAT_S`` seconds."""
    over = threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError):  # whoever listened is gone
            while not over.wait(BEAT_S):
                beat()

    thread = threading.Thread(target=run, name="rlhfless-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # it only sends, to whom this process sends next


class PipedProcess:
    """A spawned process with a pipe, and two threads here: one receives its messages, the other sends it orders.

    Args:
        target: called in the process with its end of the pipe and ``arguments``.
        inbox: gets every message with this object; at last an ``Ended``.

    Attributes:
        heard_s: when it last sent anything, on the monotonic clock; None: it has not yet.
        so_far: that of the last heartbeat that had one; None: there was none. Can be set.
    """

    def __init__(
        self, target: Callable[..., None], arguments: Sequence[Any], name: str, inbox: queue.SimpleQueue[tuple[Any, Any]]
    ) -> None:
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._silent = False  # its pipe has ended, so it is about to
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), name=name, daemon=True)
        self.started_s, self.heard_s, self.so_far = time.monotonic(), None, None
        with undisturbed(), without_main():
            self._process.start()
        theirs.close()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._receive, self._send)]
        for thread in self._threads:
            thread.start()

    started_s: float
    heard_s: float | None
    so_far: Any

    @property
    def pid(self) -> int | None:
        """Return the process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether it runs and its pipe is open."""
        return not self._silent and self._process.is_alive()

    @property
    def exitcode(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """Return what is ready once it has ended, for ``multiprocessing.connection.wait``."""
        return self._process.sentinel

    @property
    def cpu_s(self) -> float | None:
        """Return the processor seconds that it has used; None where the system does not tell."""
        return cpu_seconds(self._process.pid)

    def send(self, order: Any) -> None:
        """Send an order; orders arrive in the order of the calls. If the process has ended, the call does nothing: its end is
        reported.
        """
        self._outbox.put(order)

    def how_it_ended(self, wait_s: float) -> str:
        """Return how the process ended, as part of a sentence; waits ``wait_s`` for its exit."""
        return how_it_ended(self._process, wait_s)

    def kill(self) -> None:
        """Kill the process. It has nothing to clean up: temporary files are removed with it
        (``rlhfless.system.scratch_folders``).
        """
        self._process.kill()

    def join(self, within_s: float = END_S) -> None:
        """Wait for the process to end after ``kill``, and for its last messages, with a time limit in case the machine does not
        end it.
        """
        self._process.join(within_s)
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(within_s)
        self._connection.close()

    def due_s(self, timeout_s: float) -> float:
        """Return when it is to be watched if it says nothing until then, on the monotonic clock."""
        return self.started_s + max(timeout_s, START_TIMEOUT_S) if self.heard_s is None else self.heard_s + timeout_s

    def stands_still(self) -> bool:
        """Watch the process for ``GRACE_S``; return whether it neither sends anything nor computes."""
        heard_s, before_s = self.heard_s, self.cpu_s
        time.sleep(GRACE_S)
        after_s = self.cpu_s
        if before_s is not None and after_s is not None and after_s - before_s >= LEAST_CPU_S:
            self.heard_s = time.monotonic()
        return self.heard_s == heard_s

    # --- what comes of messages, which another kind of process may change ---------------------------------------------

    def _hear(self, message: Any) -> None:
        self._inbox.put((self, message))

    def _unsendable(self, error: Exception) -> None:
        self._inbox.put((self, Broken(error)))

    def _unreadable(self, error: Exception) -> None:
        self._inbox.put((self, Broken(error)))

    def _ended(self) -> None:
        self._inbox.put((self, Ended()))

    # --- the threads --------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while (order := self._outbox.get()) is not None:
            try:
                self._connection.send(order)
            except OSError:
                pass  # it is gone, which the other thread says
            except Exception as error:  # without a word the caller would wait for what was never asked
                self._unsendable(error)

    def _receive(self) -> None:
        while True:
            try:
                message = self._connection.recv()
                self.heard_s = time.monotonic()
                if not isinstance(message, Heartbeat):
                    self._hear(message)
                elif message.so_far is not None:
                    self.so_far = message.so_far
            except (EOFError, OSError):
                self._silent = True
                self._ended()
                return
            except Exception as error:  # unreadable here; without a word the caller would wait for ever
                self._unreadable(error)
                return


def next_message(
    inbox: queue.SimpleQueue[tuple[PipedProcess, Any]],
    processes: Iterable[PipedProcess],
    timeout_s: float = HEARTBEAT_TIMEOUT_S,
) -> tuple[PipedProcess, Any]:
    """Wait for the next message of processes that send heartbeats, and return it with its sender.

    Args:
        timeout_s: how long each of them may send nothing.

    Raises:
        SilentProcess: one of them hangs.
    """
    processes = list(processes)
    while True:
        wait_s = min(process.due_s(timeout_s) for process in processes) - time.monotonic()
        try:
            return inbox.get(timeout=max(0.0, min(wait_s, timeout_s)))  # with its first heartbeat a process is due earlier
        except queue.Empty:
            pass
        for process in processes:
            if process.due_s(timeout_s) <= time.monotonic() and process.stands_still():
                raise SilentProcess(process, timeout_s)


def end_all(processes: Iterable[PipedProcess]) -> None:
    """Kill processes, and wait until all are gone, at most ``END_S`` together."""
    processes = list(processes)
    for process in processes:
        process.kill()
    until_s = time.monotonic() + END_S
    for process in processes:
        process.join(max(0.0, until_s - time.monotonic()))
