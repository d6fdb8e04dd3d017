"""Checks lists of numbers that users give: numbers of GPUs, sizes of actors, and anything else of which each is given once.

What counts as a list says ``solver.model.errors.is_list``.
"""

from __future__ import annotations

from typing import Any

from rlhfless.errors import InputError
from solver.model.cluster import MOST_GPUS
from solver.model.errors import as_given, is_list, is_whole


def gpu_number(name: str, value: Any) -> int:
    """Return a number of GPUs.

    Raises:
        InputError: it is no whole number from 1 to ``MOST_GPUS``.
    """
    if not is_whole(value, 1) or value > MOST_GPUS:
        raise InputError(f"{name} is {as_given(value)}; a whole number from 1 to {MOST_GPUS:,} is needed")
    return int(value)


def gpu_numbers(name: str, values: Any) -> list[int]:
    """Return several numbers of GPUs in their order.

    Raises:
        InputError: it is no list of at least one, one is no number as of ``gpu_number``, or is there twice.
    """
    given = several(name, values, "whole numbers above 0, such as [8, 16]")
    for value in given:
        if not is_whole(value, 1) or value > MOST_GPUS:
            raise InputError(f"{name} has {as_given(value)}; whole numbers from 1 to {MOST_GPUS:,} are needed")
    return once(name, [int(value) for value in given])


def several(name: str, values: Any, needed: str) -> list[Any]:
    """Return the values of a list.

    Args:
        needed: what they have to be, with an example, for the message.

    Raises:
        InputError: it is no list, or is empty.
    """
    if not is_list(values) or not len(values):
        raise InputError(f"{name} is {as_given(values)}; a list of {needed} is needed")
    return list(values)


def once(name: str, values: list[Any]) -> list[Any]:
    """Return the values.

    Raises:
        InputError: one is there twice.
    """
    if twice := [value for i, value in enumerate(values) if value in values[:i]]:
        raise InputError(f"{name} has {as_given(twice[0])} twice; give it once")
    return values
