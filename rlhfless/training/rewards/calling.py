"""Calls a user's reward function, of a batch or of one response, in this process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training.rewards.called_with import RewardLog, TrainerState
from rlhfless.training.rewards.response import number_of
from solver.model.errors import as_given

FORMS = "f(completions, prompts, **columns), which returns a list of numbers, or f(response), which returns a number"
BATCH = ("completions", "prompts", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""A function that names one of these takes a batch."""


class Refused(Exception):
    """The function raised an exception or returned no number; the message is the whole reason."""


def takes_batch(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function takes a batch, as TRL calls it; else it takes one ``Response``.

    A function takes a batch if it names one of ``BATCH``, or takes keyword arguments only. Any other that can be
    called with one argument takes a response.

    Raises:
        InputError: it can be called in neither way, or is an ``async def`` of one response. ``name`` is its name in the
            message.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function may have none
        raise InputError(f"reward {name!r} has no signature; write a function {FORMS}") from None
    if any(parameter in signature.parameters for parameter in BATCH):
        return True
    try:
        signature.bind(None)
    except TypeError:
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
            return True
    else:
        if is_async(function):
            raise InputError(f"reward {name!r} is an async def of one response; let it take a batch, f(completions, **columns)")
        return False
    raise InputError(f"reward {name!r} has the arguments {signature}; give a function {FORMS}")


def named_arguments(
    function: Callable[..., Any], arguments: Mapping[str, list[Any]], state: TrainerState, log: RewardLog
) -> dict[str, Any]:
    """Return the arguments that a function of a batch names, or all if it takes ``**columns``; as in TRL also the state of the
    run (``trainer_state``) and the functions ``log_extra`` and ``log_metric``.

    Raises:
        Refused: it needs an argument that is none of these.
    """
    given = {**arguments, "trainer_state": state, "log_extra": log.log_extra, "log_metric": log.log_metric}
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    named = {parameter.name for parameter in parameters}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for needed in parameters:
        if needed.name not in given and needed.default is needed.empty and needed.kind not in variable:
            raise Refused(
                f"has an argument {needed.name!r}; rename it to one of {', '.join(sorted(given))}, or give it a default"
            )
    return {name: value for name, value in given.items() if takes_all or name in named}


def call_batch(
    function: Callable[..., Any], arguments: Mapping[str, list[Any]], count: int, state: TrainerState, log: RewardLog
) -> list[float | str]:
    """Call a function of a batch of ``count`` responses, or await it, with ``named_arguments``.

    Returns:
        A number per response, NaN where it returned None or NaN, or the reason why there is none.

    Raises:
        Refused: see ``named_arguments``; or it returned something else than one entry per response. Other exceptions are the
            function's own.
    """
    returned = function(**named_arguments(function, arguments, state, log))
    return entries_of(asyncio.run(returned) if is_async(function) else returned, count)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the call of an object, is an ``async def``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def entries_of(returned: Any, count: int) -> list[float | str]:
    """Return what a function of a batch returned (a list, a tensor, an array), as ``call_batch`` does.

    Raises:
        Refused: it is not one entry per response.
    """
    listed = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != count:
        raise Refused(f"returned {as_given(returned)}; a list of {count} numbers is needed, one per completion")
    return [_number(value) for value in listed]


def _number(value: Any) -> float | str:
    try:
        return number_of(value)
    except ValueError as error:
        return str(error)
