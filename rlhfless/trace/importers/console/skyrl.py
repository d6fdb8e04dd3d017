"""SkyRL's console text: a line ``Step {n}:`` and a dict over many lines, as pprint shows it, with its floats as texts.

Written by ``ConsoleLogger`` in ``skyrl/train/utils/tracking.py``. The asynchronous trainer prints two of them per step, of its
metrics and of its seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.import_session import ImportSession

HEAD = re.compile(r"\bStep (\d{1,15}):\s*$")
NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
ITEM = re.compile(rf"(?:^|[\s)])(\{{?)'([^'\s]{{1,400}})': '?({NUMBER})'?([,}}])?\s*$")
MARK = re.compile(r"(?:^|[\s)])\{?'timing/\w{1,200}': '\d{1,20}\.\d{4}'[,}]?\s*$")
BEGIN, END = re.compile(r"(?:^|[\s)])\{'"), re.compile(r"(?:^|[\s)])'[^'\s]{1,400}': [^{]{1,1000}\}\s*$")
MOST_BETWEEN = 200  # lines of other processes within a dict
LONGEST = 2_000  # characters of a line of the dict


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the dict of every step; of one whose end is missing, that it is incomplete."""
    at, step, begun, between = 0, 0, False, 0
    values: dict[str, Any] = {}
    for line in lines:
        if len(line.text) > LONGEST:
            continue
        head = HEAD.search(line.text)
        if head or between > MOST_BETWEEN:
            if begun:
                yield Entry(at, step, None)
            at, step, begun, between, values = (line.number, int(head[1]), False, 0, {}) if head else (0, 0, False, 0, {})
        if head or not at:
            continue
        item, begins = ITEM.search(line.text), BEGIN.search(line.text) is not None
        if begun == begins:  # the line before a dict, or the dict of another process
            between += 1
            continue
        begun = True
        between += item is None
        if item:
            values[item[2]] = float(item[3])
        if item[4] == "}" if item else END.search(line.text):
            yield Entry(at, step, values)
            at, begun = 0, False
    if begun:
        yield Entry(at, step, None)


GRAMMAR = Grammar(
    "skyrl",
    hint="'timing/",
    mark=MARK,
    example="Step N: and below it {'timing/step': '...',",
    near=re.compile(r"\btiming/(?:step|generate|sync_weights|wait_for_generation_buffer)\b|Generation Buffer Progress"),
    files="its TensorBoard or wandb files, or a csv of its steps",
    entries=entries,
    bar="Training",
)
