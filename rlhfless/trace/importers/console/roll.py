"""ROLL's console text: a line ``metrics_tag: {"step": n, "metrics": {...}}`` per step, where the tracker is ``stdout``.

Written by ``StdoutTracker`` in ``roll/utils/tracking.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.import_session import ImportSession

MARK = re.compile(r"\bmetrics_tag: (?=\{\"step\":)")
STEP = re.compile(r"\{\"step\": ?(\d{1,15})\b")
TOTAL, OF_THIS_STEP = "time/step_total", "pre_step_total_time"
GENERATE = "time/step_generate"  # of the RLVR pipeline, whose ``time/step_total`` is that of the step before


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the metrics of every step; seconds of the step before are yielded as that step's."""
    for line in lines:
        if "metrics_tag" not in line.text or not (match := MARK.search(line.text)):
            continue
        text = line.text[match.end() :]
        number, metrics = STEP.match(text), _metrics(text)
        if number is None:
            continue
        step = int(number[1])
        if metrics is not None and GENERATE in metrics and (before := metrics.pop(TOTAL, None)):
            yield Entry(line.number, step - 1, {OF_THIS_STEP: before})
        yield Entry(line.number, step, metrics)


def _metrics(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text[: text.rfind("}") + 1])
    except (ValueError, RecursionError):
        return None
    metrics = record.get("metrics") if isinstance(record, dict) else None
    return metrics if isinstance(metrics, dict) else None


GRAMMAR = Grammar(
    "roll",
    hint="metrics_tag",
    mark=MARK,
    example='metrics_tag: {"step": N, "metrics": {...}}',
    near=re.compile(r"\bmetrics_tag|\btime/step_\w|\bpipeline step \d+ (?:start|finished)"),
    files="its TensorBoard or wandb files; with track_with: stdout the console has its steps",
    entries=entries,
    bar=None,
)
