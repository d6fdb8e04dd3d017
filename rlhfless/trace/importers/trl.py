"""TRL's GRPO completions: ``log_completions=True`` → ``completions/completions_{step}.parquet``.

Knows that TRL writes its buffer at every logging step and never clears it: the rows of the last generations come again under a
later step. So what a file begins with is dropped as far as it is what the file before ended with. Lengths are not logged. With
several reward functions the weights of their sum are not logged either, so the reward is unknown unless ``--map reward=COLUMN``
names one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rlhfless.trace.casts import listed
from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers import trl_scalars
from rlhfless.trace.importers.formats import Format, file_of, numbered
from rlhfless.trace.importers.reading import Reading, parquet_columns
from rlhfless.trace.importers.record import Record, finite, text_id

PATTERN = r"completions_(\d+)\.parquet(?:\.gz)?"
MARKS = {"step", "prompt", "completion"}
KNOWN = frozenset({*MARKS, "advantage"})
LONGEST_OVERLAP = 1_000_000


def files(path: Path) -> list[tuple[int, Path]]:
    """Step and path of the completions of a run's folder, of its folder ``completions``, or of one file."""
    return numbered(path / "completions", PATTERN) or numbered(path, PATTERN) or file_of(path, PATTERN)


def detect(path: Path) -> bool:
    """A folder with such files, or such a file; another parquet file with step, prompt and completion too."""
    return bool(files(path)) or (path.is_file() and path.name.endswith(".parquet") and parquet_columns(path) >= MARKS)


def read(reading: Reading) -> Iterator[pd.DataFrame]:
    """Batches of responses, without the rows that the file before had; the run's scalars where its state lies beside them."""
    for ours, theirs in reading.options.mapping.items():
        if ours != "reward":
            raise TraceError(
                f"--map {ours}={theirs}: of TRL's completions only the reward can be named, with --map reward=COLUMN"
            )
    found = files(reading.path) or [(0, reading.path)]
    states = trl_scalars.files(reading.path)
    reading.expect([*(path for _, path in found), *states])
    before: list[str] = []
    for _, path in found:
        here: list[str] = []
        parts = []
        for frame in reading.parquet(path):
            reading.fields.difference_update(_reward_columns(frame), reading.options.mapping.values())
            here += _row_ids(frame, path)
            parts.append(_batch(frame, path, reading))
        rows = pd.concat(parts) if parts else pd.DataFrame()
        again = overlap(before, here)
        reading.duplicates += again
        before = here
        if len(rows) > again:
            yield rows.iloc[again:]
    for state in states:
        trl_scalars.read_state(reading, state)


def overlap(before: list[str], after: list[str]) -> int:
    """How many of the first of ``after`` are, in order, the last of ``before``; the largest such number."""
    for length in range(min(len(before), len(after), LONGEST_OVERLAP), 0, -1):
        if before[-length] == after[0] and before[-length:] == after[:length]:
            return length
    return 0


def _row_ids(frame: pd.DataFrame, path: Path) -> list[str]:
    if missing := MARKS - set(frame.columns):
        raise TraceError(f"{path}: has no column '{min(missing)}', only {listed(frame.columns)}; TRL's completions have it")
    columns = [frame[name] for name in frame.columns if name != "step"]
    return [text_id(repr(row)) for row in zip(*columns, strict=True)]


def _batch(frame: pd.DataFrame, path: Path, reading: Reading) -> pd.DataFrame:
    records = [
        Record(dict(zip(frame.columns, row, strict=True)), path, at + 1)
        for at, row in zip(frame.index, _cells(frame), strict=True)
    ]
    prompts = [record.text("prompt") for record in records]
    names = [text_id(prompt) for prompt in prompts]
    return pd.DataFrame(
        {
            "step": [record.whole("step") for record in records],
            "prompt_id": names,
            "prompt_tokens": reading.count_tokens(prompts),
            "response_tokens": reading.count_tokens([record.text("completion") for record in records]),
            "reward": _rewards(frame, path, reading),
        },
        index=frame.index,
    )


def _cells(frame: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    return zip(*(frame[name].tolist() for name in frame.columns), strict=True)


def _reward_columns(frame: pd.DataFrame) -> list[str]:
    """Columns of numbers between TRL's own, one per reward function, which has any name."""
    return [name for name in frame.columns if name not in KNOWN and pd.api.types.is_float_dtype(frame[name])]


def _rewards(frame: pd.DataFrame, path: Path, reading: Reading) -> list[float | None]:
    column = reading.options.mapping.get("reward")
    if column is None:
        between = _reward_columns(frame)
        if len(between) != 1:
            shown = listed(between) or "none"
            reading.note(
                f"reward: unknown, because the log has not one column of rewards but {shown}; --map reward=COLUMN names one"
            )
            return [None] * len(frame)
        column = between[0]
        reading.note(f"reward: taken from {column!r}")
    if column not in frame.columns or not pd.api.types.is_numeric_dtype(frame[column].dtype):
        raise TraceError(f"{path}: --map reward={column} names no column of numbers; one of {listed(frame.columns)} is needed")
    return [finite(value) for value in frame[column].tolist()]


FORMAT = Format(
    "trl", "TRL's GRPO completions (completions_{step}.parquet)", detect, read, known=KNOWN, expected=KNOWN
)  # fmt: skip
