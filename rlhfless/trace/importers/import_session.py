"""State of one import: its options, an API to read its files piece by piece, and what was found and decided so far.

At most one batch of one file is in memory, and the limits (``rlhfless.trace.limits``) hold for the whole import. Wrong files
raise a ``TraceError`` of one sentence.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pandas as pd

from rlhfless.errors import InputError, reason
from rlhfless.trace.csv_blocks import csv_frames
from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.record import Record
from rlhfless.trace.importers.tokens import TokenCounter
from rlhfless.trace.json_lines import json_lines
from rlhfless.trace.limits import PIECE_BYTES, Guard, Limits
from rlhfless.trace.parquet_batches import BATCH_BYTES, BATCH_ROWS, parquet_frames
from rlhfless.trace.storage import seekable
from solver.model.errors import as_given, is_whole

TEXTS = frozenset({"prompt", "response"})
"""Columns of a log's texts, which an import leaves out unless it is asked to keep them."""

PEEK_BYTES = 16 * 2**20  # how far into a file its format is looked for


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        tokenizer: local folder, ``tokenizer.json`` or hub name; needed if only texts are logged.
        mapping: for tables: our column → the log's column, several joined columns, a constant or the row's number
            (``mapped_columns.py``).
        max_response_tokens: the run's limit on response length, in tokens.
        keep: further columns to keep, such as the texts ``prompt`` and ``response``; long texts are otherwise left out.
        unsafe_pickle: load pickled slime files, which can run code; only from trusted sources.
        progress: show a progress bar on standard error, where that is a terminal.
        limits: limits on what is read; by default those of ``RLHFLESS_LIMITS``.
        where: condition on the columns of a table (``row_filter.py``); only rows that meet it are read.

    Raises:
        InputError: an option is of another type, or the maximal length is no whole number above 0.
    """

    tokenizer: str | Path | None = None
    mapping: Mapping[str, str | float] = field(default_factory=dict)
    max_response_tokens: int | None = None
    keep: frozenset[str] = frozenset()
    unsafe_pickle: bool = False
    progress: bool = False
    limits: Limits = field(default_factory=Limits.of_environment)
    where: str | None = None

    def __post_init__(self) -> None:
        needed = {
            "tokenizer": (str | Path | None, "a folder or a name"),
            "mapping": (Mapping, "columns of the log by ours, such as {'step': 'iteration'},"),
            "unsafe_pickle": (bool, "True or False"), "progress": (bool, "True or False"), "limits": (Limits, "Limits(...)"),
            "where": (str | None, "a condition, such as 'step < 5',"),
        }  # fmt: skip
        for name, (kind, words) in needed.items():
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} is {as_given(getattr(self, name))}; {words} is needed")
        if self.max_response_tokens is not None and not is_whole(self.max_response_tokens, 1):
            raise InputError(f"max_response_tokens is {as_given(self.max_response_tokens)}; a whole number above 0 is needed")
        columns = self.keep
        if not isinstance(columns, Collection) or isinstance(columns, str) or not all(isinstance(one, str) for one in columns):
            raise InputError(f"keep is {as_given(columns)}; a list of columns is needed, such as ['response']")
        object.__setattr__(self, "keep", frozenset(columns))


class ImportSession:
    """What an importer reads with and reports its findings to.

    Args:
        path: the log as the user named it. options: of the import.

    Attributes:
        guard: counts what is read against the limits.
        notes: decisions, one sentence each, in order.
        fields: names of all fields that were seen.
        scalars: one dict per logged step, with ``step``, and ``run`` where the log has several; see ``scalars.py``.
        engine: one dict per line of an engine's own statistics; see ``engine_lines.py``.
        facts: numbers of the whole run; see ``run_facts.py``.
        framework: that wrote the log, where the format is one that several frameworks write; else empty.
        from_text: lengths were counted from texts, which lack the end token.
        ended: the importer itself reports finish reasons, and which of them are unknown.
        machine_clock: times are on a machine's clock, not since the run's start.
        duplicates: rows dropped as repetitions.
        dispatch_order_known: rows are in the order in which prompts were dispatched.
        prompts_known: the log says which responses are to the same prompt.
    """

    def __init__(self, path: Path, options: ImportOptions) -> None:
        self.path, self.options, self.guard = path, options, Guard(options.limits)
        self.notes: list[str] = []
        self.fields: set[str] = set()
        self.scalars: list[dict[str, Any]] = []
        self.engine: list[dict[str, Any]] = []
        self.facts: dict[str, float] = {}
        self.framework = ""
        self.from_text = self.ended = self.machine_clock = False
        self.duplicates = 0
        self.dispatch_order_known = self.prompts_known = True
        self._counter: TokenCounter | None = None
        self._bar: Any = None

    def note(self, text: str) -> None:
        """Add a decision to the notes of the summary, once."""
        if text not in self.notes:
            self.notes.append(text)

    def count_tokens(self, texts: list[str]) -> list[int]:
        """Return (len(texts),) tokens of each text, without special tokens.

        Raises:
            TraceError: no tokenizer was named, or it cannot be loaded.
        """
        if self._counter is None:
            if self.options.tokenizer is None:
                raise TraceError(
                    f"{self.path}: has texts but no token counts; name the tokenizer of the run's model with --tokenizer, "
                    "a local folder or a hub name"
                )
            self._counter = TokenCounter(self.options.tokenizer)
            self.note(
                f"lengths: counted with the tokenizer {self.options.tokenizer}; special tokens are not in the log's texts"
            )
        self.from_text = True
        return self._counter.count(texts)

    def texts(self, prompts: list[Any], responses: list[Any]) -> dict[str, list[Any]]:
        """Return the columns ``prompt`` and ``response`` that an import was asked to keep; none by default."""
        return {name: texts for name, texts in (("prompt", prompts), ("response", responses)) if name in self.options.keep}

    def expect(self, paths: Iterable[Path]) -> None:
        """Announce the files that will be read, so that the progress bar knows their total size."""
        if not self.options.progress:
            return
        from tqdm.auto import tqdm

        total = sum(path.stat().st_size for path in paths if path.is_file())
        self._bar = tqdm(
            total=total, unit="B", unit_scale=True, desc=f"reading {self.path.name}", delay=1, leave=False,
            disable=None,  # where standard error is no terminal
        )  # fmt: skip

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.close()

    @contextmanager
    def open(self, path: Path) -> Iterator[IO[bytes]]:
        """Yield a stream of a file's bytes, unpacked; the progress bar follows it."""
        try:
            with open(path, "rb") as raw:
                counted = _Counted(raw, self._bar)
                buffered: IO[bytes] = io.BufferedReader(counted, PIECE_BYTES)
                with self.guard.unpacked(path, buffered) as stream:
                    yield stream
                counted.advance(counted.left)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(f"{path}: cannot be unpacked ({reason(error)}); an intact gzip file is needed") from error
        except OSError as error:
            raise TraceError(f"{path}: cannot be read ({error.strerror or error}); a readable file is needed") from error

    @contextmanager
    def seekable(self, path: Path) -> Iterator[IO[bytes]]:
        """Like ``open``, with a seekable stream, for formats that are read from their end."""
        with self.open(path) as stream, seekable(path, stream) as unpacked:
            yield unpacked

    def lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Yield number, from 1, and bytes of every line.

        Raises:
            TraceError: a line is longer than the limit.
        """
        with self.open(path) as stream:
            yield from self.guard.lines(path, stream)

    def csv(self, path: Path, text_columns: Iterable[str] | None) -> Iterator[pd.DataFrame]:
        """Yield the rows of a csv file block by block; the index counts them from 0. ``text_columns``: see ``csv_frames``."""
        with self.open(path) as stream:
            yield from csv_frames(self.guard, path, stream, text_columns)

    def document(self, path: Path) -> Any:
        """Return the content of a file that is one JSON document.

        Raises:
            TraceError: it is not JSON, or longer than the limits.
        """
        with self.open(path) as stream:
            raw = self.guard.document(path, stream)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path}: is not JSON; an intact file is needed") from error

    def records(self, path: Path) -> Iterator[Record]:
        """Yield the JSON objects of a file of JSON lines. A truncated last line is skipped and noted.

        Raises:
            TraceError: a line is not a JSON object.
        """
        note = f"{path.name}: the last line is incomplete and was left out"
        for line in json_lines(path, self.lines(path), lambda: self.note(note)):
            self.fields.update(line.values)
            yield Record(line.values, path, line.number, line.size_bytes)

    def parquet(self, path: Path, wanted: Callable[[str, bool], bool] = lambda name, nested: True) -> Iterator[pd.DataFrame]:
        """Yield the rows of a parquet file batch by batch; the index counts them from 0. ``wanted``: see ``parquet_frames``."""
        with self.seekable(path) as stream:
            for frame in parquet_frames(self.guard, path, stream, wanted):
                self.fields.update(map(str, frame.columns))
                yield frame


def batches(rows: Iterable[tuple[dict[str, Any], int]]) -> Iterator[list[dict[str, Any]]]:
    """Group rows into lists of bounded size, from pairs of a row and the length of its texts."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row, length in rows:
        batch.append(row)
        size += length
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def first_record(path: Path) -> dict[str, Any]:
    """Return the first JSON object of a file of JSON lines, to recognise its format; empty if there is none."""
    try:
        for line in _first_lines(path):
            if line.strip():
                values = json.loads(line)
                return values if isinstance(values, dict) else {}
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return {}  # not this format; the reader reports what is wrong with it
    return {}


def first_line(path: Path) -> bytes:
    """Return the first line of a file that is not blank, packed or not, to recognise its format; empty if it has none."""
    try:
        return next((line for line in _first_lines(path) if line.strip()), b"")
    except (OSError, EOFError, zlib.error):
        return b""  # as above


def csv_header(path: Path) -> list[str]:
    """Return the names in the first line of a csv file; empty if it is no such line, as whoever reads the file says."""
    try:
        return next(csv.reader([first_line(path).decode("utf-8-sig", "replace")]), [])
    except csv.Error:
        return []


def suffix_of(path: Path) -> str:
    """Return the ending of a file's name, lower case and without that of a packed file: ``.csv``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _first_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, packed or not, up to as many bytes as a line may have."""
    left = Limits().line_bytes
    with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else open(path, "rb") as stream:
        while left > 0 and (line := stream.readline(left)):
            left -= len(line)
            yield line


def parquet_columns(path: Path) -> set[str]:
    """Return the columns of a parquet file, to recognise its format; empty if it has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError):
        return set()  # as above


class _Counted(io.RawIOBase):
    """A raw file that advances a progress bar by the bytes read, in any order, and by no more than the file's size.

    Attributes:
        left: bytes by which the bar has not been advanced yet.
    """

    def __init__(self, raw: IO[bytes], bar: Any) -> None:
        self.raw, self.bar, self.left = raw, bar, os.fstat(raw.fileno()).st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.raw.seek(offset, whence)

    def tell(self) -> int:
        return self.raw.tell()

    def readinto(self, buffer: Any) -> int:
        count = self.raw.readinto(buffer)  # type: ignore[attr-defined]
        self.advance(int(count))
        return int(count)

    def advance(self, count: int) -> None:
        """Move the bar by so many bytes, or by those that are left."""
        moved = min(count, self.left)
        self.left -= moved
        if self.bar is not None and moved:
            self.bar.update(moved)
