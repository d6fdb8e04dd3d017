"""NeMo-RL's training data: ``train_data_step{N}.jsonl``, one response a line, with its tokens.

Knows that ``token_loss_mask`` is 1 on the tokens that the model generated; what comes before the first of them is the
prompt. Lines are big, so they are read one by one and only their counts are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.importers.formats import Format, file_of, numbered
from rlhfless.trace.importers.reading import Reading, batches
from rlhfless.trace.importers.record import Record, text_id

PATTERN = r"train_data_step(\d+)\.jsonl(?:\.gz)?"


def files(path: Path) -> list[tuple[int, Path]]:
    """Step and path of the files of a folder, of its one experiment ``exp_*``, or of one file."""
    experiments = numbered(path, r"exp_(\d+)")
    inside = numbered(experiments[-1][1], PATTERN) if experiments else []
    return numbered(path, PATTERN) or inside or file_of(path, PATTERN)


def detect(path: Path) -> bool:
    """A folder with such files, or such a file."""
    return bool(files(path))


def read(reading: Reading) -> Iterator[pd.DataFrame]:
    """Batches of responses; the file's name is the step."""
    found = files(reading.path)
    reading.expect(path for _, path in found)
    for step, path in found:
        for batch in batches((_row(record, step), 0) for record in reading.records(path)):
            yield pd.DataFrame(batch)


def _row(record: Record, step: int) -> dict[str, Any]:
    mask = record.items("token_loss_mask")
    if not all(isinstance(x, int | float) and x in (0, 1) for x in mask):
        record.refuse("token_loss_mask", mask, "a list of 0 and 1")
    whole, response = record.whole("input_lengths"), int(sum(mask))
    prompt = mask.index(1) if response else whole
    if prompt + response > max(whole, len(mask)):
        record.refuse("input_lengths", whole, f"the tokens of prompt and response, at least {prompt + response},")
    return {
        "step": step,
        "prompt_id": _prompt_id(record, prompt),
        "prompt_tokens": prompt,
        "response_tokens": response,
        "reward": record.number("rewards"),
    }


def _prompt_id(record: Record, prompt_tokens: int) -> str:
    """By the prompt's tokens, or where the log leaves them out by the first message."""
    if isinstance(tokens := record.values.get("token_ids"), list):
        return text_id(repr(tokens[:prompt_tokens]))
    content = record.values.get("content")
    if isinstance(content, list) and content and isinstance(content[0], str):
        return text_id(content[0])
    return record.refuse("token_ids", tokens, "a list of the prompt's and the response's tokens, which tells prompts apart,")


FORMAT = Format(
    "nemo-rl",
    "NeMo-RL's training data (train_data_step{N}.jsonl)",
    detect,
    read,
    known=frozenset(
        {"content", "rewards", "filtered_rewards", "input_lengths", "token_ids", "token_loss_mask", "sample_loss_mask"}
        | {"advantages", "generation_logprobs", "prev_logprobs", "agent_ref", "idx"}
    ),
    expected=frozenset({"rewards", "input_lengths", "token_ids", "token_loss_mask", "idx"}),
)
