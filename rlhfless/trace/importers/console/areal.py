"""AReaL's console text: a line ``Epoch 1/2 Step 3/58 Train step 3/116 done.`` per step, and its numbers in a table below it.

A row of the table has one or several pairs of a name and a number. Seconds are in ``timeperf/``; ``timeperf/rollout`` is what
training waits for the responses of the step, as generation goes on beside it. Nothing states the seconds of a whole step. The
line is written at its end, so they are those between the lines of two steps. ``no_eos_ratios`` is not read as a share of cut
responses: it is of those that are as long as the longest of their batch.

Written by ``StatsLogger.commit`` in ``areal/utils/stats_logger.py`` and ``areal/utils/printing.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.import_session import ImportSession

MARK = re.compile(r"\bEpoch \d{1,9}/\d{1,9} Step \d{1,9}/\d{1,9} Train step (\d{1,12})/(\d{1,12}) done\b")
TIME = re.compile(r"\b(\d{8}-\d\d:\d\d:\d\d\.\d{3})\b")
TABLE = re.compile(r"\bStats \(\d{1,6}/\d{1,6}\):")
CELLS = re.compile(r"│ ([\w./@-]{1,200}) {0,200}│ {0,40}([-+]?\d{1,20}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,4})?) {0,40}(?=│)")
ENDS = ("╘", "╰", "└")  # of a table, in its styles
CLOCK_S = "clock_s"


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the numbers of every step, with ``clock_s``, the time of its line in seconds; of a name that is there again, as in
    the tables of further updates, the first number.
    """
    values: dict[str, Any] = {}
    begun: tuple[int, int] | None = None  # line and number of the step
    is_table = False
    for line in lines:
        if "Train step " in line.text and (match := MARK.search(line.text)):
            if begun is not None:
                yield Entry(*begun, values or None)
            values, begun, is_table = _clock(line.text), (line.number, int(match[1])), True
            reading.facts["planned_steps"] = float(match[2])
        elif begun is not None and "│" in line.text:
            if is_table:
                for name, number in CELLS.findall(line.text):
                    values.setdefault(name, float(number))
        elif line.text.strip().startswith(ENDS):
            is_table = False
        elif "Stats (" in line.text and TABLE.search(line.text):
            is_table = True
    if begun is not None:
        yield Entry(*begun, values or None)


def _clock(text: str) -> dict[str, float]:
    """Return the time of a line in seconds; empty if it has none."""
    match = TIME.search(text)
    if match is None:
        return {}
    try:
        time = datetime.strptime(match[1], "%Y%m%d-%H:%M:%S.%f")
    except ValueError:  # a day that no calendar has
        return {}
    return {CLOCK_S: (time - datetime(2000, 1, 1)).total_seconds()}


def finish(rows: list[dict[str, Any]], reading: ImportSession) -> list[dict[str, Any]]:
    """Return the rows with the seconds between the line of the step before and that of the step."""
    known = False
    for before, row in pairwise(rows):
        follows = row["step"] == before["step"] + 1 and row.get("run") == before.get("run")
        if follows and CLOCK_S in before and row.get(CLOCK_S, 0.0) > before[CLOCK_S]:
            row["step_s"], known = row[CLOCK_S] - before[CLOCK_S], True
    if known:
        reading.note("console: seconds of a step are those between its line and the one before, so the first step has none")
    return rows


GRAMMAR = Grammar(
    "areal",
    hint="Train step ",
    mark=MARK,
    example="Epoch N/M Step N/M Train step N/M done.",
    near=re.compile(r"\btimeperf/\w|\bStatsLogger INFO\b|\b(?:grpo|ppo)_actor/\w"),
    files="its rollouts (rollout.dump_to_file=true), or its TensorBoard or wandb files",
    entries=entries,
    bar=None,
    finish=finish,
)
