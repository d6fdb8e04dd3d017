"""The statistics that vLLM's and SGLang's engines print about every ten seconds, in any file that has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from rlhfless.trace import storage
from rlhfless.trace.limits import Guard, Limits

FILE = "engine.parquet"

ENGINE = {
    "engine": "name of the engine in the log, such as 000; of several replicas each has its own",
    "time_s": "time of day of the line, in seconds; unknown where the line has none",
    "running": "requests in the batch when the line was written",
    "waiting": "requests in the queue when the line was written",
    "cache_share": "share of the KV cache in use, 0 to 1",
    "prompt_tokens_per_s": "prompt tokens per second since the line before",
    "generated_tokens_per_s": "generated tokens per second since the line before",
    "prefix_hit_share": "share of prompt tokens found in the prefix cache",
    "preempted": "requests preempted since the line before",
    "drafted_tokens_per_s": "drafted tokens per second",
    "accepted_tokens_per_s": "accepted drafted tokens per second",
    "tokens_per_pass": "mean tokens of a verification, the engine's own one included",
    "line": "number of the line in the file",
}
"""Columns of the table of engine lines; a line that lacks one has NaN there."""


def engine_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per line of statistics, in the order of the file; columns: ``ENGINE``."""
    frame = pd.DataFrame(list(rows), columns=list(ENGINE))
    numbers = [name for name in ENGINE if name != "engine"]
    return frame.astype(dict.fromkeys(numbers, float))


def write_engine(folder: Path, frame: pd.DataFrame) -> Path:
    """Write the table into a folder, atomically.

    Raises:
        TraceError: the folder cannot be written.
    """
    types = {name: pa.string() if name == "engine" else pa.float64() for name in ENGINE}
    fields = [pa.field(name, kind, metadata={"doc": ENGINE[name]}) for name, kind in types.items()]
    path = folder / FILE
    storage.write_parquet(path, pa.Table.from_pandas(frame, schema=pa.schema(fields), preserve_index=False))
    return path


def read_engine(folder: str | Path, limits: Limits | None = None) -> pd.DataFrame:
    """Return the engine's lines of a folder that an import wrote; without rows if the log had none.

    Raises:
        TraceError: the file is damaged, or larger than the limits.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return engine_frame(())
    frame = storage.read_frame(path, ("engine",), guard=Guard(limits))
    return engine_frame(frame.reindex(columns=list(ENGINE)).to_dict("records"))
