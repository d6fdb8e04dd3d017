"""Runs a reward function in processes of its own, several at a time, which can be killed whatever the function does.

A process is a ``rlhfless.system.child.Child``; ``worker.py`` is its main function.
"""

from __future__ import annotations

import math
import queue
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from rlhfless.errors import InputError
from rlhfless.system.child import Answer, Child, Ended, Failed, end_all
from rlhfless.system.cleanup import clean_up
from rlhfless.system.cpu_threads import usable_cores
from rlhfless.training.rewards.called_with import RewardLog, TrainerState
from rlhfless.training.rewards.response import Response
from rlhfless.training.rewards.worker import main

LOAD_S = 120.0  # that a file may take to be loaded
MOST_PROCESSES = 8  # of one function: each may load large libraries
ANOTHER_S = 0.5  # of a batch, for each process of the function, after which another one is worth its start
MAX_LOST = 5
"""After so many time-outs, or ends of its process, in one batch a function is not asked again for that batch. Later responses
are refused, also those that another process has judged by then: the result does not depend on which process is first.
"""


class ProcessLost(Exception):
    """The process can no longer be used: another one is started, which takes time, or the function is abandoned."""


class TimedOut(ProcessLost):
    """The function exceeded its time limit."""


class ProcessEnded(ProcessLost):
    """The function's process ended."""


class FunctionProcesses:
    """A reward function in other processes. The first is started when this object is made, others once a batch takes longer.
    All are kept for later batches.

    A process that exceeds its time limit is killed, with all processes that it started; the same happens if its answer is no
    longer needed. The next response has another process. Processes end with this program, however that ends (on Linux at once;
    elsewhere a killed program's process ends after the response that it judges).

    Of a problem it gets the attributes without a leading underscore, which must be picklable, but not its methods. Its random
    streams are seeded from Python's own for every response, so draws depend neither on earlier responses nor on the process.

    Attributes:
        takes_batch: whether the function takes a batch, else one response.

    Args:
        work: ``("format", REGEX)`` or ``("file", FILE, NAME)``.

    Raises:
        InputError: there is no such function.
    """

    def __init__(self, *work: str) -> None:
        self._work, self._most = work, min(MOST_PROCESSES, max(2, usable_cores()))
        self._lock = threading.RLock()  # parts of a batch are judged side by side
        self._inbox: queue.SimpleQueue[tuple[Child, Any]] = queue.SimpleQueue()
        self._children: list[Child] = []
        weakref.finalize(self, _end, self._children)
        child = self._start()
        try:
            while child.ready is None:
                _, message = self._hear(child.started_s + LOAD_S)
                if (error := self._not_loaded(child, message)) is not None:
                    raise error
        except BaseException as error:
            clean_up(self.close, after=error)
            raise
        self.takes_batch = bool(child.ready.value)

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [child.pid for child in self._children if child.pid is not None]

    def judge(self, responses: Sequence[Response], timeout_s: float | None = None) -> list[float | Exception | None]:
        """Judge responses, several at a time.

        Returns:
            The function's number for each response, NaN where it returned None or NaN. Or why there is none: ``Refused`` (it
            returned no number), ``TimedOut`` (it took longer than ``timeout_s``), ``ProcessEnded`` (its process ended, or could
            not be started again), or another exception (the response cannot be sent). None: it was not asked any more.
        """
        calls: list[tuple[Any, ...]] = [
            ("judge", random.getrandbits(32), _seen(r.problem), r.text, r.tokens, r.truncated, r.token_ids) for r in responses
        ]
        return self._call(calls, timeout_s)

    def judge_batch(
        self, arguments: Mapping[str, list[Any]], state: TrainerState, log: RewardLog, timeout_s: float | None = None
    ) -> list[float | str]:
        """Return a number per response of a batch, or the reason why there is none; see ``call_batch``.

        Raises:
            Refused: the function raised an exception, or returned something else.
            TimedOut: it took longer than ``timeout_s``. ProcessEnded: its process ended, or could not be started again.
        """
        call = ("judge_batch", random.getrandbits(32), arguments, log.responses, state)
        (result,) = self._call([call], timeout_s)
        if isinstance(result, Exception):
            raise result
        returned, columns, numbers = result
        log.add(RewardLog(log.responses, columns, numbers))
        return list(returned)

    def close(self) -> None:
        """Stop the processes; another response would start one again."""
        _end(self._children)
        self._inbox = queue.SimpleQueue()  # what they have said since is for nobody

    def _call(self, calls: Sequence[tuple[Any, ...]], timeout_s: float | None) -> list[Any]:
        """Let processes make calls, each one after another, and return results or exceptions in the order of ``calls``. An
        interruption ends the processes: nobody wants their answers.
        """
        with self._lock:
            try:
                return self._called(calls, timeout_s)
            except BaseException as error:
                clean_up(self.close, after=error)
                raise

    def _called(self, calls: Sequence[tuple[Any, ...]], timeout_s: float | None) -> list[Any]:
        results: list[Any] = [None] * len(calls)
        left, busy = deque(range(len(calls))), dict[Child, tuple[int, float]]()  # its call, and when its time is over
        began_s, most = time.monotonic(), self._most
        while left or busy:
            if sum(isinstance(result, ProcessLost) for result in results) >= MAX_LOST:
                left.clear()
            self._children[:] = [child for child in self._children if child.alive or child in busy or child.ready is None]
            for child in self._children:
                if left and child.ready is not None and child not in busy:
                    busy[child] = left.popleft(), time.monotonic() + (math.inf if timeout_s is None else timeout_s)
                    child.call(*calls[busy[child][0]])
            loading = [child for child in self._children if child.ready is None]
            another_s = began_s + ANOTHER_S * len(self._children)
            if left and not loading and len(self._children) < most and (not self._children or time.monotonic() >= another_s):
                loading = [self._start()]
            may_start = bool(left) and not loading and len(self._children) < most
            due_s = [until_s for _, until_s in busy.values()] + [child.started_s + LOAD_S for child in loading]
            sender, message = self._hear(min([*due_s, *([another_s] if may_start else [])], default=0.0))
            for child in loading:
                error = self._not_loaded(child, message if child is sender else None)
                if error is not None and self._children:
                    most = len(self._children)
                elif error is not None and left:
                    results[left.popleft()] = ProcessEnded(str(error))
            for child, (i, until_s) in list(busy.items()):
                if child is sender:
                    results[i] = _result(child, message)
                elif time.monotonic() >= until_s:
                    results[i] = TimedOut(f"took longer than {timeout_s:g} s")
                    self._remove(child)
                if results[i] is not None:
                    del busy[child]
        return results

    def _start(self) -> Child:
        self._children.append(Child(main, self._work, f"rlhfless-reward-{self._work[-1]}", self._inbox))
        return self._children[-1]

    def _remove(self, child: Child) -> None:
        end_all([child])
        self._children.remove(child)

    def _hear(self, until_s: float) -> tuple[Child | None, Any]:
        """Return the next message of a process and its sender; None where none comes in time."""
        try:
            return self._inbox.get(timeout=None if until_s == math.inf else max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            return None, None

    def _not_loaded(self, child: Child, message: Any) -> Exception | None:
        """Return why a process that starts cannot be used, after its ``message`` or None; it is ended."""
        where = ":".join(self._work[1:])
        error: Exception
        if isinstance(message, Failed):
            error = message.exception
        elif isinstance(message, Ended):
            error = InputError(f"{where}: its process {child.how_it_ended()} while loading it")
        elif child.ready is None and time.monotonic() >= child.started_s + LOAD_S:
            error = InputError(f"{where}: loading it took longer than {LOAD_S:g} s")
        else:
            return None
        self._remove(child)
        return error


def _result(child: Child, message: Any) -> Any:
    """Return the result of a call that ended with this message, or an exception."""
    if isinstance(message, Ended):
        return ProcessEnded(f"its process {child.how_it_ended()}")
    return message.value if isinstance(message, Answer) else message.exception


def _seen(problem: Any) -> dict[str, Any]:
    """Return a problem's attributes: those that every problem has, and its own."""
    attributes = [field.name for field in fields(problem)] if is_dataclass(problem) else getattr(problem, "__dict__", {})
    names = [
        "prompt_id",
        "prompt",
        "answer",
        "reference_answer_tokens",
        *(name for name in attributes if not name.startswith("_")),
    ]
    return {name: getattr(problem, name) for name in names if hasattr(problem, name)}


def _end(children: list[Child]) -> None:
    """Kill the processes, without waiting for an answer."""
    end_all(children)
    children.clear()
