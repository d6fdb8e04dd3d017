"""Imports OpenRLHF's console output: lines ``Global step {n}: {dict}``, one per step, with scalars and no responses.

The dict is Python's repr, with nan, inf, and numpy's and torch's numbers. Only ``ast.literal_eval`` parses it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import PEEK_BYTES, ImportOptions, ImportSession
from rlhfless.trace.importers.record import Record
from rlhfless.trace.importers.scalars import numbers, standard

MARK = re.compile(r"Global step (\d{1,15})(?: \[[^\]]{0,40}\])?: (\{.*)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NUMBER_OF = re.compile(r"(?:np\.\w+|tensor)\(([^(),]*)(?:, [\w.=']*)*\)")
NOT_FINITE = re.compile(r"(?<=[:\[(,] )-?(?:nan|inf)(?=\s*[,}\])])")
LONGEST_DICT = 100_000  # characters that are parsed
SOURCES = {
    "step_s": ("timing/step_total",),
    "generate_s": ("timing/generation",),
    "prepare_s": ("timing/make_experience",),
    "learn_s": ("timing/ppo_train",),
    "sync_s": ("timing/broadcast",),
    "responses": ("rollout/num_samples",),
    "response_tokens_mean": ("rollout/response_length_mean",),
    "truncation_rate": ("rollout/truncated_rate",),
}


def detect(path: Path) -> bool:
    """Return whether the first 16 MiB of a text have such a line."""
    if not path.is_file() or path.suffix in (".parquet", ".pt", ".jsonl", ".json", ".csv"):
        return False
    try:
        with ImportSession(path, ImportOptions()).open(path) as stream:
            return MARK.search(COLOUR.sub("", stream.read(PEEK_BYTES).decode("utf-8", "replace"))) is not None
    except TraceError:
        return False  # whoever reads it says what is wrong with it


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars; yields no responses. Lines that are truncated or mixed with others are skipped and
    counted.
    """
    reading.expect([reading.path])
    broken, first_broken = 0, 0
    for number, line in reading.lines(reading.path):
        match = MARK.search(COLOUR.sub("", line.decode("utf-8", "replace")))
        if match is None:
            continue
        values = parse_dict(match[2])
        if values is None:
            broken, first_broken = broken + 1, first_broken or number
            continue
        reading.fields.update(map(str, values))
        scalars = numbers(Record({str(name): value for name, value in values.items()}, reading.path, number), SOURCES)
        reading.guard.check_rows(reading.path, len(reading.scalars) + 1)
        reading.scalars.append({**scalars, **standard(scalars, SOURCES), "step": int(match[1])})
    if broken:
        reading.note(
            f"{broken:,} lines of steps are incomplete or mixed with others and were left out, first line {first_broken}"
        )
    if not reading.scalars:
        raise TraceError(f"{reading.path}: has no complete line 'Global step N: {{...}}'; OpenRLHF's console output is needed")
    yield from ()


def parse_dict(text: str) -> dict[Any, Any] | None:
    """Return the dict at the beginning of a text, up to its last brace; None if there is none."""
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


FORMAT = Format(
    "openrlhf", "OpenRLHF's console output", detect, read,
    expected=frozenset(name for names in SOURCES.values() for name in names),
)  # fmt: skip
