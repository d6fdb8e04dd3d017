"""verl's console text: a line ``step:{n} - {key}:{value} - {key}:{value} ...`` per step.

Written by ``concat_dict_to_str`` in ``verl/utils/logger/aggregate_logger.py``: numbers have three decimals in older versions.
In newer ones they are as ``pprint`` shows them, those of numpy as ``np.float64(0.5)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.import_session import ImportSession

MARK = re.compile(r"\bstep:(\d{1,15}) - (?=[^\s:]{1,200}:)")
VALUE = re.compile(r"(?:np\.\w{1,20}\()?([-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf))(?![\w.])")
DECIMALS = re.compile(r"\.\d{3}")  # of a number that is complete enough where the file ends in it


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the numbers of every step."""
    for line in lines:
        if "step:" in line.text and (match := MARK.search(line.text)):
            yield Entry(line.number, int(match[1]), _values(line.text[match.end() :], line.ended) or None)


def _values(text: str, ended: bool) -> dict[str, Any]:
    """Return what the parts of a line say; without the last one, if the file ends within its number."""
    parts = text.split(" - ")
    if not ended and not DECIMALS.search(parts[-1]):
        parts.pop()
    values: dict[str, Any] = {}
    for part in parts:
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
