"""Reads a parquet file in batches of rows of bounded size; equal texts of a batch share one Python object.

The file's metadata is checked before it is read. A few kilobytes can contain millions of equal rows, or one long text for all
of them, because parquet stores equal values once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rlhfless.errors import reason
from rlhfless.trace.errors import TraceError
from rlhfless.trace.limits import Guard

BATCH_ROWS = 16_384
BATCH_BYTES = 16 * 2**20  # of a batch, so that long responses make small batches
BUFFER_BYTES = 2**16  # of a column that is read; without a buffer and with pre_buffer, all of a row group is in memory
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}  # bytes of a value when it is read; 8 for others


def parquet_frames(
    guard: Guard, path: Path, stream: IO[bytes], wanted: Callable[[str, bool], bool] = lambda name, nested: True
) -> Iterator[pd.DataFrame]:
    """Yield the rows of a parquet file batch by batch; the index counts them from 0. A file without rows gives one empty frame.

    Args:
        stream: the file's bytes; must be seekable.
        wanted: returns whether a column is read, given its name and whether it contains lists or structs.

    Raises:
        TraceError: the file is damaged, or larger than the limits.
    """
    at = 0
    metadata = checked_metadata(guard, path, stream)
    with intact(path):
        schema = metadata.schema.to_arrow_schema()
        names = [
            field.name
            for field in schema
            if not field.name.startswith("__index_level_") and wanted(field.name, pa.types.is_nested(field.type))
        ]
        stream.seek(0)
        for batch in parquet_batches(path, stream, metadata, names):
            frame = to_frame(pa.Table.from_batches([batch]))
            frame.index = pd.RangeIndex(at, at + len(frame))
            at += len(frame)
            guard.check_rows(path, at)
            yield frame
        if not at:
            yield schema.empty_table().select(names).to_pandas(ignore_metadata=True)


def checked_metadata(guard: Guard, path: Path, source: Path | IO[bytes]) -> pq.FileMetaData:
    """Return what a file says of itself, after it was checked against the limits. Rows are checked, and not counted.

    Args:
        source: the path, or the file's bytes where they were unpacked.

    Raises:
        TraceError: the file is damaged, or larger than the limits.
    """
    with intact(path):
        metadata = pq.read_metadata(source)
    guard.check_rows(path, metadata.num_rows)
    guard.add_unpacked(path, decoded_bytes(metadata))
    return metadata


def parquet_batches(
    path: Path, source: Path | IO[bytes], metadata: pq.FileMetaData, names: Sequence[str] | None = None, plain: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield batches of bounded size, in which a column of texts is a dictionary, unless they are to be plain.

    Args:
        source: as in ``checked_metadata``, which returned ``metadata``. names: columns to read; None reads all.

    Raises:
        TraceError: the file is damaged.
    """
    with intact(path):
        texts = [] if plain else [field.name for field in metadata.schema.to_arrow_schema() if is_text(field.type)]
        rows, size = metadata.num_rows, decoded_bytes(metadata)
        batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES * max(rows, 1) // max(size, 1)))
        with pq.ParquetFile(
            source, metadata=metadata, read_dictionary=texts, buffer_size=BUFFER_BYTES, pre_buffer=False
        ) as file:
            threads = rows > batch_rows  # for few rows they take longer than reading does
            for batch in file.iter_batches(batch_rows, columns=names, use_threads=threads):
                batch.validate(full=True)  # a text that is not UTF-8 would show only where it is read
                yield batch


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises about a parquet file into one sentence.

    Raises:
        TraceError: the file is missing or damaged.
    """
    try:
        yield
    except TraceError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read as parquet ({reason(error)}); an intact file is needed") from error


def decoded_bytes(metadata: pq.FileMetaData) -> int:
    """Estimate the memory in bytes of a file's decoded columns; equal texts are counted once."""
    total = 0
    for group in range(metadata.num_row_groups):
        of_group = metadata.row_group(group)
        for at in range(metadata.num_columns):
            column = of_group.column(at)
            total += max(column.total_uncompressed_size, column.num_values * WIDTHS.get(column.physical_type, 8))
    return total


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds texts or bytes."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def to_frame(rows: pa.Table) -> pd.DataFrame:
    """Return Arrow rows as a frame; texts are objects, equal ones of a batch the same object, and missing ones None."""
    columns = [_column(column) for column in rows.columns]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(rows.num_rows))
    frame.columns = pd.Index(rows.schema.names, dtype=object)
    return frame


def _column(column: pa.ChunkedArray) -> pd.Series:
    if not (pa.types.is_dictionary(column.type) and is_text(column.type.value_type)):
        return column.to_pandas()
    parts = [np.empty(0, dtype=object)]
    for chunk in column.chunks:
        values = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        parts.append(values[chunk.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)])
    return pd.Series(np.concatenate(parts), dtype=object)
