"""Runs a reward function in a separate process, which can be killed whatever the function does.

It does not use ``multiprocessing``, because its children may not start processes, as functions that run a response's code do.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from rlhfless.errors import InputError
from rlhfless.system.cleanup import clean_up
from rlhfless.training.rewards.called_with import RewardLog, TrainerState
from rlhfless.training.rewards.response import Response

READY, RESULT, REASON = "ready", "result", "reason"  # what the process says
LOAD_S = 120.0  # that a file may take to be loaded
PIPE_BYTES = 1 << 15  # of a message that is sent at once, whatever the process does
END_S = 5.0  # that a process that was killed may take to be gone
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rlhfless.training.rewards.worker import main; main(int(sys.argv[2]))"
)


class Refused(Exception):
    """The function raised an exception or returned no number; the message is the whole reason."""


class ProcessLost(Exception):
    """The process can no longer be used: the function is abandoned, or its process is started again, which takes time."""


class TimedOut(ProcessLost):
    """The function exceeded its time limit."""


class Ended(ProcessLost):
    """The function's process ended."""


class FunctionProcess:
    """A reward function in another process, which is started when this object is made and reused.

    A process that exceeds its time limit is killed, with all processes that it started; the same happens if its answer is no
    longer needed. The next response starts a new process. It ends with this program, however that ends (on Linux at once;
    elsewhere a killed program's process ends after the response that it judges).

    Attributes:
        takes_batch: whether the function takes a batch, else one response.

    Of a problem it gets the attributes without a leading underscore, which must be picklable, but not its methods. Its random
    streams are seeded from Python's own for every response, so draws do not depend on earlier responses.

    Args:
        work: ``("format", REGEX)`` or ``("file", FILE, NAME)``.

    Raises:
        InputError: there is no such function.
    """

    def __init__(self, *work: str) -> None:
        self._work = work
        self._processes: list[tuple[subprocess.Popen[bytes], Connection]] = []
        weakref.finalize(self, _end, self._processes)
        self._start()

    @property
    def pid(self) -> int | None:
        """Id of the running process; None if there is none."""
        return self._processes[0][0].pid if self._processes else None

    def judge(self, response: Response, timeout_s: float | None = None) -> float:
        """Return the function's number for a response; NaN where it returned None or NaN.

        Raises:
            Refused: it returned no number.
            TimedOut: it took longer than ``timeout_s``. Ended: its process ended, or could not be started again.
        """
        job = (_seen(response.problem), response.text, response.tokens, response.truncated, response.token_ids)
        return float(self._result(job, timeout_s))

    def judge_batch(
        self, arguments: Mapping[str, list[Any]], state: TrainerState, log: RewardLog, timeout_s: float | None = None
    ) -> list[float | str]:
        """Return a number per response of a batch, or the reason why there is none; see ``call_batch``.

        Raises:
            Refused: the function raised an exception, or returned something else.
            TimedOut: it took longer than ``timeout_s``. Ended: its process ended, or could not be started again.
        """
        returned, columns, numbers = self._result((arguments, log.responses, state), timeout_s)
        log.add(RewardLog(log.responses, columns, numbers))
        return list(returned)

    def close(self) -> None:
        """Stop the process; another response would start it again."""
        _end(self._processes)

    def _result(self, job: tuple[Any, ...], timeout_s: float | None) -> Any:
        packed = pickle.dumps((random.getrandbits(32), *job))
        if not self._processes or self._processes[0][0].poll() is not None:
            try:
                self._start()
            except InputError as error:
                raise Ended(str(error)) from None
        kind, answer = self._ask(packed, timeout_s)
        if kind == REASON:
            raise Refused(answer)
        return answer

    def _start(self) -> None:
        self.close()
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-u", "-c", PROGRAM, json.dumps(sys.path), str(theirs.fileno())]
            # a group of its own: Ctrl-C is for this program, and what the function starts ends with it
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0)
        self._processes.append((process, ours))
        try:
            kind, answer = self._ask(json.dumps(self._work).encode(), LOAD_S)
        except ProcessLost as error:
            raise InputError(f"{':'.join(self._work[1:])}: loading it {error}") from None
        if kind == REASON:
            self.close()
            raise InputError(answer)
        self.takes_batch = bool(answer)

    def _ask(self, message: bytes, timeout_s: float | None) -> tuple[str, Any]:
        """Return the answer of the process. Any interruption ends the process, because its late answer would be taken for
        the next one.
        """
        process, connection = self._processes[0]
        try:
            self._send(message, timeout_s)
            if not connection.poll(timeout_s):
                raise TimedOut(f"took longer than {timeout_s:g} s")
            kind, answer = json.loads(connection.recv_bytes())
            return kind, answer
        except (EOFError, OSError):
            how = _how_it_ended(process)
            self.close()
            raise Ended(f"ended its process ({how})") from None
        except BaseException as error:
            clean_up(self.close, after=error)
            raise

    def _send(self, message: bytes, timeout_s: float | None) -> None:
        """Send a message. One that does not fit into the pipe waits for the process, which is killed if it does not read it."""
        process, connection = self._processes[0]
        if len(message) <= PIPE_BYTES:
            connection.send_bytes(message)
            return
        limit_s, late = LOAD_S if timeout_s is None else timeout_s, threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            connection.send_bytes(message)
        except OSError:
            if late.is_set():
                raise TimedOut(f"took longer than {limit_s:g} s to read a response") from None
            raise
        finally:
            timer.cancel()


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


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        return "closed its pipe"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _end(processes: list[tuple[subprocess.Popen[bytes], Connection]]) -> None:
    """Kill the process and its process group, without waiting for an answer."""
    for process, connection in processes:
        connection.close()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has left its group
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
    processes.clear()
