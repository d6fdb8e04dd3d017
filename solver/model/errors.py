"""Defines ``PlanningError``, the solver's only exception for wrong input, with the tests for numbers and their format in
messages.

Every message is one sentence: what is wrong, where, and what would be right.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

import numpy as np


class PlanningError(ValueError):
    """The problem cannot be planned; the message names the wrong value and says what is needed."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows (IPython asks for them): the message, as our frames tell a user nothing."""
        return [f"{type(self).__name__}: {self}"]


def is_number(value: Any, minimum: float = -math.inf) -> bool:
    """Return whether ``value`` is one finite real number of at least ``least``; text, arrays and booleans are not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return bool(abs(value) <= sys.float_info.max) and not value < minimum  # type: ignore[operator]


def is_whole(value: Any, minimum: float = -math.inf) -> bool:
    """Return whether ``value`` is a whole number of 64 bits of at least ``least``; a float with a whole value counts."""
    return is_number(value, minimum) and bool(value == int(value) and abs(value) < 1 << 63)


def as_given(value: Any) -> str:
    """Return an argument as error messages show it: plain Python on one short line, text in quotes (``'1'`` is no number)."""
    text = repr(value.tolist() if isinstance(value, np.generic | np.ndarray) else value)
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= 60 else text[:57] + "..."


def check_flags(**flags: Any) -> None:
    """Refuse any value other than True and False (a PlanningError), such as text, which would count as True."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise PlanningError(f"{name} is {as_given(value)}; True or False is needed")


def is_list(value: Any) -> bool:
    """Return whether ``value`` is a collection, such as a list or an array; neither text nor a mapping is one."""
    none = isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Collection) and not none


def listed(name: str, values: Any) -> tuple[Any, ...]:
    """Return a list (``is_list``) as a tuple; refuse anything else (a PlanningError)."""
    if not is_list(values):
        raise PlanningError(f"{name} is {as_given(values)}; a list is needed")
    return tuple(values)


def check_real(name: str, value: Any) -> None:
    """Refuse a value that is not a number, or is NaN (a PlanningError); infinity is accepted."""
    if not isinstance(value, Real) or isinstance(value, bool) or value != value:
        raise PlanningError(f"{name} is {as_given(value)}; a number is needed")


def shown(value: float) -> str:
    """Format a number with three decimals, or as many as a small number needs."""
    return f"{value:.3f}" if value >= 0.01 or value == 0 else f"{value:.3g}"


def shown_above(value: float) -> str:
    """Format a number like ``shown`` but rounded up, so that a limit set to the shown number is enough."""
    step = 1e-3 if value >= 0.01 or value <= 0 else 10.0 ** (math.floor(math.log10(value)) - 2)
    return shown(math.ceil(max(value, 0.0) / step * (1 + 1e-9)) * step)
