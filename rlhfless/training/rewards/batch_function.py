"""A plain function of a batch as a reward, called as TRL calls reward functions.

An exception of the function ends the step, which is undone. ``FILE.py:FUNCTION`` judges response by response in a process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training.rewards.combine import Rewards
from rlhfless.training.rewards.response import Failure, Response, Reward, finite
from solver.model.errors import as_given

RewardFunction = Callable[..., Sequence[float | None]]
"""``reward(completions, prompts=..., **columns) -> list[float]``."""

NO_COLUMNS = ("prompt", "completion")


class BatchFunctionReward:
    """The reward of a function ``reward(completions, prompts=..., **columns) -> list[float]``.

    Every argument is a list with one entry per response, given by keyword; the function gets those that it names, or all if it
    takes ``**kwargs``. ``completions`` are texts and ``prompts`` those that the model saw. Of a data set of conversations,
    ``prompts`` are lists of messages, and a completion is a list with the assistant's message. ``columns`` are the data set's,
    with ``answer`` in any case. None as a reward leaves the response out of learning.

    Args:
        function: the reward. name: in metrics; the function's own when None.
    """

    def __init__(self, function: RewardFunction, name: str | None = None) -> None:
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.function = function
        parameters = inspect.signature(function).parameters.values()
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        self._named = None if takes_all else {parameter.name for parameter in parameters}

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """Return (R,) rewards, NaN where the function returned None or no finite number, and the failures.

        Raises:
            InputError: the function returned something else than one entry per response.
        """
        given = _columns(responses)
        kept = given if self._named is None else {name: values for name, values in given.items() if name in self._named}
        returned = self.function(**kept)
        if not isinstance(returned, Sequence | np.ndarray) or len(returned) != len(responses):
            raise InputError(
                f"reward {self.name!r} returned {as_given(returned)}; a list of {len(responses)} numbers is needed, one per "
                "completion"
            )
        values, failures = np.full(len(responses), np.nan), []
        for i, value in enumerate(returned):
            try:
                values[i] = finite(value)
            except ValueError as error:
                failures.append(Failure(i, self.name, str(error)))
        return values, failures


def as_rewards(given: Rewards | RewardFunction | Sequence[RewardFunction]) -> Rewards:
    """Return the rewards that a user gives: ``Rewards``, a function, or functions whose rewards are added.

    Raises:
        InputError: it is none of these, or two functions have the same name.
    """
    if isinstance(given, Rewards):
        return given
    functions = (
        [given] if callable(given) else list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    )
    if not functions or not all(callable(function) for function in functions):
        raise InputError(f"rewards is {as_given(given)}; a function, a list of functions or Rewards is needed")
    parts: list[tuple[Reward, float]] = [(BatchFunctionReward(function), 1.0) for function in functions]
    return Rewards(parts)


def _columns(responses: Sequence[Response]) -> dict[str, list[Any]]:
    """Return the arguments of a function: completions, prompts, answers and the data set's columns."""
    conversations = [getattr(response.problem, "messages", ()) for response in responses]
    rows: list[Mapping[str, Any]] = [getattr(response.problem, "row", {}) for response in responses]
    columns = {name: [row.get(name) for row in rows] for row in rows[:1] for name in row if name not in NO_COLUMNS}
    return {
        "answer": [response.problem.answer for response in responses],
        **columns,
        "prompts": [list(said) or response.prompt for said, response in zip(conversations, responses, strict=True)],
        "completions": [
            [{"role": "assistant", "content": response.text}] if said else response.text
            for said, response in zip(conversations, responses, strict=True)
        ],
    }
