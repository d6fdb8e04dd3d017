"""verl's rollout dumps: ``trainer.rollout_data_dir`` → ``{global_step}.jsonl``, one response a line.

Knows both generations: V1 (verl 0.9 and later) names every response by a ``uid`` of prompt, rollout and output; V0 has no name,
so the same ``input`` is the same prompt. Reward extras are columns of their own in V0 and are left out. Lengths are not logged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.importers.formats import Format, file_of, numbered
from rlhfless.trace.importers.reading import Reading, batches, first_record
from rlhfless.trace.importers.record import Record, text_id

PATTERN = r"(\d+)\.jsonl(?:\.gz)?"
MARKS = {"input", "output", "score"}


def files(path: Path) -> list[tuple[int, Path]]:
    """Step and path of the dumps of a folder, or of one dump."""
    return numbered(path, PATTERN) or file_of(path, PATTERN)


def detect(path: Path) -> bool:
    """A folder of ``{step}.jsonl``, or such a file, whose first record has input, output and score."""
    found = files(path)
    return bool(found) and first_record(found[0][1]).keys() >= MARKS


def read(reading: Reading) -> Iterator[pd.DataFrame]:
    """Batches of responses; the file's name is the step where a record has none."""
    found = files(reading.path)
    reading.expect(path for _, path in found)
    for step, path in found:
        for batch in batches(_rows(reading, step, path)):
            frame = pd.DataFrame(batch)
            frame["prompt_tokens"] = reading.count_tokens(frame.pop("input").tolist())
            frame["response_tokens"] = reading.count_tokens(frame.pop("output").tolist())
            yield frame


def _rows(reading: Reading, step: int, path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    for record in reading.records(path):
        prompt, response = record.text("input"), record.text("output")
        named = record.maybe_whole("step")
        row = {
            "step": step if named is None else named,
            **_names(record, prompt),
            "reward": record.number("score"),
            "input": prompt,
            "output": response,
        }
        yield row, len(prompt) + len(response)


def _names(record: Record, prompt: str) -> dict[str, Any]:
    text = text_id(prompt)
    if record.values.get("uid") is None:
        request = record.values.get("request_id")
        return {"prompt_id": text, "prompt_text_id": text, "response_id": request if isinstance(request, str) else None}
    uid = record.text("uid")
    parts = uid.rsplit("_", 2)
    if len(parts) != 3:
        record.refuse("uid", uid, "a name of the form PROMPT_ROLLOUT_OUTPUT")
    return {"prompt_id": parts[0], "prompt_text_id": text, "response_id": uid}


FORMAT = Format(
    "verl",
    "verl's rollout dumps ({step}.jsonl of trainer.rollout_data_dir)",
    detect,
    read,
    known=frozenset({"input", "output", "gts", "score", "step", "uid", "request_id"}),
    expected=frozenset({"input", "output", "gts", "score", "step", "uid"}),
)
