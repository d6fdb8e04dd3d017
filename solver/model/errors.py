"""The one exception of the solver for wrong input, what counts as a number, and how sentences show one.

Knows nothing of planning. Every message is one sentence: what is wrong, where, and what would be right.
"""

from __future__ import annotations

import math
import sys
from numbers import Real
from typing import Any

import numpy as np


class PlanningError(ValueError):
    """The problem as stated cannot be planned; the message names the value to blame and what would be right."""


def is_number(value: Any, least: float = -math.inf) -> bool:
    """Whether this is one finite real number (no text, no array, no truth value) of at least ``least``."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return bool(abs(value) <= sys.float_info.max) and not value < least  # type: ignore[operator]


def is_whole(value: Any, least: float = -math.inf) -> bool:
    """The same for a whole number, which a float may be, of 64 bits."""
    return is_number(value, least) and bool(value == int(value) and abs(value) < 1 << 63)


def as_given(value: Any) -> str:
    """A value as a message shows what was given: plain Python on one line, text in quotes (``'1'`` is no number), and short."""
    text = repr(value.tolist() if isinstance(value, np.generic | np.ndarray) else value)
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= 60 else text[:57] + "..."


def check_flags(**flags: Any) -> None:
    """Refuse what is neither True nor False (a PlanningError); text, say, which would count as True."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise PlanningError(f"{name} is {as_given(value)}; True or False is needed")


def check_real(name: str, value: Any) -> None:
    """Refuse what is no number, NaN included (a PlanningError); infinity is one."""
    if not isinstance(value, Real) or isinstance(value, bool) or value != value:
        raise PlanningError(f"{name} is {as_given(value)}; a number is needed")


def shown(value: float) -> str:
    """Three decimals, or as many as a small number needs."""
    return f"{value:.3f}" if value >= 0.01 or value == 0 else f"{value:.3g}"


def shown_above(value: float) -> str:
    """The same rounded up, so that what is missing is not missed again."""
    step = 1e-3 if value >= 0.01 or value <= 0 else 10.0 ** (math.floor(math.log10(value)) - 2)
    return shown(math.ceil(max(value, 0.0) / step * (1 + 1e-9)) * step)
