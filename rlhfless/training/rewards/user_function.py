"""A user's function as a reward: one of a batch, called as TRL calls reward functions, or one of one response.

A function of Python and a function of a file are recognised by their signatures in the same way (``takes_batch``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training.rewards.called_with import EventLoop, RewardLog, TrainerState
from rlhfless.training.rewards.calling import Refused, call_batch, entries_of, is_async, named_arguments, takes_batch
from rlhfless.training.rewards.combine import FunctionReward
from rlhfless.training.rewards.process import FunctionProcesses, ProcessLost
from rlhfless.training.rewards.response import Failure, Response, Reward, RewardError
from solver.model.errors import as_given, is_number
from solver.model.plurals import counted

RewardFunction = Callable[..., Any]
"""``reward(completions, prompts, **columns) -> list[float | None]``, also async, or ``reward(response) -> float | None``."""

NO_COLUMNS = ("prompt", "completion", "completion_ids")


def batch_arguments(responses: Sequence[Response]) -> dict[str, list[Any]]:
    """Return what a function of a batch gets of each response: completion, its token ids, prompt, answer and the data set's
    columns.

    Prompts are those of the data set. A completion is a text where the prompt is one, and a list with the assistant's message
    where the prompt is a list of messages, as in TRL (``trl.data_utils.is_conversational``).
    """
    rows: list[Mapping[str, Any]] = [getattr(response.problem, "row", {}) for response in responses]
    columns = {name: [row.get(name) for row in rows] for row in rows[:1] for name in row if name not in NO_COLUMNS}
    prompts = [response.given_prompt for response in responses]
    return {
        "answer": [response.problem.answer for response in responses],
        **columns,
        "prompts": prompts,
        "completions": [
            response.text if isinstance(prompt, str) else [{"role": "assistant", "content": response.text}]
            for prompt, response in zip(prompts, responses, strict=True)
        ],
        "completion_ids": [list(response.token_ids) for response in responses],
    }


class BatchFunctionReward:
    """The reward of a function ``reward(completions, prompts, **columns) -> list[float]``.

    Arguments are given by keyword: those that the function names, or all if it takes ``**columns``. Those of
    ``batch_arguments`` are lists with one entry per response; ``named_arguments`` has the others. An ``async def`` is awaited.
    With None as a reward the function abstains: the response has the sum of the others.

    Args:
        function: an exception of a Python function ends the step as it was raised, with a note that names the reward.
            ``FunctionProcesses`` have processes of their own.
        name: in metrics; the function's own when None.
        timeout_s: time limit in seconds per response of a batch, for ``FunctionProcesses``; None sets no limit.
    """

    def __init__(
        self, function: RewardFunction | FunctionProcesses, name: str | None = None, timeout_s: float | None = None
    ) -> None:
        self.name, self.function, self.timeout_s = name or name_of(function), function, timeout_s
        self.is_async = not isinstance(function, FunctionProcesses) and is_async(function)

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """Return (R,) rewards, NaN where the function returned None or no finite number, and the failures.

        Raises:
            RewardError: the function returned something else than one entry per response, or its process failed.
        """
        given = responses, TrainerState(), RewardLog(len(responses))
        if not self.is_async:
            return self.score_in(*given)
        loop = EventLoop()
        try:
            return loop.run([self.awaited(*given)])[0]  # type: ignore[no-any-return]
        finally:
            loop.close()

    def score_in(self, responses: Sequence[Response], state: TrainerState, log: RewardLog) -> tuple[np.ndarray, list[Failure]]:
        """Do what ``score`` does, in the state of a run; ``log`` gets what the function logs."""
        arguments, count = batch_arguments(responses), len(responses)
        try:
            if isinstance(self.function, FunctionProcesses):
                limit_s = None if self.timeout_s is None else self.timeout_s * count
                return self._scored(self.function.judge_batch(arguments, state, log, limit_s))
            return self._scored(call_batch(self.function, arguments, count, state, log))
        except (Refused, ProcessLost) as error:
            raise self._failed(count, error) from error
        except Exception as error:
            error.add_note(self._raised_by(count))
            raise

    async def awaited(
        self, responses: Sequence[Response], state: TrainerState, log: RewardLog
    ) -> tuple[np.ndarray, list[Failure]]:
        """Do what ``score_in`` does with an ``async def``."""
        assert not isinstance(self.function, FunctionProcesses)
        count = len(responses)
        try:
            returned = await self.function(**named_arguments(self.function, batch_arguments(responses), state, log))
            return self._scored(entries_of(returned, count))
        except Refused as error:
            raise self._failed(count, error) from error
        except Exception as error:
            error.add_note(self._raised_by(count))
            raise

    def _raised_by(self, count: int) -> str:
        return f"raised by reward {self.name!r} on a batch of {count} responses"

    def _failed(self, count: int, error: BaseException) -> RewardError:
        return RewardError(f"reward {self.name!r} failed on a batch of {count} responses: {error}")

    def _scored(self, returned: Sequence[float | str]) -> tuple[np.ndarray, list[Failure]]:
        failures = [Failure(i, self.name, reason) for i, reason in enumerate(returned) if isinstance(reason, str)]
        return np.array([np.nan if isinstance(value, str) else value for value in returned], dtype=float), failures

    def close(self) -> None:
        """Stop the function's processes, if it has any; another batch would start one again."""
        if isinstance(self.function, FunctionProcesses):
            self.function.close()


def name_of(function: Any) -> str:
    """Return the name of a function in metrics; that of a ``functools.partial`` is the function's."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def function_reward(function: RewardFunction | FunctionProcesses, name: str, timeout_s: float | None = None) -> Reward:
    """Return the reward of a user's function, which takes a batch or one response.

    Raises:
        InputError: it can be called in neither way.
    """
    batch = function.takes_batch if isinstance(function, FunctionProcesses) else takes_batch(function, name)
    return BatchFunctionReward(function, name, timeout_s) if batch else FunctionReward(name, function, timeout_s)


def check_weights(weights: Any, rewards: int) -> None:
    """Check that there is a finite number per reward.

    Raises:
        InputError: there is not.
    """
    numbers = isinstance(weights, Sequence | np.ndarray) and all(is_number(weight) for weight in weights)
    if isinstance(weights, str) or not numbers or len(weights) != rewards:
        raise InputError(
            f"reward_weights is {as_given(weights)}; a list of {counted(rewards, 'number')} is needed, one per reward"
        )
