"""Reads table files of any format, and replaces files atomically.

Exceptions of pandas, pyarrow or the operating system become a ``TraceError`` of one sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rlhfless.errors import reason
from rlhfless.trace.csv_blocks import csv_frames
from rlhfless.trace.errors import TraceError
from rlhfless.trace.json_lines import json_frames, json_lines
from rlhfless.trace.limits import PIECE_BYTES, Guard
from rlhfless.trace.parquet_batches import parquet_frames

FORMATS = ".parquet, .csv or .jsonl, each also with .gz"


def read_frame(path: str | Path, text_columns: Iterable[str] = (), guard: Guard | None = None) -> pd.DataFrame:
    """Return the rows of a parquet, csv or jsonl file (also ``.gz``), one frame row per file row, numbered from 0.

    Args:
        path: the file; its name determines the format.
        text_columns: csv columns to read as text, so that ``007`` stays ``007``.
        guard: counts what is read; None applies the default limits to this file alone.

    Raises:
        TraceError: there is no such file, its content does not match its name, or it is larger than the limits.
    """
    path, guard = Path(path), guard or Guard()
    packed = path.name.lower().endswith(".gz")
    suffix = Path(path.stem if packed else path.name).suffix.lower()
    readers: dict[str, Callable[[IO[bytes]], Iterator[pd.DataFrame]]] = {
        ".parquet": lambda stream: parquet_frames(guard, path, stream),
        ".csv": lambda stream: csv_frames(guard, path, stream, text_columns),
        ".jsonl": lambda stream: json_frames(json_lines(path, guard.lines(path, stream))),
    }
    if not path.exists():
        raise TraceError(f"{path}: there is no such file; an existing file ({FORMATS}) is needed")
    if path.is_dir() or suffix not in readers:
        raise TraceError(f"{path}: the name does not show the format; a name that ends in {FORMATS} is needed")
    frames = []
    try:
        with open(path, "rb") as raw, guard.unpacked(path, raw) as unpacked, seekable(path, unpacked) as stream:
            for frame in readers[suffix](stream):
                guard.add_rows(path, len(frame))
                frames.append(frame)
    except TraceError:
        raise
    except Exception as error:  # whatever the readers raise is about the file
        raise TraceError(f"{path}: cannot be read as {suffix[1:]} ({reason(error)}); an intact file is needed") from error
    if not frames:
        return pd.DataFrame()
    frame = frames[0] if len(frames) == 1 else pd.concat([part for part in frames if len(part)] or frames[:1])
    frame.columns = [str(column) for column in frame.columns]
    return frame


@contextmanager
def seekable(path: Path, stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a seekable stream for formats that are read from their end: a compressed file is unpacked beforehand.

    Only parquet files and slime's dumps need it; other formats get the stream unchanged.
    """
    if not path.name.lower().endswith((".parquet.gz", ".pt.gz")):
        yield stream
        return
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(stream, unpacked, PIECE_BYTES)
        unpacked.seek(0)
        yield unpacked


def write_parquet(path: Path, table: pa.Table) -> None:
    """Replace the file ``path`` by the table, atomically."""
    replace_file(path, lambda stream: pq.write_table(table, stream))


def write_text(path: Path, text: str) -> None:
    """Replace the file ``path`` by the text, atomically."""
    replace_file(path, lambda stream: stream.write(text.encode("utf-8")))


def absolute(name: str | None) -> str | None:
    """Return the absolute path if ``name`` is an existing path, so that a stored path works from any folder; else return the
    name.
    """
    return str(Path(name).resolve()) if name is not None and Path(name).exists() else name


def replace_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file so that every reader, also one after a crash, finds the complete old or the complete new content.

    The content is written to a temporary file in the same folder, synced to the disk, and renamed to ``path``.

    Raises:
        TraceError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TraceError(f"{path}: cannot be written ({error.strerror or error}); a writable folder is needed") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk.

    Raises:
        OSError: there is no such file, or the disk reports a failure.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a trace folder."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def read_json(path: Path, guard: Guard | None = None) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        TraceError: it is not a JSON object, or longer than the limit of a line.
    """
    try:
        with open(path, "rb") as stream:
            value = json.loads((guard or Guard()).document(path, stream).decode("utf-8"))
    except TraceError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: cannot be read as JSON ({error}); an intact file is needed") from error
    if not isinstance(value, dict):
        raise TraceError(f"{path}: contains a JSON {type(value).__name__}; a JSON object is needed")
    return value
