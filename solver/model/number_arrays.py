"""Numbers that callers give, as arrays: refused with the first that is wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError


def number_array(name: str, values: ArrayLike) -> NDArray[np.generic]:
    """Return numbers as an array; refuse ragged lists and anything that is not a number."""
    try:
        array: NDArray[np.generic] = np.asarray(values)
    except (ValueError, OverflowError):
        raise PlanningError(f"{name} has rows of different lengths; a rectangular array of numbers is needed") from None
    if array.size and array.dtype.kind not in "iufb":
        raise PlanningError(f"{name} holds {array.dtype} values; numbers are needed")
    return array


def whole_numbers(name: str, values: ArrayLike, *, needed: str = "", rounds_up: bool = False) -> NDArray[np.int64]:
    """Return a one-dimensional int64 copy; refuse values that are infinite, NaN, negative or fractional, naming the
    first bad index.

    Args:
        needed: what would be right, if not numbers of tokens. rounds_up: fractions are rounded up instead.
    """
    array = number_array(name, values)
    if array.ndim != 1:
        raise PlanningError(f"{name} has shape {array.shape}; one number per entry (one dimension) is needed")
    if not array.size:
        return np.zeros(0, dtype=np.int64)
    numbers = array.astype(float)
    rounded = np.ceil(numbers)
    for wrong, why in (
        (~np.isfinite(numbers), "a finite number of tokens is needed"),
        (np.abs(numbers) > 1e15, "a smaller number of tokens is needed"),
        (rounded < 0, "tokens cannot be negative"),
        ((rounded != numbers) & (not rounds_up), "a whole number of tokens is needed"),
    ):
        if wrong.any():
            index = int(np.argmax(wrong))
            raise PlanningError(f"{name}[{index}] is {array[index]}; {needed or why}")
    whole: NDArray[np.int64] = rounded.astype(np.int64)
    whole.setflags(write=False)
    return whole
