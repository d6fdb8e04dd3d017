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
ITEM = re.compile(r"\s*(\{?)'([^']{1,400})': '?([-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf))'?([,}])?\s*$")
MARK = re.compile(r"^\s*\{?'timing/\w{1,200}': '\d")
MOST_BETWEEN = 200  # lines of other processes within a dict


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the dict of every step; of one whose end is missing, that it is incomplete."""
    at, step, begun, between = 0, 0, False, 0
    values: dict[str, Any] = {}
    for line in lines:
        if head := HEAD.search(line.text):
            if begun:
                yield Entry(at, step, None)
            at, step, begun, between, values = line.number, int(head[1]), False, 0, {}
        elif not at:
            continue
        elif (item := ITEM.match(line.text)) and (begun or item[1]):
            begun = True
            values[item[2]] = float(item[3])
            if item[4] == "}":
                yield Entry(at, step, values)
                at, begun = 0, False
        elif begun and line.text.rstrip().endswith("}") and line.text.lstrip().startswith("'"):
            yield Entry(at, step, values)  # the last value is no number
            at, begun = 0, False
        else:
            between += 1
            if between > MOST_BETWEEN:
                if begun:
                    yield Entry(at, step, None)
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
