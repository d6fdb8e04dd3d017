"""Imports NeMo-RL's training data: ``train_data_step{N}.jsonl``, one response with its tokens per line.

``token_loss_mask`` is 1 on tokens that the model generated; the tokens before the first of them are the prompt. Lines are long,
so they are read one by one and only their counts are kept. Every start of a run, also from a checkpoint, logs into its own
folder ``exp_{number}``. Seconds of phases are beside these files only if the run had ``logger.tensorboard_enabled`` or
``logger.wandb_enabled``; then they are read, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.importers import tensorboard, wandb_run
from rlhfless.trace.importers.formats import Format, file_of, numbered
from rlhfless.trace.importers.import_session import ImportSession, batches
from rlhfless.trace.importers.record import Record, text_id
from rlhfless.trace.schema.casts import listed

PATTERN = r"train_data_step(\d+)\.jsonl(?:\.gz)?"


def starts(path: Path) -> list[list[tuple[int, Path]]]:
    """Return step and path of the files, grouped by start of the run: of the folder itself, of each ``exp_*``, or the one
    file.
    """
    if files_here := numbered(path, PATTERN) or file_of(path, PATTERN):
        return [files_here]
    inside = (numbered(folder, PATTERN) for _, folder in numbered(path, r"exp_(\d+)"))
    return [files for files in inside if files]


def detect(path: Path) -> bool:
    """Return whether the path is such a file, a folder with some, or a folder of ``exp_*`` folders with some."""
    return bool(starts(path))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield batches of responses; the step is in the file's name. Collect the scalars that are beside them."""
    step_files = _of_last_attempts(starts(reading.path), reading)
    folders = [] if reading.path.is_file() else list(dict.fromkeys(path.parent for _, path in step_files))
    event_files = [(folder, tensorboard.files(folder)) for folder in folders]
    reading.expect([*(path for _, path in step_files), *(path for _, files in event_files for path in files)])
    for folder, files in event_files:
        if files:
            tensorboard.read_events(reading, files)
        elif len(runs := wandb_run.files(folder / "wandb")) == 1:
            wandb_run.read_run(reading, runs[0])
    for step, path in step_files:
        for batch in batches((_row(record, step), 0) for record in reading.records(path)):
            yield pd.DataFrame(batch)


def _of_last_attempts(of_starts: list[list[tuple[int, Path]]], reading: ImportSession) -> list[tuple[int, Path]]:
    """Return the steps of all starts, without steps that a later start repeated."""
    step_files: list[tuple[int, Path]] = []
    for files in of_starts:
        first, folder = files[0][0], files[0][1].parent.name
        kept = [(step, path) for step, path in step_files if step < first]
        if len(kept) < len(step_files):
            reading.note(
                f"restarts: {folder} begins at step {first:,}; {len(step_files) - len(kept):,} steps of earlier experiments "
                "from there on are left out"
            )
        step_files = kept + files
    if len(of_starts) > 1:
        names = listed(files[0][1].parent.name for files in of_starts)
        reading.note(f"experiments: {names} are read as one restarted run; to read one experiment alone, name its folder")
    return step_files


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
    """Return an identifier of the prompt: of its tokens, or if the log lacks them, of the first message."""
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
    known_fields=frozenset(
        {"content", "rewards", "filtered_rewards", "input_lengths", "token_ids", "token_loss_mask", "sample_loss_mask"}
        | {"advantages", "generation_logprobs", "prev_logprobs", "agent_ref", "idx"}
    ),
    expected=frozenset({"rewards", "input_lengths", "token_ids", "token_loss_mask", "idx"}),
)
