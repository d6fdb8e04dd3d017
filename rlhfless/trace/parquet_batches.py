"""Reads a parquet file in batches of rows of bounded size; equal texts of a batch share one Python object.

The file's metadata is checked before it is read. A few kilobytes can contain millions of equal rows, or one long text for all
of them, because parquet stores equal values once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from rlhfless.errors import reason
from rlhfless.trace.errors import TraceError
from rlhfless.trace.limits import Guard

BATCH_ROWS = 16_384
BATCH_BYTES = 16 * 2**20  # of a batch, so that long responses make small batches
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    at = 0
    try:
        schema = pq.read_schema(stream)
        texts = [field.name for field in schema if _is_text(field.type)]
        names = [
            field.name
            for field in schema
            if not field.name.startswith("__index_level_") and wanted(field.name, pa.types.is_nested(field.type))
        ]
        stream.seek(0)
        file = pq.ParquetFile(stream, read_dictionary=texts)
        rows, size = file.metadata.num_rows, decoded_bytes(file.metadata)
        guard.check_rows(path, rows)
        guard.add_unpacked(path, size)
        batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES * max(rows, 1) // max(size, 1)))
        for batch in file.iter_batches(batch_rows, columns=names):
            batch.validate(full=True)  # a text that is not UTF-8 would show only where it is read
            frame = _frame(batch)
            frame.index = pd.RangeIndex(at, at + len(frame))
            at += len(frame)
            guard.check_rows(path, at)
            yield frame
        if not at:
            yield schema.empty_table().select(names).to_pandas(ignore_metadata=True)
    except TraceError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read as parquet ({reason(error)}); an intact file is needed") from error


def decoded_bytes(metadata: Any) -> int:
    """Estimate the memory in bytes of a file's decoded columns; equal texts are counted once."""
    total = 0
    for group in range(metadata.num_row_groups):
        of_group = metadata.row_group(group)
        for at in range(metadata.num_columns):
            column = of_group.column(at)
            total += max(column.total_uncompressed_size, column.num_values * WIDTHS.get(column.physical_type, 8))
    return total


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _frame(batch: Any) -> pd.DataFrame:
    """Return the rows of a batch; equal texts are one object."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
            values = np.array([*column.dictionary.to_pylist(), None], dtype=object)
            columns.append(
                pd.Series(values[column.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)], dtype=object)
            )
        else:
            columns.append(column.to_pandas())
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(batch.num_rows))
    frame.columns = pd.Index(batch.schema.names, dtype=object)
    return frame
