"""One logged record: a JSON object, or anything like it, and where it stands.

Knows how a field is checked and how its place is named; nothing of files or frameworks.
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
    """A record of a log.

    Attributes:
        values: field → value. path, line: where it stands; the line is counted from 1. size_bytes: of the line.
    """

    __slots__ = ("line", "path", "size_bytes", "values")

    def __init__(self, values: Mapping[str, Any], path: Path, line: int, size_bytes: int = 0) -> None:
        self.values, self.path, self.line, self.size_bytes = values, path, line, size_bytes

    def whole(self, name: str) -> int:
        """A whole number of 0 or more, as which 3.0 counts too.

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
        """The same, or None where the field is missing or null."""
        return None if self.values.get(name) is None else self.whole(name)

    def number(self, name: str) -> float | None:
        """A number; None, which means unknown, where the field is missing, null or not finite.

        Raises:
            TraceError: it is no number.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not is_number(value):
            self.refuse(name, value, "a number")
        return finite(value)

    def text(self, name: str) -> str:
        """A text.

        Raises:
            TraceError: the field is missing or no text.
        """
        value = self._needed(name)
        if not isinstance(value, str):
            self.refuse(name, value, "a text")
        return value

    def items(self, name: str) -> list[Any]:
        """A list.

        Raises:
            TraceError: the field is missing or no list.
        """
        value = self._needed(name)
        if not isinstance(value, list):
            self.refuse(name, value, "a list")
        return value

    def refuse(self, name: str, value: Any, needed: str) -> NoReturn:
        """Raise the one sentence about a field."""
        raise TraceError(f"{self.path}: line {self.line}, field '{name}' is {as_given(value)}; {needed} is needed")

    def _needed(self, name: str) -> Any:
        if self.values.get(name) is None:
            present = listed(self.values) or "nothing"
            raise TraceError(f"{self.path}: line {self.line} has no field '{name}', only {present}; that field is needed")
        return self.values[name]


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number; true and false are none, though Python counts them as 1 and 0."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: float) -> float | None:
    """The value as a float; None where it is not finite or too large for one."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def text_id(text: str) -> str:
    """A short name of a text, the same in every import: 64 bits of its hash in hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
