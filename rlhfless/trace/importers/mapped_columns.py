"""What ``--map OURS=THEIRS`` reads: a column, several columns joined, a constant, the row's number, or that of its batch."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.record import is_number, text_id
from rlhfless.trace.schema.casts import listed, shown
from solver.model.errors import as_given

ROW = "row"
ROWS_OF_A_STEP = 128
"""Rows of a step that are offered for a larger table without steps: the simulation of a step takes time with its responses."""
GUESSES: dict[str, tuple[str, ...]] = {
    "step": ("global_step", "training_step", "train_step", "iteration", "iter", "rollout_id", "epoch", "visit"),
    "prompt_id": (
        "prompt_index", "prompt_idx", "prompt_uid", "prompt_hash", "prompt_name", "problem_id", "problem_idx", "problem_index",
        "question_id", "question_idx", "question_index", "query_id", "uid", "group_index", "group_idx", "group_id", "group",
        "task_id", "instance_id", "example_id", "prompt", "prompt_text", "question", "question_text", "problem", "problem_text",
        "query", "instruction", "user_prompt", "input", "input_text", "task", "index", "idx", "id", "sample_id", "request_id",
    ),
    "response_tokens": (
        "response_length", "response_len", "response_lengths", "num_response_tokens", "output_tokens", "output_toks",
        "num_output_tokens", "output_length", "output_len", "completion_tokens", "completion_length", "completion_len",
        "generated_tokens", "num_generated_tokens", "generation_tokens", "generation_length", "gen_tokens", "gen_len",
        "tokens_out", "decode_tokens", "num_decode_tokens",
    ),
    "prompt_tokens": (
        "prompt_length", "prompt_len", "num_prompt_tokens", "input_tokens", "input_toks", "num_input_tokens", "input_length",
        "input_len", "context_tokens", "prefill_tokens", "num_prefill_tokens", "tokens_in",
    ),
}  # fmt: skip
"""Names that other logs give to our columns, from the likeliest to the least; compared without case and underscores.

Numbers that often count rows (``index``, ``id``) come after texts of prompts, because a text tells responses to one prompt.
"""
OF_PROMPTS = ("prompt", "question", "problem", "query", "instruction")
"""Words in other names of columns that may identify a prompt, where they do not say how long it is or what it is worth."""
NOT_OF_PROMPTS = (
    "token", "len", "size", "num", "count", "chars", "time", "logprob", "score", "reward", "template", "version", "toks"
)  # fmt: skip
LONGEST_ID = 80
"""Characters of a prompt's text that stands for the prompt; a longer one is cut, and ends with its hash."""


@dataclass(frozen=True)
class MappedColumn:
    """Where the values of one of our columns come from: exactly one of the three.

    Attributes:
        columns: of the log; several are joined with ``/`` between their values. constant: of every row. rows: 1 is the number
            of the row, from 1; N above 1 is the number of its batch of N rows, from 0.
    """

    columns: tuple[str, ...] = ()
    constant: str | float | None = None
    rows: int = 0

    def values(self, frame: pd.DataFrame) -> pd.Series:
        """Return the (r,) values for the rows of a frame that has the columns; its index labels plus 1 are row numbers."""
        if self.rows:
            numbers = frame.index + 1 if self.rows == 1 else frame.index // self.rows
            return pd.Series(numbers, index=frame.index)
        if not self.columns:
            return pd.Series(self.constant, index=frame.index)
        if len(self.columns) == 1:
            return frame[self.columns[0]]
        return joined([frame[name] for name in self.columns])

    def note(self, ours: str) -> str:
        """Return what an import's summary says of it."""
        if self.rows:
            return f"{ours}: the number of the row" if self.rows == 1 else f"{ours}: a new one every {self.rows:,} rows"
        if not self.columns:
            return f"{ours}: {self.constant!r} in every row"
        if len(self.columns) == 1:
            return f"{ours}: taken from {self.columns[0]!r}"
        return f"{ours}: joined from {listed(self.columns)}"


def mapped_column(theirs: str | float, columns: Collection[str]) -> MappedColumn | None:
    """Return what the right side of a mapping means in a log with these columns; None if it means nothing there.

    A name of a column comes first. ``a+b`` joins columns, ``row`` is the number of the row, ``row/128`` that of its batch of
    128 rows, and a number or a text in quotes is a constant.

    Raises:
        TraceError: it is neither a text nor a number.

    Example:
        >>> mapped_column("uid", ["uid", "split"])
        MappedColumn(columns=('uid',), constant=None, rows=0)
        >>> mapped_column("split+uid", ["uid", "split"]).columns
        ('split', 'uid')
        >>> mapped_column("0", ["uid"]).constant
        0
    """
    if is_number(theirs):
        return MappedColumn(constant=theirs)
    if not isinstance(theirs, str):
        raise TraceError(f"a column is mapped to {as_given(theirs)}; the name of a column, or a constant is needed")
    if theirs in columns:
        return MappedColumn((theirs,))
    parts = tuple(part.strip() for part in theirs.split("+"))
    if len(parts) > 1 and all(part in columns for part in parts):
        return MappedColumn(parts)
    if theirs == ROW:
        return MappedColumn(rows=1)
    row, _, each = theirs.partition("/")
    if row == ROW and each.isdecimal() and int(each) > 1:
        return MappedColumn(rows=int(each))
    if len(theirs) > 1 and theirs[0] == theirs[-1] and theirs[0] in "'\"":
        return MappedColumn(constant=theirs[1:-1])
    for number in (int, float):
        try:
            return MappedColumn(constant=number(theirs))
        except ValueError:
            continue
    return None


def source_columns(theirs: Iterable[str | float]) -> set[str]:
    """Return every name on the right sides of a mapping that may be a column, parts of joined ones too."""
    texts = [text for text in theirs if isinstance(text, str)]
    return {name for text in texts for name in (text, *(part.strip() for part in text.split("+")))}


def refuse_absent(mapping: Mapping[str, str | float], columns: Collection[str], path: Path) -> None:
    """Refuse a mapping whose right side is neither a column of the log, nor columns joined, nor a constant.

    Raises:
        TraceError: one is not.
    """
    for ours, theirs in mapping.items():
        if mapped_column(theirs, columns) is None:
            raise TraceError(
                f"{path}: --map {shown(ours)}={shown(theirs)} names no column of the file; "
                f"one of {listed(columns)}, several joined with "
                f"'+', a number, a text in quotes, '{ROW}', or '{ROW}/{ROWS_OF_A_STEP}' for batches of rows is needed"
            )


def joined(columns: Iterable[pd.Series]) -> pd.Series:
    """Return (r,) texts of the columns' values with ``/`` between them; null where one is null.

    Different values never give equal texts, as a value's own ``/`` gets a backslash.
    """
    texts: pd.Series | None = None
    for column in columns:
        part = column.map(_escaped, na_action="ignore").astype(object)
        texts = part if texts is None else texts.str.cat(part, sep="/")
    assert texts is not None, "at least one column is joined"
    return texts


def _escaped(value: Any) -> str:
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.replace("\\", "\\\\").replace("/", "\\/") if "/" in text or "\\" in text else text


def guessed(missing: Iterable[str], columns: Iterable[str], rows: int = 1) -> dict[str, str]:
    """Return for some of our columns that a table lacks the one that is most likely meant, where there is one.

    In a log in which nothing may identify a prompt, every row is taken to be a prompt of its own. One without steps is one
    step, or batches of ``ROWS_OF_A_STEP`` where it has more rows.

    Example:
        >>> guessed(["step", "prompt_id", "response_tokens"], ["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        {'step': '0', 'prompt_id': 'row', 'response_tokens': 'GeneratedTokens'}
        >>> guessed(["prompt_id"], ["prompt_len", "user_question", "response_tokens"])
        {'prompt_id': 'user_question'}
        >>> guessed(["step"], ["TIMESTAMP"], rows=20_000)
        {'step': 'row/128'}
    """
    columns = list(columns)
    plain = {_plain(name): name for name in reversed(columns)}
    found = {"step": "0" if rows <= ROWS_OF_A_STEP else f"{ROW}/{ROWS_OF_A_STEP}", "prompt_id": ROW}
    for ours, names in GUESSES.items():
        theirs = next((plain[_plain(name)] for name in names if _plain(name) in plain), None)
        if theirs is None and ours == "prompt_id":
            theirs = next(filter(_may_be_a_prompt, columns), None)
        if theirs is not None:
            found[ours] = theirs
    return {ours: found[ours] for ours in missing if ours in found}


def _may_be_a_prompt(name: str) -> bool:
    plain = _plain(name)
    return any(word in plain for word in OF_PROMPTS) and not any(word in plain for word in NOT_OF_PROMPTS)


def prompt_names(values: pd.Series) -> pd.Series:
    """Return (r,) what identifies a prompt in tables and figures: the values, of long texts the beginning and the hash."""
    return values.map(_prompt_name)


def _prompt_name(value: Any) -> Any:
    """Return the name of one prompt: a short text or a number as it is; messages of a chat count as their text."""
    if isinstance(value, list | dict | np.ndarray):
        value = json.dumps(
            value, sort_keys=True, ensure_ascii=False, default=lambda part: getattr(part, "tolist", part.__str__)()
        )
    if not isinstance(value, str) or (len(value) <= LONGEST_ID and "\n" not in value):
        return value
    text = value
    return f"{' '.join(text.split())[: LONGEST_ID - 20]}... {text_id(text)}"


def _plain(name: str) -> str:
    return "".join(sign for sign in str(name).lower() if sign.isalnum())
