"""Reads a csv file in blocks of whole rows, so that at most one block, or one row, is in memory.

A row ends at a line break outside of quotes. A quote opens a cell only at the cell's beginning, and two quotes inside a cell
mean one quote, as in pandas.

pyarrow's reader in blocks (``pyarrow.csv.open_csv``) does not replace this. It refuses a row with fewer cells than the header,
a value of a later block that has not the type of the first one, and a row longer than a block. It makes dates of texts such as
2024-01-01 (``test_rows_may_end_early_and_later_blocks_may_have_other_types``). pandas' own (``chunksize``) counts rows and not
bytes, and reads a quote that is never closed to the end of the file.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pandas as pd

from rlhfless.errors import reason
from rlhfless.trace.errors import TraceError
from rlhfless.trace.limits import PIECE_BYTES, Guard

BLOCK_BYTES = 16 * 2**20
MAX_COLUMNS = 10_000
BOM = b"\xef\xbb\xbf"


def csv_frames(guard: Guard, path: Path, stream: IO[bytes], text_columns: Iterable[str] | None) -> Iterator[pd.DataFrame]:
    """Yield the rows of a csv file block by block, at least one frame; the index counts rows from 0.

    Args:
        stream: the file's bytes, unpacked.
        text_columns: read as text, so that ``007`` stays ``007``. None: all cells are the texts that stand in the file.

    Raises:
        TraceError: it is not a csv file with commas, or a row or the header is longer than the limits.
    """
    types: dict[str, Any] = {"dtype": str, "keep_default_na": False}
    if text_columns is not None:
        types = {"dtype": dict.fromkeys(text_columns, str)}
    at = lines = 0
    for block, before in csv_blocks(guard, path, stream):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # pandas only warns where it drops cells
                frame = pd.read_csv(io.BytesIO(block), index_col=False, low_memory=False, encoding="utf-8", **types)
        except Exception as error:  # whatever the reader raises is about the file
            reason_text = _with_later_lines(reason(error), lines)
            if isinstance(error, pd.errors.ParserWarning):
                reason_text = "its rows have more cells than its header has names"
            raise TraceError(f"{path}: cannot be read as csv ({reason_text}); an intact file is needed") from error
        frame.index = pd.RangeIndex(at, at + len(frame))
        at, lines = at + len(frame), lines + before
        yield frame


def _with_later_lines(text: str, lines: int) -> str:
    """What pandas says of a block, with the lines of the file that come before it."""
    return re.sub(r"\b(line|row) (\d+)", lambda match: f"{match[1]} {int(match[2]) + lines}", text)


def csv_blocks(guard: Guard, path: Path, stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield blocks that each begin with the header, and the number of file lines before the next block's rows.

    Raises:
        TraceError: a row is longer than the limit of a line, or the file has no csv header with commas.
    """
    quotes, header, blank_lines, begin = Quotes(), b"", 0, True
    whole: list[bytes] = []  # rows of the next block
    begun: list[bytes] = []  # of a row whose end is not read yet
    whole_bytes = begun_bytes = 0

    def block() -> tuple[bytes, int]:
        nonlocal header
        rows = b"".join(whole)
        if header:
            return header + rows, rows.count(b"\n")
        header = _header(rows)
        _check_header(header, path)
        return rows, blank_lines + rows.count(b"\n") - header.count(b"\n")

    while piece := stream.read(max(len(BOM), min(PIECE_BYTES, guard.limits.line_bytes))):
        piece, begin = piece.removeprefix(BOM) if begin else piece, False
        end = quotes.last_end(piece)
        if end:
            whole += [*begun, piece[:end]]
            whole_bytes += begun_bytes + end
            begun, begun_bytes = [], 0
        begun.append(piece[end:])
        begun_bytes += len(piece) - end
        if begun_bytes > guard.limits.line_bytes:
            guard.refuse_line(path, "a row")
        if end and not header and not any(part.strip() for part in whole):
            blank_lines += sum(part.count(b"\n") for part in whole)
            whole, whole_bytes = [], 0
        if whole_bytes >= BLOCK_BYTES:
            yield block()
            whole, whole_bytes = [], 0
    whole += begun
    if any(whole) or not header:
        yield block()


class Quotes:
    """Finds the ends of rows in consecutive pieces of a csv file."""

    def __init__(self) -> None:
        self._inside = False
        self._just_closed = False  # the byte before was a quote that closed a cell
        self._before = b"\n"

    def last_end(self, piece: bytes) -> int:
        """Return the position after the last line break of a piece that ends a row; 0 if there is none."""
        at = last = 0
        while True:
            quote = piece.find(b'"', at)
            if self._inside:
                if quote < 0:
                    break
                self._inside, self._just_closed, at = False, True, quote + 1
                continue
            last = piece.rfind(b"\n", at, len(piece) if quote < 0 else quote) + 1 or last
            if quote < 0:
                self._just_closed = self._just_closed and at == len(piece)
                break
            before = piece[quote - 1 : quote] if quote else self._before
            self._inside = before in (b",", b"\n", b"\r") or (self._just_closed and quote == at)
            self._just_closed, at = False, quote + 1
        self._before = piece[-1:]
        return last


def _header(rows: bytes) -> bytes:
    """Return the first row that is not empty, and what comes before it."""
    quotes, end, filled = Quotes(), 0, False
    for line in io.BytesIO(rows):
        end += len(line)
        filled = filled or bool(line.strip())
        if quotes.last_end(line) == len(line) and filled:
            break
    return rows[:end] if filled else b""


def _check_header(header: bytes, path: Path) -> None:
    columns = header.count(b",") + 1
    if columns > MAX_COLUMNS:
        raise TraceError(f"{path}: has {columns:,} columns; a table of at most {MAX_COLUMNS:,} columns is needed")
    for separator, name in ((b";", "semicolons"), (b"\t", "tabs"), (b"|", "bars")):
        if columns == 1 and separator in header:
            raise TraceError(f"{path}: its columns are separated by {name}; a csv file with commas is needed")
