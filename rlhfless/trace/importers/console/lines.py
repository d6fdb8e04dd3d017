"""Console text as lines: without colours and Ray's prefixes, streamed, and with a bounded length; and the values in them."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

from rlhfless.trace.limits import PIECE_BYTES

LONGEST_LINE = 2**20  # bytes; longer lines are skipped, so that memory is bounded
LONGEST_DICT = 100_000  # characters that are parsed
MOST_PARTS = 500  # into which a line is wrapped, so that time is bounded

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[(?:\d{1,3};){0,4}\d{1,3}m")  # also where a paste lost the escape character
RAY_PREFIX = re.compile(r"\s*\(.{0,120}?\bpid=\d{1,10}(?:, ip=[^)\s]{1,60})?\)\s?")
RAY_REPEATED = re.compile(r"\[repeated \d{1,9}x across (?:all )?cluster\].*")
DIGITS = re.compile(r"\d[\d.]{0,30}")
NUMBER_OF = re.compile(r"(?:np\.\w+|numpy\.\w+|(?:torch\.)?tensor)\(([^(),]*)(?:, [\w.=':<>]*)*\)")
NOT_FINITE = re.compile(r"(?<=[:\[(,] )-?(?:nan|inf)(?=\s*[,}\])])")
QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d,]{0,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?)\s*([A-Za-zµ%][\w/%]{0,30})?")


class Line(NamedTuple):
    """A line of console text.

    Attributes:
        number: of the file's line, from 1; the states of a progress bar on one line share it.
        text: without colours, Ray's prefixes and the line's end.
        ended: whether an end of line follows; the last line of a file that was cut has none.
        raw: with Ray's prefixes, which name the process.
    """

    number: int
    text: str
    ended: bool
    raw: str = ""


def console_lines(stream: IO[bytes], note: Callable[[str], None], most_bytes: int | None = None) -> Iterator[Line]:
    """Yield the lines of console text; carriage returns end a line, too.

    Args:
        stream: read piece by piece. note: takes a sentence about lines that are too long, which are left out.
        most_bytes: that are read, about; all if None.
    """
    number, rest, skipping, left = 1, b"", False, most_bytes
    while (left is None or left > 0) and (block := stream.read(PIECE_BYTES)):
        left = None if left is None else left - len(block)
        pieces = (rest + block).splitlines(keepends=True)
        rest = b"" if pieces[-1].endswith(b"\n") else pieces.pop()  # one that ends in \r may go on with \n
        for piece in pieces:
            if not skipping:
                yield _line(number, piece, ended=True)
            skipping = False
            number += piece.endswith(b"\n")
        if len(rest) > LONGEST_LINE:
            note(f"line {number:,} is longer than {LONGEST_LINE:,} bytes and was left out")
            rest, skipping = b"", True
    if rest and not skipping:
        yield _line(number, rest, ended=rest.endswith(b"\r"))


def _line(number: int, piece: bytes, ended: bool) -> Line:
    text = piece.rstrip(b"\r\n").decode("utf-8", "replace")
    raw = CONTROL.sub("", text) if "[" in text else text
    text = RAY_REPEATED.sub("", raw).rstrip() if " across " in raw else raw
    if "pid=" in text and (prefix := RAY_PREFIX.match(text)):
        text = text[prefix.end() :]
    return Line(number, text, ended, raw)


def unwrapped(
    lines: Iterable[Line], begins: Callable[[str], bool], goes_on: Callable[[str, str], str | None]
) -> Iterator[Line]:
    """Yield lines, of which those that a terminal wrapped, or that a person broke, are whole again.

    A part that goes on follows at once and has no prefix of a process.

    Args:
        begins: whether a text begins a line that may be wrapped. goes_on: returns a text together with the next line's, or None
            if that is another line.
    """
    whole: Line | None = None
    widths: list[int] = []  # of its parts
    for line in lines:
        if whole is not None:
            text = goes_on(whole.text, line.text) if line.raw == line.text and line.text.strip() else None
            if text is None and len(widths) > 1 and len(set(widths)) == 1 and DIGITS.fullmatch(line.text):
                text = whole.text + line.text  # the rest of the last number, where the parts before fill the terminal
            if text is not None and len(widths) < MOST_PARTS and len(text) <= LONGEST_LINE:
                whole = whole._replace(text=text, ended=line.ended)
                widths.append(len(line.raw))
                continue
            yield whole
            whole = None
        if begins(line.text):
            whole, widths = line, [len(line.raw)]
        else:
            yield line
    if whole is not None:
        yield whole


def parse_dict(text: str) -> dict[Any, Any] | None:
    """Return the Python dict at the beginning of a text, up to its last brace; None if there is none.

    Numbers of numpy and torch count as numbers, nan and inf as None. Only literals are read, and no code runs.
    """
    text = text[: text.rfind("}") + 1]
    if not text or len(text) > LONGEST_DICT:
        return None
    text = NOT_FINITE.sub("None", NUMBER_OF.sub(r"\1", text))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about the log's own escapes
            values = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return values if isinstance(values, dict) else None


class Quantity(NamedTuple):
    """A number in a text, and the unit that follows it; the empty text if there is none."""

    value: float
    unit: str


def quantity(text: str) -> Quantity | None:
    """Return the number at the beginning of a text, such as ``12.5s``, ``1,024`` or ``3.1 GiB``; None if there is none."""
    match = QUANTITY.match(text)
    return Quantity(float(match[1].replace(",", "")), match[2] or "") if match else None
