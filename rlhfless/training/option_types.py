"""What an option of a run may be, by the type that it is annotated with.

Knows numbers, texts and lists of texts; nothing of what an option means, or of its range.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def as_annotated(value: Any, annotation: str) -> Any:
    """The value as JSON and Python know it: numpy's numbers as Python's, a list as a tuple. A truth value is no number.

    Args:
        annotation: ``int``, ``float``, ``bool``, ``str``, each also with `` | None``, or ``tuple[str, ...]``.

    Raises:
        TypeError: the value is not of this type; the message says what is.
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
