"""Imports verl's rollout dumps: ``trainer.rollout_data_dir`` → ``{global_step}.jsonl``, one response per line.

It reads both generations. V1 (verl 0.9 and later) gives every response a ``uid`` of prompt, rollout and output. V0 has none, so
equal ``input`` means equal prompt; its reward extras are separate columns, which are left out. Neither logs lengths.

verl changes a batch in two ways before it dumps it (checked in verl 0.9.1). V0 reorders the rows by length, unless
``trainer.balance_batch`` is off. V1 sorts by ``uid``, and gives every prompt a random UUID (``uuid4``). Both lose the order of
dispatch; uids that are no UUIDs come from the data and keep it. V1 adds padding rows until ranks and mini-batches divide the
batch; their uid begins with ``pad`` and 32 hexadecimal digits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.importers.formats import Format, file_of, numbered
from rlhfless.trace.importers.import_session import ImportSession, batches, first_record
from rlhfless.trace.importers.record import Record, text_id
from solver.model.plurals import counted

PATTERN = r"(\d+)\.jsonl(?:\.gz)?"
MARKS = {"input", "output", "score"}
RANDOM = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}(_|$)")
PADDING = re.compile(r"pad[0-9a-f]{32}_\d+_0")


def files(path: Path) -> list[tuple[int, Path]]:
    """Return step and path of the dumps of a folder, or of one dump."""
    return numbered(path, PATTERN) or file_of(path, PATTERN)


def detect(path: Path) -> bool:
    """Return whether the path is a ``{step}.jsonl``, or a folder of them, whose first record has input, output and score."""
    step_files = files(path)
    return bool(step_files) and first_record(step_files[0][1]).keys() >= MARKS


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Yield batches of responses; if a record lacks its step, the file's name gives it."""
    step_files = files(reading.path)
    reading.expect(path for _, path in step_files)
    padding = 0
    reasons: set[str] = set()

    def responses(path: Path) -> Iterator[Record]:
        nonlocal padding
        for record in reading.records(path):
            uid = record.values.get("uid")
            if isinstance(uid, str) and PADDING.fullmatch(uid):
                padding += 1
            else:
                yield record

    for step, path in step_files:
        order = _Order()
        for batch in batches(_rows(responses(path), step, order)):
            frame = pd.DataFrame(batch)
            prompts, outputs = frame.pop("input").tolist(), frame.pop("output").tolist()
            frame["prompt_tokens"] = reading.count_tokens(prompts)
            frame["response_tokens"] = reading.count_tokens(outputs)
            yield frame.assign(**reading.texts(prompts, outputs))
        reasons |= {order.lost_by} - {""}
    reading.dispatch_order_known = not reasons
    if padding:
        reading.note(
            f"padding: left out {counted(padding, 'row')} that verl added to fill its batches, because they are not responses"
        )
    for reason in sorted(reasons):
        reading.note(f"order: verl {reason} before it writes, so the log's order is not the order of dispatch")


class _Order:
    """Finds out whether a file is in the order of dispatch.

    With uids it is, unless they are random. Without uids it is only if the responses to a prompt are adjacent. With one
    response per prompt the order cannot be recognised.
    """

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._last = ""
        self._named = self._random = self._scattered = False

    def see(self, prompt: str, uid: object) -> None:
        """Add the next row's prompt, and its uid or None."""
        self._named |= uid is not None
        self._random |= isinstance(uid, str) and RANDOM.match(uid) is not None
        self._scattered |= prompt != self._last and prompt in self._rows
        self._last = prompt
        self._rows[prompt] += 1

    @property
    def lost_by(self) -> str:
        """What lost the order of the rows that were read, in words; the empty text if nothing did."""
        if len(self._rows) < 2:
            return ""
        if self._random:
            return "sorts prompts by random ids"
        known = self._named or (not self._scattered and min(self._rows.values()) > 1)
        return "" if known else "balances lengths between its ranks"


def _rows(responses: Iterable[Record], step: int, order: _Order) -> Iterator[tuple[dict[str, Any], int]]:
    for record in responses:
        prompt, response = record.text("input"), record.text("output")
        named = record.maybe_whole("step")
        order.see(text_id(prompt), record.values.get("uid"))
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
    known_fields=frozenset({"input", "output", "gts", "score", "step", "uid", "request_id"}),
    expected=frozenset({"input", "output", "gts", "score", "step", "uid"}),
)
