"""Makes rewards from their names on the command line and in a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training.config.reward_names import weight_and_name
from rlhfless.training.problem import Task
from rlhfless.training.rewards.combine import FunctionReward, Rewards
from rlhfless.training.rewards.process import FunctionProcesses
from rlhfless.training.rewards.response import Reward
from rlhfless.training.rewards.rules import contains_answer, exact_answer, length_limit
from rlhfless.training.rewards.user_function import RewardFunction, check_weights, function_reward, name_of
from solver.model.errors import as_given

USER_TIMEOUT_S = 10.0


def make_rewards(
    names: Sequence[str], task: Task | None, *, timeout_s: float = USER_TIMEOUT_S, device: Any = "cpu", offloads: bool = False
) -> Rewards:
    """Return the weighted sum of the named rewards: ``("exact", "0.1*format:^<think>", "-0.5*rewards.py:repeats")``.

    Args:
        names: each optionally preceded by a weight and ``*``: ``task`` (the task's own rule), ``exact``, ``contains``,
            ``format:REGEX``, ``length:LIMIT,SOFT`` (tokens), ``model:FOLDER``, or a function of a file, ``FILE.py:FUNCTION``,
            which takes a batch or one response, see ``takes_batch``. In metrics each is called by its kind or function; if two
            have that name, the second is called by its whole text.
        task: whose own rule the reward ``task`` is; None where that is not among the names.
        timeout_s: time limit in seconds per response, for formats and for functions of a file; each runs in its own process,
            see ``FunctionProcesses``.
        device: device of reward models.
        offloads: keep reward models in CPU memory, and copy them to the device only while they score.

    Raises:
        InputError: a name is unknown or given twice, or its arguments are wrong.
        InputError: a reward model cannot be read.
    """
    parts: list[tuple[Reward, float]] = []
    for weight, name in [weight_and_name(text) for text in names]:
        reward = _reward(name, task, timeout_s, device, offloads)
        if any(reward.name == earlier.name for earlier, _ in parts):
            reward.name = name
        parts.append((reward, weight))
    return Rewards(parts)


def named_reward(text: str, timeout_s: float = USER_TIMEOUT_S) -> tuple[Reward, float]:
    """Return a named reward that stands beside functions, and its weight.

    Raises:
        InputError: there is none of that name, or it needs the task or a model.
    """
    weight, name = weight_and_name(text)
    if name == "task" or name.startswith("model:"):
        raise InputError(
            f"reward {name!r} cannot stand beside functions; of names exact, contains, format:REGEX, length:LIMIT,SOFT and "
            "FILE.py:FUNCTION can, or give names alone, with the function as FILE.py:FUNCTION"
        )
    return _reward(name, None, timeout_s, "cpu", False), weight


def as_rewards(given: Rewards | RewardFunction | Sequence[RewardFunction], weights: Sequence[float] | None = None) -> Rewards:
    """Return the rewards that a user gives: ``Rewards``, a function, or functions and names whose rewards are added.

    Args:
        given: names are those of ``make_rewards`` that need neither the task nor a model, such as ``exact``.
        weights: a factor per function; 1 where they are None.

    Raises:
        InputError: it is none of these, or a function takes neither a batch nor a response, or two have the same name, or
            there is not a weight per function.
    """
    if isinstance(given, Rewards):
        if weights is not None:
            raise InputError("reward_weights is given with Rewards, which has weights of its own; leave it out")
        return given
    functions = (
        [given] if callable(given) else list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    )
    if not any(map(callable, functions)) or not all(callable(one) or isinstance(one, str) for one in functions):
        raise InputError(f"rewards is {as_given(given)}; a function, a list of functions or Rewards is needed")
    if weights is not None:
        check_weights(weights, len(functions))
    factors = [1.0] * len(functions) if weights is None else [float(weight) for weight in weights]
    parts = [named_reward(one) if isinstance(one, str) else (function_reward(one, name_of(one)), 1.0) for one in functions]
    return Rewards([(reward, weight * factor) for (reward, weight), factor in zip(parts, factors, strict=True)])


def compare_with_answers(rewards: Rewards) -> bool:
    """Return whether one of the rewards is a rule of the project's that compares with an answer."""
    return any(getattr(reward, "function", None) in (exact_answer, contains_answer) for reward, _ in rewards.parts)


def _reward(name: str, task: Task | None, timeout_s: float, device: Any, offloads: bool) -> Reward:
    kind, _, argument = name.partition(":")
    if name == "task":
        if task is None:
            raise InputError("reward 'task' needs a task; give make_rewards(names, task), or leave 'task' out")
        return FunctionReward(name, lambda response: task.reward(response.problem, response.text))
    if name in ("exact", "contains"):
        return FunctionReward(name, exact_answer if name == "exact" else contains_answer)
    if kind == "format":
        return FunctionReward(kind, FunctionProcesses("format", argument), timeout_s)
    if kind == "length":
        limit, soft = map(int, argument.split(","))
        return FunctionReward(kind, length_limit(limit, soft))
    if kind == "model":
        from rlhfless.training.rewards.model import ModelReward

        return ModelReward.load(argument, device=device, offloads=offloads)
    path, _, function = name.rpartition(":")
    return function_reward(FunctionProcesses("file", str(Path(path).absolute()), function), function, timeout_s)
