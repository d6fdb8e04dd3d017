"""Rewards from functions, and sums of rewards: an error in one response is that response's, and is told.

Knows functions of responses; nothing of what they judge.
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
from rlhfless.training.rewards.process import FunctionProcess, ProcessLost, Refused, TimedOut
from rlhfless.training.rewards.response import Failure, Response, Reward, Scores, finite

MOST_LOST = 5
"""After so many time-outs, or ends of its process, in one batch a function is not asked again for that batch."""


class FunctionReward:
    """A function of one response.

    Args:
        function: given a ``Response``, returns a number. Whatever it raises (SystemExit too) or returns instead is that
            response's failure. A ``FunctionProcess`` judges in a process of its own, a Python function here.
        timeout_s: seconds that it may take for one response; None waits as long as it takes. A process is killed when its time
            is over. A function that judges here runs in a thread then, which is asked to end as soon as it runs Python code:
            one that waits outside of Python for ever keeps its thread, and one that keeps Python's lock, as a regular
            expression does while it backtracks, is waited for until it returns, and has then timed out. Nothing here can end
            it; where that may happen, name it ``FILE.py:FUNCTION`` (``make_rewards``), which gives it a process.
    """

    def __init__(
        self, name: str, function: Callable[[Response], float] | FunctionProcess, timeout_s: float | None = None
    ) -> None:
        if timeout_s is not None and timeout_s <= 0:
            raise InputError(f"timeout_s of reward {name!r} is {timeout_s}; it must be above 0")
        self.name, self.function, self.timeout_s = name, function, timeout_s

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """(R,) rewards, NaN where the function failed, and why."""
        values, failures, lost = np.full(len(responses), np.nan), [], 0
        for i, response in enumerate(responses):
            try:
                if lost == MOST_LOST:
                    raise Refused(f"not asked after {MOST_LOST} time-outs or ends of its process in this batch")
                values[i] = self._judge(response)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a function that exits does not end the run
                lost += isinstance(error, ProcessLost)
                reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
                failures.append(Failure(i, self.name, reason))
        return values, failures

    def close(self) -> None:
        """End the function's process, if it has one; another batch would start it."""
        if isinstance(self.function, FunctionProcess):
            self.function.close()

    def _judge(self, response: Response) -> float:
        if isinstance(self.function, FunctionProcess):
            return self.function.judge(response, self.timeout_s)
        if self.timeout_s is None:
            return finite(self.function(response))
        return finite(self._in_thread(self.function, self.timeout_s, response))

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
    """A weighted sum of rewards.

    Raises:
        InputError: there is none, a weight is no finite number, or two have one name.
    """

    def __init__(self, parts: Sequence[tuple[Reward, float]]) -> None:
        names = [reward.name for reward, _ in parts]
        if not parts or len(set(names)) < len(names):
            raise InputError(f"rewards are {', '.join(names) or 'none'}; at least one is needed, and no name twice")
        for reward, weight in parts:
            if not math.isfinite(weight):
                raise InputError(f"the weight of reward {reward.name!r} is {weight}; it must be a finite number")
        self.parts = tuple(parts)

    def score(self, responses: Sequence[Response]) -> Scores:
        """Judge a batch. What fails is warned of (``RewardWarning``); a response that any part failed on has the reward NaN."""
        values, parts, failures = np.zeros(len(responses)), {}, []
        for reward, weight in self.parts:
            parts[reward.name], failed = reward.score(responses)
            values = values + weight * parts[reward.name]
            failures += failed
        scores = Scores(values, parts, failures)
        scores.warn()
        return scores

    def close(self) -> None:
        """End the processes of functions that have one; another batch would start them."""
        for reward, _ in self.parts:
            if isinstance(reward, FunctionReward):
                reward.close()
