"""verl's console text: a line ``step:{n} - {key}:{value} - {key}:{value} ...`` per step.

Written by ``concat_dict_to_str`` in ``verl/utils/logger/aggregate_logger.py``: numbers have three decimals in older versions.
In newer ones they are as ``pprint`` shows them, those of numpy as ``np.float64(0.5)``. A line has thousands of characters, so
terminals wrap it, in the middle of names and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line, unwrapped
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.schema.casts import clean, shown

MARK = re.compile(r"\bstep:(\d{1,15}) - (?=[^\s:]{1,200}:)")
NUMBER = r"(?:np\.\w{1,20}\()?([-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf))"
VALUE = re.compile(rf"{NUMBER}(?![\w.])")
PART = re.compile(rf"[^\s:]{{1,200}}:{NUMBER}\)?")
SURE = 0.002  # of a number that the file's end may have cut: digits that are missing change it by less


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the numbers of every step."""
    for line in unwrapped(lines, lambda text: "step:" in text and MARK.search(text) is not None, _goes_on):
        if "step:" in line.text and (match := MARK.search(line.text)):
            text = line.text[match.end() :]
            yield Entry(line.number, int(match[1]), _values(text if line.ended else _whole_parts(text, reading)) or None)


def _goes_on(before: str, after: str) -> str | None:
    """Return a line of a step with what follows it, if that is its rest: parts without blanks, and all whole but the last."""
    before = before.rstrip()
    head = before[before.rfind(" - ") + 3 :]
    apart = before.endswith(" -") or after.startswith("- ")
    joined = f"{head} {after.lstrip()}" if apart else head + after
    parts = [part.strip() for part in joined.rstrip("`'\" ").removesuffix(" -").split(" - ")]
    whole = [PART.fullmatch(part) is not None for part in parts]
    if len(parts) == 1:
        return before + after if whole[0] and PART.fullmatch(head) is None else None
    return before[: len(before) - len(head)] + joined if all(whole[:-1]) and " " not in parts[-1] else None


def _whole_parts(text: str, reading: ImportSession) -> str:
    """Return the parts of a line that the file ends in, without the last one where it may be cut."""
    rest, _, last = text.rpartition(" - ")
    number = VALUE.search(last, last.rfind(":") + 1)
    if number is not None and ":" in last:
        decimals = number[1].partition(".")[2]
        missing = 10.0 ** -len(decimals) if decimals.isdigit() else float("inf")
        if number.end() < len(last) or missing <= SURE * abs(float(number[1])):
            return text
    name = shown(clean(last.rpartition(":")[0] or last), 60)
    reading.note(f"left out: '{name}' of the last line, which the file's end may have cut")
    return rest


def _values(text: str) -> dict[str, Any]:
    """Return what the parts of a line say."""
    values: dict[str, Any] = {}
    for part in text.split(" - "):
        key, _, value = part.rpartition(":")
        if key:
            number = VALUE.match(value)
            values[key] = float(number[1]) if number else value
    return values


GRAMMAR = Grammar(
    "verl",
    hint="step:",
    mark=MARK,
    example="step:N - timing_s/step:... - response_length/mean:...",
    near=re.compile(r"\bstep:\d|\btiming_s/\w|\bresponse_length/m"),
    files="the .jsonl of its file logger (trainer.logger=['console','file']), or its TensorBoard or wandb files",
    entries=entries,
    bar="Training Progress",
)
