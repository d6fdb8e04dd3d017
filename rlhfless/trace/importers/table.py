"""Any table with one row per response: csv, jsonl or parquet, with its own column names.

Knows names, not frameworks: the user says which column of the file is which of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless.trace import storage
from rlhfless.trace.casts import row_number
from rlhfless.trace.checks import validate
from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.summary import ImportSummary, summarize
from rlhfless.trace.schema import ROLLOUTS, text_columns

OURS = tuple(column.name for column in ROLLOUTS)


def import_table(
    path: str | Path, mapping: Mapping[str, str] | None = None, response_limit: int | None = None
) -> tuple[pd.DataFrame, ImportSummary]:
    """The rollouts of a table file.

    Args:
        path: a csv, jsonl or parquet file (``.gz`` too) with one row per response.
        mapping: our column → the file's column. It replaces a column of our name that the file also has; that one is
            kept as ``source_<name>``. Columns that are not mapped keep their names.
        response_limit: the longest response that the run allowed. Where the log does not say why a response ended, it
            ended by ``length`` at this many tokens and by ``stop`` below; without it the finish reason stays unknown.

    Returns:
        The validated rollouts, and what was found and what not. Rows that repeat another row in every column are dropped.

    Raises:
        TraceError: one sentence: file, row, column, value, and what would be right.
    """
    path, mapping = Path(path), dict(mapping or {})
    for ours in mapping:
        if ours not in OURS:
            raise TraceError(f"--map {ours}={mapping[ours]}: {ours!r} is no rollout column; one of {', '.join(OURS)} is needed")
    frame = storage.read_frame(path, [mapping.get(column, column) for column in text_columns("rollouts")])
    frame, notes = _renamed(frame, mapping, path)
    repeated = frame.astype(str).duplicated()
    kept = frame[~repeated]
    rollouts = validate("rollouts", kept, path)
    if "epoch" not in frame.columns:
        notes.append("epoch: derived; it counts the earlier steps of the run that had the same prompt")
    if response_limit is not None:
        rollouts = _with_finish_reason(rollouts, response_limit, kept.index, path)
        notes.append(f"finish_reason: length at {response_limit} tokens and stop below, where the log does not say it")
    return rollouts, summarize(rollouts, int(repeated.sum()), tuple(notes))


def _renamed(frame: pd.DataFrame, mapping: dict[str, str], path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The frame under our names, and a note for every column of ours that had to step aside."""
    for ours, theirs in mapping.items():
        if theirs not in frame.columns:
            present = ", ".join(frame.columns)
            raise TraceError(f"{path}: --map {ours}={theirs} names no column of the file; one of {present} is needed")
    columns, notes = {}, []
    for name in frame.columns:
        if name in mapping:
            if mapping[name] != name and f"source_{name}" in frame.columns:
                raise TraceError(f"{path}: has both '{name}' and 'source_{name}', so --map cannot move '{name}'; rename one")
            if mapping[name] != name:
                columns[f"source_{name}"] = frame[name]
                notes.append(f"{name}: taken from {mapping[name]!r}; the file's own column is kept as 'source_{name}'")
        elif name in OURS or name not in mapping.values():
            columns[name] = frame[name]
    columns |= {ours: frame[theirs] for ours, theirs in mapping.items()}
    return pd.DataFrame(columns, index=frame.index), notes


def _with_finish_reason(rollouts: pd.DataFrame, response_limit: int, file_rows: pd.Index, path: Path) -> pd.DataFrame:
    tokens = rollouts["response_tokens"].to_numpy()
    if tokens.max() > response_limit:
        at = int(np.argmax(tokens > response_limit))
        raise TraceError(
            f"{path}: row {row_number(file_rows, at)}, column 'response_tokens' is {tokens[at]}, above the response "
            f"limit of {response_limit}; a limit of at least {tokens.max()} is needed"
        )
    ended = pd.Series(np.where(tokens == response_limit, "length", "stop"), index=rollouts.index, dtype=object)
    reasons = rollouts["finish_reason"]
    return rollouts.assign(finish_reason=reasons.where(reasons.notna(), ended))
