"""prime-rl's console text: a line ``Step N | ...`` per step, of the orchestrator or of the trainer.

An orchestrator's line is about the whole step. ``Seq. Length`` is of prompt and response together. ``Throughput`` counts these
tokens over the seconds in which the orchestrator waits for rollouts, without the rest of the step. Newer versions print neither
of them, and no colons. The trainer's numbers get the prefix ``trainer/``: its ``Time`` includes waiting for a batch, and its
``Throughput`` is of forward and backward passes, padding included. Shares in percent are read as shares.

The bar of a step's rollouts stands before the line of the step. It runs while the orchestrator waits for them, so where it is
full, its time is the step's generation, in whole seconds. Newer versions begin the next bar at once, so theirs may also cover
what follows the step before; a bar that is longer than its step is such a one and says nothing of generation.

Written by ``src/prime_rl/orchestrator/orchestrator.py`` and ``src/prime_rl/trainer/rl/train.py``, with the time of day by
``src/prime_rl/utils/logger.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line, quantity
from rlhfless.trace.importers.console.progress import BAR, clock_seconds
from rlhfless.trace.importers.import_session import ImportSession
from solver.model.plurals import counted

MARK = re.compile(r"\bStep (\d{1,12}) \| {0,9}(?=Time: |\d)(.{1,2000})")
CLOCK = re.compile(r"^\s*(\d\d):(\d\d):(\d\d)\b")
FIELD = re.compile(r"([A-Za-z][A-Za-z. -]{0,60}?):?\s{1,9}(?=[-+.\d])(.{1,80})")
DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)\b")
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
OF_ALL = re.compile(r"(\d{1,9})/(\d{1,9})\b")
DAY = 86400.0
BAR_TEXT, OTHER_BARS = "Generating rollouts", ("(val", "(eval")
MOST_ROLLOUTS = 1 << 16  # of a step; a larger bar counts tokens, where the batch is stated in tokens
TIME, TRAINER, CLOCK_S = "Time", "trainer/", "clock_s"
GAP_SHARE = 0.02  # of all seconds, from which time between the steps is worth a note


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the fields of every step, with ``clock_s``, the line's time of day in seconds since the log's first midnight."""
    days, before = 0, 0.0
    rollouts: set[int] = set()
    bar: re.Match[str] | None = None  # the last one since the line of a step
    generated = False
    for line in lines:
        if BAR_TEXT in line.text and (match := BAR.search(line.text)):
            if not any(one in line.text for one in OTHER_BARS):
                bar = match
                if len(rollouts) < 2:
                    rollouts.add(int(match[2]))
        elif "Step " in line.text and (match := MARK.search(line.text)):
            values = _values(match[2], line.ended)
            if values and (clock := CLOCK.match(line.text)):
                seconds = float(sum(int(part) * unit for part, unit in zip(clock.groups(), (3600, 60, 1), strict=True)))
                days += seconds + days * DAY < before - DAY / 2
                before = seconds + days * DAY
                values[(TRAINER if TRAINER + TIME in values else "") + CLOCK_S] = before
            if TRAINER + TIME not in values:
                took = clock_seconds(bar[3]) if bar is not None and bar[1] == bar[2] else 0.0
                if 0 < took <= values.get(TIME, 0.0):
                    values[BAR_TEXT], generated = took, True
                bar = None
            yield Entry(line.number, int(match[1]), values or None)
    if generated:
        reading.note(f"console: seconds of generation are those of the bars '{BAR_TEXT}', in whole seconds")
    if len(rollouts) == 1 and 0 < min(rollouts) < MOST_ROLLOUTS:
        reading.facts["responses_per_step"] = float(rollouts.pop())


def _values(text: str, ended: bool) -> dict[str, float]:
    """Return the fields of a line by name; without the last one where the line may be cut."""
    parts = text.split("|")
    fields = [part.strip() for part in (parts if ended else parts[:-1])]
    values: dict[str, float] = {}
    if fields and fields[0][:1].isdigit():
        fields[0] = f"{TIME} {fields[0]}"
    for match in filter(None, map(FIELD.fullmatch, fields)):
        name, found = match[1], quantity(match[2])
        if name == TIME:
            values[name] = sum(float(number) * UNITS[unit] for number, unit in DURATION.findall(match[2]))
        elif name == "Trainable" and (of_all := OF_ALL.match(match[2])):
            values |= {"Trainable": float(of_all[1]), "Rollouts": float(of_all[2])}
            if values["Rollouts"]:  # with groups of one size, the share of groups whose rewards are equal
                values["Untrainable"] = 1 - values["Trainable"] / values["Rollouts"]
        elif found is not None:
            values[name] = found.value / 100 if found.unit == "%" else found.value
    return {TRAINER + name: value for name, value in values.items()} if "Loss" in values else values


def finish(rows: list[dict[str, Any]], reading: ImportSession) -> list[dict[str, Any]]:
    """Return the rows with the responses of the progress bar, where they have none; report time between the steps."""
    if (responses := reading.facts.get("responses_per_step")) is not None:
        for row in rows:
            row.setdefault("responses", responses)
    outside = whole = 0.0
    for before, row in pairwise(rows):
        if CLOCK_S in before and CLOCK_S in row and "step_s" in row and row["step"] == before["step"] + 1:
            passed = row[CLOCK_S] - before[CLOCK_S]
            outside, whole = outside + passed - row["step_s"], whole + passed
    if outside > max(GAP_SHARE * whole, 1.0):  # the clock is in whole seconds
        reading.note(
            f"times of day: {outside:,.0f} s of {whole:,.0f} s pass between the {counted(len(rows), 'step')} and are in no "
            "step's Time, as for evaluations or checkpoints"
        )
    return rows


GRAMMAR = Grammar(
    "prime-rl",
    hint="Step ",
    mark=MARK,
    example="Step N | Time: ...",
    near=re.compile(r"\bStep \d{1,12} \|| \| (?:Reward|Seq\. Length|Max\.? Off-Policy)\b|Generating rollouts \(train\)"),
    files="its traces (rollouts/step_N/train/all/traces.jsonl)",
    entries=entries,
    bar=None,
    finish=finish,
)
