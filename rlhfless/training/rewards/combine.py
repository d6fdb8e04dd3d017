"""Rewards from functions, and sums of rewards: an error in one response is that response's, and is told.

Knows functions of responses; nothing of what they judge.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training.rewards.response import Failure, Response, Reward, Scores

MOST_TIMEOUTS = 5
"""After so many time-outs in one batch a function is not asked again for that batch."""


class FunctionReward:
    """A function of one response.

    Args:
        function: given a ``Response``, returns a number. Whatever it raises or returns instead is that response's failure.
        timeout_s: seconds that it may take for one response; it then runs in a thread, which is asked to end when its time is
            over (a call that never returns to Python cannot be ended, and keeps its thread). None waits as long as it takes.
    """

    def __init__(self, name: str, function: Callable[[Response], float], timeout_s: float | None = None) -> None:
        if timeout_s is not None and timeout_s <= 0:
            raise InputError(f"timeout_s of reward {name!r} is {timeout_s}; it must be above 0")
        self.name, self.function, self.timeout_s = name, function, timeout_s

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """(R,) rewards, NaN where the function failed, and why."""
        values, failures, timeouts = np.full(len(responses), np.nan), [], 0
        for i, response in enumerate(responses):
            try:
                if timeouts == MOST_TIMEOUTS:
                    raise TimeoutError(f"not asked after {MOST_TIMEOUTS} time-outs in this batch")
                values[i] = _number(self._call(response))
            except Exception as error:
                timeouts += isinstance(error, _TimedOut)
                failures.append(Failure(i, self.name, f"{type(error).__name__.lstrip('_')}: {error}"))
        return values, failures

    def _call(self, response: Response) -> Any:
        if self.timeout_s is None:
            return self.function(response)
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append((self.function(response), None))
            except BaseException as error:  # a function that exits ends its thread only
                outcome.append((None, error))

        thread = threading.Thread(target=work, name=f"reward {self.name}", daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        if thread.is_alive():
            # Raises SystemExit in the thread as soon as it runs Python code.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            raise _TimedOut(f"took longer than {self.timeout_s:g} s")
        value, error = outcome[0]
        if error is not None:
            raise error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__} {error}")
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


class _TimedOut(TimeoutError):
    """The function used up its time itself."""


def _number(value: Any) -> float:
    """``value`` as a finite float.

    Raises:
        ValueError: it is none.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"returned {value!r}, which is no number") from None
    if not math.isfinite(number):
        raise ValueError(f"returned {number}, which is not finite")
    return number
