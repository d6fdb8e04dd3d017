"""Rewards by name, as the command line and a configuration write them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training.rewards.combine import FunctionReward, Rewards
from rlhfless.training.rewards.response import Response, Reward
from rlhfless.training.rewards.rules import contains_answer, exact_answer, length_limit, matches
from rlhfless.training.tasks.problem import Task

KNOWN = "task, exact, contains, format:REGEX, length:LIMIT,SOFT, model:FOLDER or FILE.py:FUNCTION"
USER_TIMEOUT_S = 10.0

_WEIGHTED = re.compile(r"(?:([+-]?\d+(?:\.\d+)?)\*)?(.+)", re.DOTALL)


def make_rewards(names: Sequence[str], task: Task, *, timeout_s: float = USER_TIMEOUT_S, device: Any = "cpu") -> Rewards:
    """The weighted sum of the named rewards: ``("exact", "0.1*format:^<think>", "-0.5*rewards.py:repeats")``.

    Args:
        names: each with its weight before a ``*``, 1 if none is given: ``task`` (the task's own rule), ``exact``, ``contains``,
            ``format:REGEX``, ``length:LIMIT,SOFT`` (tokens), ``model:FOLDER``, or a function of a file, ``FILE.py:FUNCTION``.
        timeout_s: of a function of a file.
        device: of reward models.

    Raises:
        InputError: a name is unknown, or what it names does not fit.
    """
    parts = []
    for text in names:
        match = _WEIGHTED.fullmatch(text)
        if match is None:
            raise InputError(f"reward {text!r} is unknown; choose from {KNOWN}")
        parts.append((_reward(match[2], task, timeout_s, device), float(match[1] or 1)))
    return Rewards(parts)


def _reward(name: str, task: Task, timeout_s: float, device: Any) -> Reward:
    kind, _, argument = name.partition(":")
    if name == "task":
        return FunctionReward(name, lambda response: task.reward(response.problem, response.text))
    if name in ("exact", "contains"):
        return FunctionReward(name, exact_answer if name == "exact" else contains_answer)
    if kind == "format" and argument:
        return FunctionReward(kind, matches(argument))
    if kind == "length" and re.fullmatch(r"\d+,\d+", argument):
        limit, soft = map(int, argument.split(","))
        return FunctionReward(kind, length_limit(limit, soft))
    if kind == "model" and argument:
        from rlhfless.training.rewards.model import ModelReward

        return ModelReward.load(argument, device=device)
    path, _, function = name.rpartition(":")
    if path.endswith(".py"):
        return FunctionReward(function, _from_file(Path(path), function), timeout_s)
    raise InputError(f"reward {name!r} is unknown; choose from {KNOWN}")


def _from_file(path: Path, name: str) -> Callable[[Response], float]:
    """A function of a user's file."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{path}: has no function {name!r}; a reward is a function of one Response")
    return function  # type: ignore[no-any-return]
