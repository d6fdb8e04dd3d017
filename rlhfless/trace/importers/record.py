"""One logged record (a JSON object or a similar mapping) with typed access to its fields and its position for error
messages.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from rlhfless.trace.errors import TraceError
from rlhfless.trace.schema.casts import LARGEST_WHOLE_NUMBER, listed
from solver.model.errors import as_given


class Record:
    """One record of a log.

    Attributes:
        values: field → value. path, line: position of the record; lines count from 1. size_bytes: of the line.
    """

    __slots__ = ("line", "path", "size_bytes", "values")

    def __init__(self, values: Mapping[str, Any], path: Path, line: int, size_bytes: int = 0) -> None:
        self.values, self.path, self.line, self.size_bytes = values, path, line, size_bytes

    def whole(self, name: str) -> int:
        """Return a field that is a whole number of 0 or more; 3.0 counts as one.

        Raises:
            TraceError: the field is missing or something else.
        """
        value = self._needed(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_WHOLE_NUMBER:
            self.refuse(name, value, "a whole number of 0 or more")
        return value

    def maybe_whole(self, name: str) -> int | None:
        """Like ``whole``, but None if the field is missing or null."""
        return None if self.values.get(name) is None else self.whole(name)

    def number(self, name: str) -> float | None:
        """Return a field that is a number; None (unknown) if it is missing, null or not finite.

        Raises:
            TraceError: it is not a number.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not is_number(value):
            self.refuse(name, value, "a number")
        return finite(value)

    def text(self, name: str) -> str:
        """Return a field that is a text.

        Raises:
            TraceError: the field is missing or not a text.
        """
        value = self._needed(name)
        if not isinstance(value, str):
            self.refuse(name, value, "a text")
        return value

    def items(self, name: str) -> list[Any]:
        """Return a field that is a list.

        Raises:
            TraceError: the field is missing or not a list.
        """
        value = self._needed(name)
        if not isinstance(value, list):
            self.refuse(name, value, "a list")
        return value

    def refuse(self, name: str, value: Any, needed: str) -> NoReturn:
        """Raise a ``TraceError`` that names the field, its value and what is needed."""
        raise TraceError(f"{self.path}: line {self.line}, field '{name}' is {as_given(value)}; {needed} is needed")

    def _needed(self, name: str) -> Any:
        if self.values.get(name) is None:
            present = listed(self.values) or "nothing"
            raise TraceError(f"{self.path}: line {self.line} has no field '{name}', only {present}; that field is needed")
        return self.values[name]


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number; True and False are not, although Python counts them as 1 and 0."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: float) -> float | None:
    """Return the value as a float; None if it is not finite or too large for a float."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def text_id(text: str) -> str:
    """Return a short identifier of a text, the same in every import: 64 bits of its hash in hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
