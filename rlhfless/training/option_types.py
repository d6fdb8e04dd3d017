"""Checks the value of a run's option against its type annotation and converts it to a plain Python type.

Ranges and meanings of options are checked elsewhere.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def as_annotated(value: Any, annotation: str) -> Any:
    """Return the value as a plain type: numpy numbers become Python numbers, lists become tuples. A bool is not a number.

    Args:
        annotation: ``int``, ``float``, ``bool``, ``str``, each also with `` | None``, or ``tuple[str, ...]``.

    Raises:
        TypeError: the value is not of this type; the message names the type that is needed.
    """
    kind, _, optional = annotation.partition(" | ")
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is None and optional:
        return None
    if kind == "int" and is_number and isinstance(value, Integral):
        return int(value)
    if kind == "float" and is_number:
        return value if isinstance(value, (int, float)) else float(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "tuple[str, ...]" and isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return tuple(value)
    needed = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "a text"}.get(
        kind, "a list of texts"
    )
    raise TypeError(f"{needed}{', or None,' if optional else ''} is needed")
