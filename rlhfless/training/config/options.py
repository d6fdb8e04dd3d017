"""Checks options against their annotations, and names what is needed: type, range and choices.

All configuration classes inherit from ``Options``. Checks that involve several options are in the classes.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from rlhfless.training.config.errors import TrainError

Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
NotNegative = Annotated[float, Ge(0), Lt(math.inf)]
Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class Allowed:
    """Values that an annotation allows.

    Attributes:
        kinds: ``int``, ``float``, ``bool``, ``str``, ``tuple`` (of texts), or configuration classes. A bool is not a number.
        limits: bounds of a number, such as ``Ge(1)``. choices: texts, empty if all are allowed; with a number its alternatives.
    """

    kinds: tuple[type, ...]
    limits: tuple[Any, ...] = ()
    choices: tuple[str, ...] = ()
    optional: bool = False

    @classmethod
    def by(cls, annotation: Any) -> Allowed:
        """Return the values that a resolved annotation allows."""
        if get_origin(annotation) in (Union, UnionType):
            parts = [part for part in get_args(annotation) if part is not NoneType]
            of = [cls.by(part) for part in parts]
            kinds = tuple(kind for each in of for kind in each.kinds)
            choices = tuple(choice for each in of for choice in each.choices)
            return cls(kinds, of[0].limits, choices, optional=len(parts) < len(get_args(annotation)))
        if get_origin(annotation) is Annotated:
            kind, *limits = get_args(annotation)
            return cls((kind,), tuple(limits))
        if get_origin(annotation) is Literal:
            return cls((str,), choices=get_args(annotation))
        return cls((get_origin(annotation) or annotation,))

    def plain(self, value: Any) -> Any:
        """Return the value as a plain type: numpy numbers become Python numbers, lists become tuples.

        Raises:
            ValueError: the value is not allowed; the message is what is needed.
        """
        if value is None and self.optional:
            return None
        plain = next((found for kind in self.kinds if (found := _as(kind, value)) is not None), None)
        if isinstance(plain, str):
            allowed = not self.choices or plain in self.choices
        else:
            allowed = plain is not None and all(_keeps(limit, plain) for limit in self.limits)
        if not allowed:
            raise ValueError(f"{self.needed}{', or None,' if self.optional else ''} is needed")
        return plain

    @property
    def needed(self) -> str:
        """What is needed, such as ``a whole number of at least 1``."""
        choices = [repr(choice) for choice in self.choices]
        if self.kinds == (str,) and choices:
            return _either(choices)
        if is_dataclass(self.kinds[0]):
            return "a " + _either([kind.__name__ for kind in self.kinds])
        finite = Lt(math.inf) in self.limits
        nouns = {
            int: "a whole number",
            float: "a finite number" if finite else "a number",
            bool: "True or False",
            str: "a text",
        }
        words = {Gt: "above", Ge: "at least", Le: "at most", Lt: "below"}
        bounds = [f"{words[type(limit)]} {_bound(limit):g}" for limit in self.limits if limit != Lt(math.inf)]
        joined = " and ".join(bounds)
        number = " ".join([nouns.get(self.kinds[0], "a list of texts"), *(["of"] * joined.startswith("at ")), joined]).strip()
        return _either([number, *choices])


@dataclass(frozen=True)
class Options:
    """Base of the configuration classes: a value that its annotation does not allow is refused.

    Raises:
        TrainError: an option has the wrong type or is outside its range; the message names it, its value and what is needed.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, allowed in allowed_values(kind).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, allowed.plain(value))
            except ValueError as error:
                told = f"{name} of {kind.__name__}" if name == "name" else name
                raise TrainError(f"{told} is {value!r}; {error}") from None


@functools.cache
def allowed_values(kind: Any) -> dict[str, Allowed]:
    """Return the allowed values of a configuration class's fields by name."""
    annotations = get_type_hints(kind, include_extras=True)
    return {field.name: Allowed.by(annotations[field.name]) for field in fields(kind)}


def _as(kind: type, value: Any) -> Any:
    """Return the value as this kind, or None if it is of another."""
    if kind in (int, float):
        is_number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
        return (value if type(value) is int else kind(value)) if is_number else None
    if kind is tuple:
        is_list = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
        return tuple(value) if is_list else None
    return value if isinstance(value, kind) else None


def _bound(limit: Any) -> float:
    bound: float = getattr(limit, type(limit).__name__.lower())
    return bound


def _keeps(limit: Any, value: Any) -> bool:
    return bool(getattr(operator, type(limit).__name__.lower())(value, _bound(limit)))


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
