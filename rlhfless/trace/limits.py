"""Limits how much of a log is read: line length, number of rows, and unpacked bytes of compressed files.

A file of a few megabytes can contain a line of gigabytes or millions of equal rows, by accident or on purpose. Readers count
with a ``Guard``, which raises one clear sentence before memory is full. The limits are those of ``limits=`` in Python, else of
the environment variable ``RLHFLESS_LIMITS``, else the usual ones.
"""

from __future__ import annotations

import gzip
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from rlhfless.errors import InputError
from rlhfless.trace.errors import TraceError

PIECE_BYTES = 2**20  # read at once
VARIABLE = "RLHFLESS_LIMITS"
LINE, ROWS, UNPACKED = "max_line_mib", "max_rows", "max_unpacked_gib"


@dataclass(frozen=True)
class Limits:
    """Limits on how much of one log is read, against damaged and hostile files.

    Attributes:
        line_bytes: bytes of a line, of a row of a csv file, or of a JSON document.
        rows: number of responses, records, or table rows.
        unpacked_bytes: bytes of all compressed files together, after unpacking.

    Raises:
        InputError: a limit is not a number above 0.
    """

    line_bytes: int = 64 * 2**20
    rows: int = 10_000_000
    unpacked_bytes: int = 16 * 2**30

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value!r}; a whole number above 0 is needed")

    @classmethod
    def of_environment(cls) -> Limits:
        """Return the limits set in the environment variable ``RLHFLESS_LIMITS``, such as
        ``max_rows=20000000,max_line_mib=256``; others have their defaults.

        Raises:
            InputError: the variable has another form, an unknown name, or a value that is not a number above 0.

        Example:
            >>> os.environ["RLHFLESS_LIMITS"] = "max_rows=500, max_line_mib=0.5"
            >>> Limits.of_environment()
            Limits(line_bytes=524288, rows=500, unpacked_bytes=17179869184)
            >>> del os.environ["RLHFLESS_LIMITS"]
        """
        given: dict[str, int] = {}
        for part in filter(None, (one.strip() for one in os.environ.get(VARIABLE, "").split(","))):
            name, _, value = (word.strip() for word in part.partition("="))
            try:
                if name == ROWS:
                    given["rows"] = int(value)
                else:
                    field, unit = {LINE: ("line_bytes", 2**20), UNPACKED: ("unpacked_bytes", 2**30)}[name]
                    given[field] = math.ceil(float(value) * unit)
                cls(**given)
            except (KeyError, ValueError, OverflowError, InputError):
                raise InputError(
                    f"{VARIABLE}: {part!r:.80} is not a limit; numbers above 0 are needed as in {ROWS}=20000000,{LINE}=256,"
                    f"{UNPACKED}=64, of which each may be left out"
                ) from None
        return cls(**given)


class Guard:
    """Counts what was read of one log and raises an error at the limits; None takes those of ``RLHFLESS_LIMITS``."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = Limits.of_environment() if limits is None else limits
        self._rows = self._unpacked = 0

    @contextmanager
    def unpacked(self, path: Path, stream: IO[bytes]) -> Iterator[IO[bytes]]:
        """Yield a stream of the file's bytes, unpacked if its name ends in ``.gz``.

        Args:
            stream: the file's own bytes.

        Raises:
            TraceError: while it is read, if it unpacks to more than the limit.
        """
        if not path.name.lower().endswith(".gz"):
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as packed:
            yield io.BufferedReader(_Unpacked(packed, path, self), PIECE_BYTES)

    def lines(self, path: Path, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield number, from 1, and bytes of every line.

        Raises:
            TraceError: a line is longer than the limit, or there are more lines than allowed rows.
        """
        number = 0
        while line := stream.readline(self.limits.line_bytes + 1):
            number += 1
            if len(line) > self.limits.line_bytes:
                self.refuse_line(path, f"line {number}")
            self.check_rows(path, number)
            yield number, line

    def document(self, path: Path, stream: IO[bytes]) -> bytes:
        """Return all bytes of a JSON document.

        Raises:
            TraceError: it is longer than the limit of a line.
        """
        content = stream.read(self.limits.line_bytes + 1)
        if len(content) > self.limits.line_bytes:
            self.refuse_line(path, "its content")
        return content

    def add_rows(self, path: Path, count: int) -> None:
        """Count rows that were read.

        Raises:
            TraceError: there are more than the limit.
        """
        self._rows += count
        self.check_rows(path, self._rows)

    def check_rows(self, path: Path, count: int) -> None:
        """Check the number of rows that a file declares.

        Raises:
            TraceError: there are more than the limit.
        """
        if count > self.limits.rows:
            raise TraceError(f"{path}: has more than {self.limits.rows:,} rows; {_raise(ROWS, 'rows')}")

    def add_unpacked(self, path: Path, count: int) -> None:
        """Count bytes that were unpacked, or that a file declares as its unpacked size.

        Raises:
            TraceError: there are more than the limit.
        """
        self._unpacked += count
        if self._unpacked > self.limits.unpacked_bytes:
            size = _size(self.limits.unpacked_bytes)
            raise TraceError(f"{path}: unpacks to more than {size}; {_raise(UNPACKED, 'unpacked_bytes')}")

    def refuse_line(self, path: Path, what: str) -> NoReturn:
        """Raise the error about something that is longer than the limit of a line."""
        size = _size(self.limits.line_bytes)
        raise TraceError(f"{path}: {what} is longer than {size}; {_raise(LINE, 'line_bytes')}")


def _raise(variable: str, name: str) -> str:
    return f"if that is right, raise the limit with {VARIABLE}={variable}=..., or in Python with Limits({name}=...)"


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} bytes"


class _Unpacked(io.RawIOBase):
    """A packed stream that counts what it unpacks."""

    def __init__(self, packed: gzip.GzipFile, path: Path, guard: Guard) -> None:
        self._packed, self._path, self._guard = packed, path, guard

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._packed.read(len(buffer))
        self._guard.add_unpacked(self._path, len(piece))
        buffer[: len(piece)] = piece
        return len(piece)
