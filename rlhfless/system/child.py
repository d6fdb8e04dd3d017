"""The owner of child processes: starts them, talks to them with a time limit, says how they ended, and ends them.

A child is spawned, never forked, and without the caller's main module: scripts need no main guard, notebooks no preparation. It
has a process group of its own, so Ctrl-C in a terminal is for this program alone, and what the child starts ends with it. The
kernel ends it with its parent. Neither orders to a child nor messages from it wait for one that hangs: two threads here carry
them. ``serve`` is the other end for a child that answers calls.

A child may send heartbeats from a thread of its own, also while it computes. So one that computes for hours is known to live.
One that was stopped, or that can run no thread any more, is lost after ``heartbeat_timeout_s``. Before it counts as lost it is
watched for a moment: one that uses the processor lives, although a long call of a library may keep its heartbeats back.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker, util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

BEAT_S = 1.0  # between two heartbeats
HEARTBEAT_TIMEOUT_S = 30.0
"""Seconds without a heartbeat after which a process counts as lost, unless an option says otherwise."""
START_TIMEOUT_S = 300.0  # that a process may take to its first heartbeat: it imports its libraries before
GRACE_S = 1.0  # for which a silent process is watched: this program may have been stopped itself, so its heartbeats wait
LEAST_CPU_S = 0.02  # of processor time in the meantime, from which on a process lives
END_S = 5.0  # that a process that was killed may take to be gone
REMEDY = "if it was only slow, give a larger heartbeat_timeout_s"
"""What to do about a process that counted as lost, for the end of an error message."""
PR_SET_PDEATHSIG = 1
CONTROL_GROUPS = Path("/sys/fs/cgroup")


# --- messages of a child ----------------------------------------------------------------------------------------------


class Heartbeat(NamedTuple):
    """The child lives; ``so_far``: what it has done of its order, if it says so."""

    so_far: Any = None


class Ready(NamedTuple):
    """The child accepts orders; ``value``: what it says of itself."""

    value: Any = None


class Answer(NamedTuple):
    """The result of a call."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """An exception in the child, or one of sending it an order or reading its message.

    Attributes:
        kind: name of the exception's class. message: what it says. trace: where it was raised.
        error: the exception in words, for a sentence.
        out_of_memory: a smaller order may succeed. unrecoverable: the same order would fail in any other process, too.
        pickled: the exception itself, where it can be pickled.
    """

    kind: str
    message: str
    trace: str
    error: str
    out_of_memory: bool = False
    unrecoverable: bool = False
    pickled: bytes | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """Return the message for an exception; called where it is handled."""
        kind, pickled = type(error).__name__, None
        with contextlib.suppress(Exception):
            pickled = pickle.dumps(error)
        # A request is wrong, or the weights are (logits that are no numbers): it is the same wherever they go.
        unrecoverable = isinstance(error, ValueError | TypeError | FloatingPointError)
        out_of_memory = isinstance(error, MemoryError) or kind == "OutOfMemoryError"  # torch's, which is not imported here
        trace = "".join(traceback.format_exception(error))
        return cls(kind, str(error), trace, f"{kind}: {error}", out_of_memory, unrecoverable, pickled)

    @property
    def exception(self) -> Exception:
        """Return the exception itself; a ``RuntimeError`` with its trace where it could not be pickled."""
        error: Any = None
        with contextlib.suppress(Exception):
            error = pickle.loads(self.pickled or b"")
        return error if isinstance(error, Exception) else RuntimeError(self.trace)


class Ended(NamedTuple):
    """The child has ended; nothing follows."""


# --- the child's end of the pipe --------------------------------------------------------------------------------------


class HeartbeatConnection:
    """The child's end of the pipe: sends heartbeats, and lets several threads send.

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


def serve(connection: HeartbeatConnection | Connection, make: Callable[[], Any]) -> None:
    """Answer calls of the parent until it closes the pipe; then this process ends at once, whatever else runs in it.

    Sends ``Ready`` with the attribute ``ready`` of what ``make`` returns (None without one). If ``make`` raises, sends
    ``Failed`` and ends. An order names a method and its arguments: a result is an ``Answer``, an exception is ``Failed``.
    """
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            server = make()
        except Exception as error:
            _send(connection, Failed.of(error))
            raise EOFError from None
        _send(connection, Ready(getattr(server, "ready", None)))
        while True:
            name, arguments = connection.recv()
            try:
                message: Any = Answer(getattr(server, name)(*arguments))
            except Exception as error:
                message = Failed.of(error)
            _send(connection, message)
    os._exit(0)


def _send(connection: HeartbeatConnection | Connection, message: Any) -> None:
    try:
        connection.send(message)
    except OSError:
        raise
    except Exception as error:  # an answer that cannot be pickled
        connection.send(Failed.of(error))


def _main(pipe: Connection, order: bytes) -> None:
    """Main function of every child: ties its life to the parent's before it imports anything large."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked until it had a group of its own
    multiprocessing.current_process().daemon = False  # it may start processes; they end with its group
    target, arguments = pickle.loads(order)
    target(pipe, *arguments)


# --- the parent's end -------------------------------------------------------------------------------------------------


class SilentChild(Exception):
    """A child hangs: it has sent no heartbeat for too long.

    Attributes:
        child: which. timeout_s: how long it was waited for.
    """

    def __init__(self, child: Child, timeout_s: float) -> None:
        super().__init__(f"sent no heartbeat for {timeout_s:g} s")
        self.child, self.timeout_s = child, timeout_s


class Child:
    """A spawned process with a pipe, and two threads here: one receives its messages, the other sends it orders.

    Args:
        target: function of a module, called in the process with its end of the pipe and ``arguments``.
        inbox: gets every message with this object, but for heartbeats; at last an ``Ended``.

    Attributes:
        heard_s: when it last sent anything, on the monotonic clock; None: it has not yet.
        so_far: that of the last heartbeat that had one; None: there was none. Can be set.
        ready: its ``Ready``; None: it is not yet.
    """

    def __init__(
        self, target: Callable[..., None], arguments: Sequence[Any], name: str, inbox: queue.SimpleQueue[tuple[Any, Any]]
    ) -> None:
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._silent = False  # its pipe has ended, so it is about to
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        order = pickle.dumps((target, tuple(arguments)))
        self._process = context.Process(target=_main, args=(theirs, order), name=name, daemon=True)
        self._memory_kills = _memory_kills()
        self.started_s: float = time.monotonic()
        self.heard_s: float | None = None
        self.so_far: Any = None
        self.ready: Ready | None = None
        _start(self._process)
        theirs.close()
        # before multiprocessing waits for children that it only asked to end, which one that hangs does not
        util.Finalize(self, _kill, (self._process,), exitpriority=10)
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
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):  # it is gone, or this is no Linux
            return None

    def send(self, order: Any) -> None:
        """Send an order; orders arrive in the order of the calls. If the process has ended, the call does nothing: its end is
        reported.
        """
        self._outbox.put(order)

    def call(self, name: str, *arguments: Any) -> None:
        """Order a child that runs ``serve`` to call its method; the answer comes into the inbox."""
        self.send((name, arguments))

    def how_it_ended(self, wait_s: float = END_S) -> str:
        """Return what became of a process whose pipe has closed, for a sentence that begins with its name; waits ``wait_s`` for
        its exit. What it had started ends.
        """
        if wait([self.sentinel], wait_s):
            _kill_group(self._process)
        self._process.join(wait_s)
        code = self.exitcode
        if code is None:
            return "closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        before, now = self._memory_kills, _memory_kills()
        memory = before is not None and now is not None and now > before and -code == signal.SIGKILL
        return f"was killed by {signal.Signals(-code).name}{' (the system ran out of memory)' if memory else ''}"

    def kill(self) -> None:
        """Kill the process and what it has started. It has nothing to clean up: temporary files are removed with it
        (``rlhfless.system.scratch_folders``).
        """
        _kill(self._process)

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

    # --- the threads --------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while (order := self._outbox.get()) is not None:
            try:
                self._connection.send(order)
            except OSError:
                pass  # it is gone, which the other thread says
            except Exception as error:  # without a word the caller would wait for what was never asked
                self._fail(error, "an order that cannot be sent", unrecoverable=True)

    def _receive(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                self._silent = True
                self._outbox.put(None)
                self._inbox.put((self, Ended()))
                return
            except Exception as error:  # without a word the caller would wait for ever
                self._silent = True
                self._fail(error, "an unreadable message", unrecoverable=False)
                return
            self.heard_s = time.monotonic()
            if not isinstance(message, Heartbeat):
                self.ready = message if isinstance(message, Ready) else self.ready
                self._inbox.put((self, message))
            elif message.so_far is not None:
                self.so_far = message.so_far

    def _fail(self, error: Exception, what: str, *, unrecoverable: bool) -> None:
        failed = Failed.of(error)
        text, memory = f"{what} ({error})", failed.out_of_memory
        self._inbox.put((self, Failed(failed.kind, failed.message, failed.trace, text, memory, unrecoverable, failed.pickled)))


def next_message(
    inbox: queue.SimpleQueue[tuple[Child, Any]],
    children: Iterable[Child],
    timeout_s: float = HEARTBEAT_TIMEOUT_S,
) -> tuple[Child, Any]:
    """Wait for the next message of children that send heartbeats, and return it with its sender.

    Args:
        timeout_s: how long each of them may send nothing.

    Raises:
        SilentChild: one of them hangs.
    """
    children = list(children)
    while True:
        wait_s = min(child.due_s(timeout_s) for child in children) - time.monotonic()
        try:
            return inbox.get(timeout=max(0.0, min(wait_s, timeout_s)))  # with its first heartbeat a child is due earlier
        except queue.Empty:
            pass
        for child in children:
            if child.due_s(timeout_s) <= time.monotonic() and child.stands_still():
                raise SilentChild(child, timeout_s)


def end_all(children: Iterable[Child]) -> None:
    """Kill children, and wait until all are gone, at most ``END_S`` together."""
    children = list(children)
    for child in children:
        child.kill()
    until_s = time.monotonic() + END_S
    for child in children:
        child.join(max(0.0, until_s - time.monotonic()))


def _kill(process: BaseProcess) -> None:
    _kill_group(process)
    process.kill()  # also one that has no group of its own yet


def _kill_group(process: BaseProcess) -> None:
    """Kill whatever is in the process's group, as long as its id is nobody else's: until its exit code was asked for."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
        assert process.pid is not None
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        elif not process.is_alive():  # on a Mac its exit code has been asked for now
            return
        os.killpg(process.pid, signal.SIGKILL)


class _Starter(threading.Thread):
    """The thread that starts all children. It lives as long as the program: the kernel ends a child with the thread that
    started it.
    """

    def __init__(self) -> None:
        super().__init__(name="rlhfless-starter", daemon=True)
        self.orders: queue.SimpleQueue[tuple[BaseProcess, queue.SimpleQueue[BaseException | None]]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Start processes without the caller's main module, which they do not need and which might run again. They block Ctrl-C
        until they have a group of their own.
        """
        while True:
            process, outcome = self.orders.get()
            resource_tracker.ensure_running()  # its start would undo the mask
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
            try:
                process.start()
                outcome.put(None)
            except BaseException as error:
                outcome.put(error)
            finally:
                sys.modules["__main__"] = main


_starter: list[_Starter] = []
_starter_lock = threading.Lock()


def _start(process: BaseProcess) -> None:
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    with _starter_lock:
        if not _starter or not _starter[-1].is_alive():  # this program was forked, too
            _starter[:] = [_Starter()]
        _starter[-1].orders.put((process, outcome))
    if (error := outcome.get()) is not None:
        raise error


def _memory_kills() -> int | None:
    """Return how many processes the system has killed for want of memory in this one's control group; None where it does not
    tell.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            root = CONTROL_GROUPS / controllers
            for folder in (root / path.lstrip("/"), root):
                for name in ("memory.events", "memory.oom_control"):
                    if (folder / name).is_file():
                        counts = dict(row.split() for row in (folder / name).read_text().splitlines())
                        if "oom_kill" in counts:
                            return int(counts["oom_kill"])
    return None
