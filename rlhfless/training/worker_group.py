"""Processes of this machine that execute the trainer's orders together: start, orders, answers, failures, end.

Each has a pipe to the trainer. Processes wait for each other inside an order, so what ends one of them ends all: the trainer
waits for answers and for ends at once, and kills the others when one ends. From a death to its error pass at most
``SOON_S + 2 * END_S``, 9 s, and milliseconds where the machine buries its dead. What an order does is the business of the
process's main function.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from rlhfless.system.child_processes import how_it_ended, undisturbed, without_main
from rlhfless.system.cleanup import clean_up
from rlhfless.training.config import LearnerError

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
READY, DONE, FAILED = "ready", "done", "failed"
END_S = 4.0  # that processes that were killed may take to be gone, all together
SOON_S = 1.0  # in which the end of one process is noticed after another has failed because of it


class WorkerGroup:
    """Processes that execute orders together.

    Args:
        name: of what they are, in error messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._members: list[tuple[BaseProcess, Connection]] = []
        weakref.finalize(self, _end, self._members)

    def __bool__(self) -> bool:
        """Whether the processes run."""
        return bool(self._members)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty before the start and after the end."""
        return [process.pid for process, _ in self._members if process.pid is not None]

    def start(self, main: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Start a process for each tuple of arguments, and wait until all are ready.

        Args:
            main: function of a module, called with a pipe and the arguments; it sends ``(READY, None)``, and after each order
                ``(DONE, answer)`` or what ``report`` sends.

        Raises:
            LearnerError: a process died. Any other exception is that of a process.
        """
        context = multiprocessing.get_context("spawn")
        try:
            for rank, given in enumerate(arguments):
                ours, theirs = context.Pipe()
                name = f"rlhfless-{self._name}-{rank}"
                process = context.Process(target=main, args=(theirs, *given), name=name, daemon=True)
                self._members.append((process, ours))
                with undisturbed(), without_main():
                    process.start()
                theirs.close()
            self._answers(READY, "start")
        except BaseException as error:
            clean_up(self.end, after=error)
            raise

    def order(self, name: str, argument: Any = None, seed: int = 0) -> list[Any]:
        """Send all processes an order, wait for them and return their answers by rank; errors are those of ``start``."""
        try:
            for _, connection in self._members:
                with contextlib.suppress(OSError):  # it is gone, which its silence says
                    connection.send((name, argument, seed))
            return self._answers(DONE, name)
        except BaseException as error:
            clean_up(self.end, after=error)  # the others may wait for one that failed; nobody knows what each of them did
            raise

    def end(self) -> None:
        """Kill the processes. Idempotent."""
        _end(self._members)

    def _answers(self, expected: str, order: str) -> list[Any]:
        answers: dict[int, Any] = {}
        rank_of = {connection: rank for rank, (_, connection) in enumerate(self._members)}
        sentinels = {process.sentinel: rank for rank, (process, _) in enumerate(self._members)}
        while len(answers) < len(self._members):
            ready = wait([*(c for c, rank in rank_of.items() if rank not in answers), *sentinels])
            for connection in ready:
                if not isinstance(connection, Connection):
                    continue
                rank = rank_of[connection]
                try:
                    kind, answer = connection.recv()
                except (EOFError, OSError):
                    raise self._died(rank, order) from None
                if kind == FAILED and not isinstance(answer, RuntimeError):
                    raise answer
                if kind == FAILED:
                    wait([each for each, other in sentinels.items() if other != rank], SOON_S)
                    dead = [other for other, (process, _) in enumerate(self._members) if process.exitcode]
                    raise self._died(dead[0], order) if dead else answer  # its end makes the others fail
                assert kind == expected
                answers[rank] = answer
            if ended := [sentinels[each] for each in ready if isinstance(each, int)]:
                raise self._died(ended[0], order)  # whether or not it has answered, there is no further order
        return [answers[rank] for rank in range(len(self._members))]

    def _died(self, rank: int, order: str) -> LearnerError:
        return LearnerError(
            f"process {rank} of the {self._name} {how_it_ended(self._members[rank][0], END_S)} during {order!r}; "
            "this step was not learned from; resume the run to repeat it"
        )


def report(connection: Connection, error: Exception) -> None:
    """Send the exception of a process to the trainer, as itself if it can be pickled; end the process if the trainer is
    gone.
    """
    if isinstance(error, EOFError):
        os._exit(0)  # the others may never meet this one again
    failure: Any = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        failure = RuntimeError("".join(traceback.format_exception(error)))
    connection.send((FAILED, failure))


def _end(members: list[tuple[BaseProcess, Connection]]) -> None:
    """Kill the processes; they have nothing to clean up."""
    for process, _ in members:
        if process.pid is not None:
            process.kill()
    until_s = time.monotonic() + END_S
    for process, connection in members:
        if process.pid is not None:
            process.join(max(0.0, until_s - time.monotonic()))
        connection.close()
    members.clear()
