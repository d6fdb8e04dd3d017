"""slime's console text: lines ``perf {rollout}: {dict}`` and ``rollout {rollout}: {dict}`` of one step, from several processes.

The rollout manager prints lengths and seconds of generation, the trainer prints its own seconds, the reduced batch and, per
update, ``step {update}: {dict}``. Updates are numbered over all rollouts, so of them only the size of their batches is read.
A record has hundreds of characters, so terminals wrap it, in the middle of names and numbers.
Written by ``slime/observability/rollout_metrics.py``, ``train_metric_utils.py`` and ``backends/megatron_utils/model.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line, parse_dict, unwrapped
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.record import is_number

MARK = re.compile(r"\b(?:perf|rollout) \d{1,15}: \{'")
RECORD = re.compile(r"(?<![\w-])(perf|rollout|eval|passrate|multi_turn|step) (\d{1,15}): (\{.*)")
BATCH = "train/global_batch_size"
TRAINED = "perf/train_time"  # in the record of the trainer's own seconds, which follows its updates


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the records of every rollout. Batches of its updates are added up in the trainer's record."""
    batches = 0.0
    for line in unwrapped(lines, _is_open, _goes_on):
        if ": {" not in line.text or not (match := RECORD.search(line.text)):
            continue
        values = parse_dict(match[3])
        if match[1] == "step":
            size = (values or {}).get(BATCH)
            batches += size if is_number(size) else 0.0
            continue
        if values and batches and TRAINED in values:
            values[BATCH], batches = batches, 0.0
        yield Entry(line.number, int(match[2]), values)


def _is_open(text: str) -> bool:
    return ": {" in text and "}" not in text[text.rfind(": {") :] and RECORD.search(text) is not None


def _goes_on(before: str, after: str) -> str | None:
    """Return a record that has no end with the next line, unless that begins another record."""
    return before + after if _is_open(before) and RECORD.search(after) is None else None


GRAMMAR = Grammar(
    "slime",
    hint=": {'",
    mark=MARK,
    example="perf N: {'perf/rollout_time': ...}",
    near=re.compile(r"\b(?:perf|rollout) \d+:|'?(?:perf/\w+_time|rollout/\w+)'?:"),
    files="its dumps (--dump-details DIR), or its TensorBoard or wandb files",
    entries=entries,
    bar=None,
)
