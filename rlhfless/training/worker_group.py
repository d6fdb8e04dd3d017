"""Processes of this machine that execute the trainer's orders together: start, orders, answers, failures, end.

Each has a pipe to the trainer. Processes wait for each other inside an order, so what ends one of them ends all: the trainer
waits for answers and for ends at once, and kills the others when one ends. From a death to its error pass at most
``SOON_S + 2 * END_S``, 11 s; usually it takes milliseconds. One that hangs, which sends no heartbeats any more, ends all after
``heartbeat_timeout_s``. What an order does is the business of the process's main function.
"""

from __future__ import annotations

import queue
import sys
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from rlhfless.system.child import (
    END_S,
    HEARTBEAT_TIMEOUT_S,
    REMEDY,
    Child,
    Ended,
    Failed,
    SilentChild,
    end_all,
    next_message,
)
from rlhfless.system.cleanup import clean_up
from rlhfless.training.config import LearnerError

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
SOON_S = 1.0  # in which the end of one process is noticed after another has failed because of it
REPEAT = "this step was not learned from; resume the run to repeat it"


class WorkerGroup:
    """Processes that execute orders together.

    Args:
        name: of what they are, in error messages.
        heartbeat_timeout_s: after so many seconds without a heartbeat a process counts as lost.
        advice: what to do when a process dies or hangs, as a clause. None: to resume the training run.
    """

    def __init__(self, name: str, heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S, advice: str | None = None) -> None:
        self._name, self._timeout_s = name, heartbeat_timeout_s
        self._if_dead = advice or REPEAT
        self._if_silent = advice or f"{REPEAT}, and {REMEDY}"
        self._members: list[Child] = []
        self._inbox: queue.SimpleQueue[tuple[Child, Any]] = queue.SimpleQueue()
        weakref.finalize(self, _end, self._members)

    def __bool__(self) -> bool:
        """Whether the processes run."""
        return bool(self._members)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty before the start and after the end."""
        return [process.pid for process in self._members if process.pid is not None]

    def start(self, main: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Start a process for each tuple of arguments, and wait until all are ready.

        Args:
            main: function of a module, called with a pipe and the arguments. It serves an object with a method
                ``execute(order, *arguments)`` (``rlhfless.system.child.serve``) and sends heartbeats. While it executes an
                order, it may send a ``Heartbeat`` with what ``so_far`` returns.

        Raises:
            LearnerError: a process died or hangs. Any other exception is that of a process.
        """
        self._inbox = queue.SimpleQueue()
        try:
            for rank, given in enumerate(arguments):
                self._members.append(Child(main, given, f"rlhfless-{self._name}-{rank}", self._inbox))
            self._answers("start")
        except BaseException as error:
            clean_up(self.end, after=error)
            raise

    def order(self, name: str, *arguments: Any) -> list[Any]:
        """Send all processes an order, wait for them and return their answers by rank; errors are those of ``start``."""
        try:
            for process in self._members:
                process.so_far = None
                process.call("execute", name, *arguments)
            return self._answers(name)
        except BaseException as error:
            clean_up(self.end, after=error)  # the others may wait for one that failed; nobody knows what each of them did
            raise

    def so_far(self) -> list[Any]:
        """Return what each process has said so far of the last order; one that has said nothing is left out. Thread-safe."""
        return [said for process in [*self._members] if (said := process.so_far) is not None]

    def end(self) -> None:
        """Kill the processes. Idempotent."""
        _end(self._members)

    def _answers(self, order: str) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < len(self._members):
            try:
                process, message = next_message(self._inbox, self._members, self._timeout_s)
            except SilentChild as silent:
                rank, pid = self._members.index(silent.child), silent.child.pid
                raise LearnerError(
                    f"process {rank} of the {self._name} (process {pid}) {silent} during {order!r}; {self._if_silent}"
                ) from None
            rank = self._members.index(process)
            if isinstance(message, Ended):
                raise self._died(rank, order)  # whether or not it has answered, there is no further order
            if isinstance(message, Failed):
                error = message.exception
                if isinstance(error, RuntimeError):  # the end of another process may have made it fail
                    wait([other.sentinel for other in self._members if other is not process], SOON_S)
                    if dead := [other for other, each in enumerate(self._members) if each.exitcode]:
                        raise self._died(dead[0], order)
                raise error
            answers[rank] = message.value
        return [answers[rank] for rank in range(len(self._members))]

    def _died(self, rank: int, order: str) -> LearnerError:
        how = self._members[rank].how_it_ended(END_S)
        return LearnerError(f"process {rank} of the {self._name} {how} during {order!r}; {self._if_dead}")


def _end(members: list[Child]) -> None:
    """Kill the processes; they have nothing to clean up."""
    end_all(members)
    members.clear()
