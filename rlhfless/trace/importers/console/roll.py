"""ROLL's console text: the metrics of every step as JSON, after ``metrics_tag:`` or alone on their line.

``StdoutTracker`` in ``roll/utils/tracking.py`` writes ``metrics_tag: {"step": n, "metrics": {...}}``. The pipelines log the
metrics alone in addition, whatever the tracker is; then the step is among them, or in the line before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import LONGEST_DICT, Line, unwrapped
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.record import is_number

MARK = re.compile(r"\bmetrics_tag: (?=\{\"step\":)|(?:^|[\s\]])(?=\{\"(?:[^\"]{1,200}\": .{0,50000}\")?time/step_\w)")
STEP = re.compile(r"\{\"step\": ?(\d{1,15})\b")
BEGUN = re.compile(r"\bpipeline step (\d{1,15}) start")
OPEN = re.compile(r"(?:^|[\s\]])\{\"[^\"{}]{1,200}\": [^}]*$")
OWN_STEP = ("system/global_step", "system/step")
TOTAL, OF_THIS_STEP = "time/step_total", "pre_step_total_time"
GENERATE = "time/step_generate"  # of the RLVR pipeline, whose ``time/step_total`` is that of the step before


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the metrics of every step; seconds of the step before are yielded as that step's."""
    step = 0
    for line in unwrapped(lines, _is_open, _goes_on):
        if begun := BEGUN.search(line.text):
            step = int(begun[1])
        if '{"' not in line.text or not (match := MARK.search(line.text)):
            continue
        text = line.text[match.end() :]
        number, record = STEP.match(text), _record(text)
        metrics: Any = record.get("metrics") if record is not None and number else record
        if number:
            step = int(number[1])
        elif isinstance(metrics, dict):
            step = next((int(metrics[name]) for name in OWN_STEP if is_number(metrics.get(name))), step)
        if not isinstance(metrics, dict):
            yield Entry(line.number, step, None)
            continue
        if GENERATE in metrics and (before := metrics.pop(TOTAL, None)):
            yield Entry(line.number, step - 1, {OF_THIS_STEP: before})
        yield Entry(line.number, step, metrics)


def _is_open(text: str) -> bool:
    return '{"' in text and OPEN.search(text) is not None


def _goes_on(before: str, after: str) -> str | None:
    """Return metrics that have no end with the next line, unless that begins others."""
    other = '{"' in after or BEGUN.search(after) is not None
    return before + after if not other and len(before) < LONGEST_DICT and _is_open(before) else None


def _record(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text[: text.rfind("}") + 1])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def finish(rows: list[dict[str, Any]], reading: ImportSession) -> list[dict[str, Any]]:
    """Return the rows; where only one step is logged, with the seconds of the step before it as those of a step."""
    whole = [row for row in rows if OF_THIS_STEP in row]
    parts = [row for row in rows if "generate_s" in row]
    if len(parts) != 1 or len(whole) != 1 or whole[0]["step"] + 1 != parts[0]["step"] or not whole[0][OF_THIS_STEP]:
        return rows
    reading.note(f"step {parts[0]['step']}: its seconds as a whole are those of the step before, as its own come a step later")
    return [{**parts[0], "step_s": whole[0][OF_THIS_STEP]}]


GRAMMAR = Grammar(
    "roll",
    hint='{"',
    mark=MARK,
    example='metrics_tag: {"step": N, "metrics": {...}}',
    near=re.compile(r"\bmetrics_tag|\btime/step_\w|\bpipeline step \d+ (?:start|finished)"),
    files="its TensorBoard or wandb files; with track_with: stdout the console has its steps",
    entries=entries,
    bar=None,
    finish=finish,
)
