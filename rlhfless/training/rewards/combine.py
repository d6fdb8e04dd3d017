"""Rewards from functions of one response, and weighted sums of rewards.

An error concerns only the response that caused it, and is reported by a warning.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training.rewards.called_with import EventLoop, RewardLog, TrainerState
from rlhfless.training.rewards.calling import Refused
from rlhfless.training.rewards.process import MAX_LOST, FunctionProcesses, ProcessLost, TimedOut
from rlhfless.training.rewards.response import Failure, Response, Reward, Scores, number_of, reason_of


class FunctionReward:
    """A reward computed by a function of one response.

    Args:
        function: takes a ``Response`` and returns a number, or None to abstain. Any exception (SystemExit too) or other result
            is the failure of that response. ``FunctionProcesses`` run in their own processes, a Python function in this one.
        timeout_s: time limit in seconds for one response; None: no limit. A process is killed at its limit. A
            function in this process runs in a thread, which is stopped the next time it runs Python code. Code that never
            returns to Python cannot be stopped: a call that waits for ever keeps its thread, and a regular expression that
            backtracks blocks the trainer. If that may happen, name the function ``FILE.py:FUNCTION`` (``make_rewards``), which
            gives it a process.
    """

    def __init__(
        self, name: str, function: Callable[[Response], float] | FunctionProcesses, timeout_s: float | None = None
    ) -> None:
        if timeout_s is not None and timeout_s <= 0:
            raise InputError(f"timeout_s of reward {name!r} is {timeout_s}; it must be above 0")
        self.name, self.function, self.timeout_s = name, function, timeout_s

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """Return (R,) rewards, NaN where the function failed or returned None, and the failures."""
        values, failures, lost = np.full(len(responses), np.nan), [], 0
        in_processes = self.function.judge(responses, self.timeout_s) if isinstance(self.function, FunctionProcesses) else None
        for i, response in enumerate(responses):
            try:
                if lost == MAX_LOST:
                    raise Refused(f"skipped after its process timed out or ended {MAX_LOST} times in this batch")
                found = self._judge(response) if in_processes is None else in_processes[i]
                if isinstance(found, Exception):
                    raise found
                values[i] = found
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a function that exits does not end the run
                lost += isinstance(error, ProcessLost)
                reason = str(error) if isinstance(error, Refused) else reason_of(error)
                failures.append(Failure(i, self.name, reason))
        return values, failures

    def close(self) -> None:
        """Stop the function's processes, if it has any; another batch would start one again."""
        if isinstance(self.function, FunctionProcesses):
            self.function.close()

    def _judge(self, response: Response) -> float:
        assert not isinstance(self.function, FunctionProcesses)
        if self.timeout_s is None:
            return number_of(self.function(response))
        return number_of(self._in_thread(self.function, self.timeout_s, response))

    def _in_thread(self, function: Callable[[Response], float], timeout_s: float, response: Response) -> Any:
        outcome: list[Any] = []

        def work() -> None:
            began = time.perf_counter()
            try:
                value, error = function(response), None
            except BaseException as raised:
                value, error = None, raised
            outcome.append((value, error, time.perf_counter() - began))

        thread = threading.Thread(target=work, name=f"reward {self.name}", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            # Raises SystemExit in the thread as soon as it runs Python code.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            raise TimedOut(f"took longer than {timeout_s:g} s")
        value, error, took_s = outcome[0]
        if took_s > timeout_s:  # it kept Python's lock, so nobody could see that its time was over
            raise TimedOut(f"took longer than {timeout_s:g} s ({took_s:.3g} s)")
        if isinstance(error, KeyboardInterrupt):  # the function's own: Ctrl-C comes to the main thread
            raise Refused(f"KeyboardInterrupt: {error}")
        if error is not None:
            raise error
        return value


class Rewards:
    """A weighted sum of rewards. A reward that returned None or NaN for a response is left out of its sum, as in TRL.

    Raises:
        InputError: there is no reward, a weight is not a finite number, or two rewards have the same name.
    """

    def __init__(self, parts: Sequence[tuple[Reward, float]]) -> None:
        names = [reward.name for reward, _ in parts]
        if not parts or len(set(names)) < len(names):
            raise InputError(f"rewards are {', '.join(names) or 'none'}; at least one is needed, and no name twice")
        for reward, weight in parts:
            if not math.isfinite(weight):
                raise InputError(f"the weight of reward {reward.name!r} is {weight}; it must be a finite number")
        self.parts, self._loop = tuple(parts), EventLoop()

    def score(self, responses: Sequence[Response], state: TrainerState | None = None) -> Scores:
        """Compute the rewards of a batch. A ``RewardWarning`` reports failures; a response on which any part failed, or on
        which all abstained, has reward NaN.

        Args:
            state: that functions of a batch get; None: that of a run that begins.
        """
        scores = self.judge(responses, state)
        scores.warn()
        return scores

    def judge(self, responses: Sequence[Response], state: TrainerState | None = None) -> Scores:
        """Compute the rewards of some responses of a batch, as ``score`` does, without a warning."""
        state, log = state or TrainerState(), RewardLog(len(responses))
        found: dict[str, tuple[np.ndarray, list[Failure]]] = {}
        awaited: list[Any] = []
        for reward, _ in self.parts:  # those that are awaited come last, and run at once
            if getattr(reward, "is_async", False):
                awaited.append(reward)
            elif hasattr(reward, "score_in"):
                found[reward.name] = reward.score_in(responses, state, log)
            else:
                found[reward.name] = reward.score(responses)
        if awaited:
            results = self._loop.run([reward.awaited(responses, state, log) for reward in awaited])
            found |= {reward.name: result for reward, result in zip(awaited, results, strict=True)}
        values, known = np.zeros(len(responses)), np.zeros(len(responses), dtype=bool)
        for reward, weight in self.parts:
            numbers = found[reward.name][0]
            values, known = values + np.where(np.isnan(numbers), 0.0, weight * numbers), known | ~np.isnan(numbers)
        failures = [failure for reward, _ in self.parts for failure in found[reward.name][1]]
        known[[failure.response for failure in failures]] = False
        parts = {reward.name: found[reward.name][0] for reward, _ in self.parts}
        return Scores(np.where(known, values, np.nan), parts, failures, log)

    def close(self) -> None:
        """Stop the processes of functions that have one, and the event loop; another batch would start them again."""
        self._loop.close()
        for reward, _ in self.parts:
            if callable(close := getattr(reward, "close", None)):
                close()
