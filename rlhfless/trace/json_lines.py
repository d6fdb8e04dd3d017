"""Reads a file of JSON lines: one object at a time, or as frames of bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rlhfless.errors import reason
from rlhfless.trace.errors import TraceError
from rlhfless.trace.parquet_batches import BATCH_BYTES, BATCH_ROWS

JSON_HINT = "contains a JSON array; one JSON object per line is needed (`jq -c '.[]'` converts an array)"
ROW_BYTES = 512  # of a row in memory beside its texts


class JsonLine(NamedTuple):
    """One object of a file; lines count from 1."""

    number: int
    values: dict[str, Any]
    size_bytes: int


def json_lines(
    path: Path, lines: Iterable[tuple[int, bytes]], incomplete: Callable[[], object] | None = None
) -> Iterator[JsonLine]:
    """Yield the JSON objects of a file, without its empty lines. Half characters become question marks.

    Args:
        lines: number, from 1, and bytes of every line.
        incomplete: called if the last line is truncated, which is then skipped. None refuses it as any other wrong line.

    Raises:
        TraceError: a line is not a JSON object.
    """
    whole, decode = 0, json.JSONDecoder().decode
    for number, line in lines:
        if not line.strip():
            continue
        if number == 1 and line.lstrip(b"\xef\xbb\xbf \t")[:1] == b"[":
            raise TraceError(f"{path}: {JSON_HINT}")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            values = decode(text)
            if "\\ud" in text or "\\uD" in text:  # half a character, perhaps, which no file and no tokenizer can hold
                values = decode(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if incomplete is not None and whole and not line.endswith(b"\n"):
                incomplete()
                return
            raise TraceError(
                f"{path}: line {number} is not JSON: {reason(error)}; one JSON object per line is needed"
            ) from error
        if not isinstance(values, dict):
            raise TraceError(f"{path}: line {number} is not a JSON object; one JSON object per line is needed")
        whole += 1
        yield JsonLine(number, values, len(line))


def json_frames(objects: Iterable[JsonLine]) -> Iterator[pd.DataFrame]:
    """Yield objects as frames of bounded size; the index counts the lines from 0."""
    rows: dict[int, dict[str, Any]] = {}
    size = 0
    for number, values, size_bytes in objects:
        rows[number - 1] = values
        size += ROW_BYTES + size_bytes
        if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _frame(rows)
            rows, size = {}, 0
    if rows:
        yield _frame(rows)


def _frame(rows: dict[int, dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), dtype="int64"))
