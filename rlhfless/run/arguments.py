"""Says where an argument belongs that a method of a run does not have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rlhfless.errors import InputError
from rlhfless.run.hardware import Hardware
from solver.model.errors import as_given

P = ParamSpec("P")
R = TypeVar("R")
OF_LOAD = ("profile", "hardware", "assumptions", "max_response_tokens")
OF_SWEEP = ("gpus", "time_weight")
OF_HARDWARE = tuple(field.name for field in fields(Hardware))


def known_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method; an argument by a name that it does not have is refused in a sentence (an InputError)."""
    known = [name for name in inspect.signature(method).parameters if name not in ("self", "others")]
    named = method.__qualname__

    @wraps(method)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name, value in given.items():
            if name not in known:
                raise InputError(f"{name} is not an argument of {named}; {_belongs(name, value, known)}")
        return method(*args, **given)

    return checked


def _belongs(name: str, value: Any, known: list[str]) -> str:
    """Return what to type instead."""
    several, shown = isinstance(value, list | tuple), as_given(value)
    if name in OF_SWEEP:
        sweep = f"to compare several, call run.sweep({name}={shown if several else '[...]'})"
        return sweep if several else f"load the run with rl.load(..., {name}={shown}), or, {sweep}"
    if name in OF_LOAD:
        return f"load the run with rl.load(..., {name}=...)"
    if name in OF_HARDWARE:
        return f"load the run with rl.load(..., hardware=rl.Hardware({name}={shown}))"
    if name in ("policy", "policies"):
        return "to compare policies, call run.simulate(['static', 'solver'])"
    return f"its arguments are {', '.join(known)}" if known else "it has none"
