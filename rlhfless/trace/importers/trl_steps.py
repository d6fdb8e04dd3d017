"""What TRL's entries say about steps: which of them generated, and how many tokens a generation has.

TRL generates for ``steps_per_generation`` micro-steps, and again for every one of ``num_iterations``. An entry of a step that
only learns has no lengths of responses, or, in some versions, those of the generation before once more. ``num_tokens`` tells
them apart: it counts all tokens so far, and stands still where nothing was generated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.record import finite, is_number
from solver.model.plurals import counted

OF_RESPONSES = (
    "response_tokens_mean", "response_tokens_min", "response_tokens_max", "truncation_rate", "reward_mean",
)  # fmt: skip
"""Standard columns that are about the step's responses."""

LENGTHS = OF_RESPONSES[:4]
OWN_LENGTHS = NAMES["trl"].own(*LENGTHS)
COUNTER = "num_tokens"
ROUNDED = "num_tokens_rounded"
"""``num_tokens`` as newer consoles print it, with four digits; it may stand still although more was generated."""

DIGITS = 4
LARGEST_ERROR = 0.01  # of tokens that are a difference of rounded counts
LONGEST_NUMBER = 40  # characters

STILL, WITHOUT, REPEATED = (
    "num_tokens stands still in the others",
    "the others have no lengths of responses",
    "inferred: the others repeat mean, longest, shortest and cut share of the entry before",
)
EVALUATION = "eval_runtime"
"""Seconds of an evaluation, which comes after a step and is not in ``step_time``."""
FACTS = {
    "train_runtime": "run_s",
    "train_samples_per_second": "samples_per_s",
    "train_steps_per_second": "steps_per_s",
}
"""Names of the last entry, which is about the whole run, and what they are in ``run_facts.RUN_FACTS``."""


def as_numbers(entry: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return an entry with numbers where texts hold numbers, as newer consoles print them."""
    return {name: _number(value) if isinstance(value, str) else value for name, value in entry.items()}


def _number(text: str) -> float | str:
    if len(text) <= LONGEST_NUMBER:
        try:
            return float(text)
        except ValueError:
            pass
    return text


def whole_run(entry: Mapping[Any, Any]) -> dict[str, float]:
    """Return the facts of the whole run that an entry has; empty for an entry of a step."""
    numbers = {fact: finite(entry[name]) for name, fact in FACTS.items() if is_number(entry.get(name))}
    return {fact: number for fact, number in numbers.items() if number is not None and number >= 0}


def evaluation_s(entry: Mapping[Any, Any]) -> float | None:
    """Return the seconds of an entry of an evaluation; None for other entries, and where they are not logged."""
    took = finite(entry[EVALUATION]) if is_number(entry.get(EVALUATION)) else None
    return took if took is not None and took > 0 else None


def add_evaluation(row: dict[Any, Any], seconds: float) -> dict[str, Any]:
    """Add the seconds of an evaluation to those of the row, and return it."""
    row[EVALUATION] = row.get(EVALUATION, 0.0) + seconds
    return row


def add_evaluations(rows: Sequence[dict[str, Any]], seconds: Mapping[int, float]) -> None:
    """Add the seconds of evaluations to the rows of the steps that they came after; to the first row what was before it.

    Args:
        rows: one per generation, by ascending step. seconds: of the evaluation after each step that has one.
    """
    for step, took in seconds.items():
        at = max((number for number, row in enumerate(rows) if row["step"] <= step), default=0)
        if rows:
            add_evaluation(rows[at], took)


def generations(rows: Sequence[Mapping[str, Any]], reading: ImportSession) -> list[dict[str, Any]]:
    """Return one row per entry that generated, with the tokens of its generation; a note says which entries did not.

    Where every entry generated, ``step_s`` stays the seconds of one optimizer step, as TRL logs it. Else a row stands for all
    steps that learn from its generation: ``step_s`` is the sum of their seconds, so that the rows add up to the run, and the
    fact ``steps_per_generation`` says how many they are; evaluations are added up, too. Everything else is the entry's that
    generated.

    Args:
        rows: one per entry, in the order of the log, with TRL's own names, standard columns and ``step``.
    """
    spans = _spans(rows)
    found: list[tuple[dict[str, Any], list[tuple[Mapping[str, Any], int]]]] = []
    reasons: dict[str, int] = {}
    early = 0
    logs_lengths = any(name in row for row in rows for name in OWN_LENGTHS)
    before: dict[str, Any] = {}
    for row, span in zip(rows, spans, strict=True):
        if before.get("run") != row.get("run") or row["step"] <= before.get("step", -1):
            before = {}  # another run, or a later attempt
        reason = _idle(row, before) if logs_lengths else ""
        counts = {name: before[name] for name in (COUNTER, ROUNDED) if name in before}
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
            before = {**counts, **before, **{name: row[name] for name in ("step", "run") if name in row}}
            if found and found[-1][0].get("run") == row.get("run"):
                found[-1][1].append((row, span))
            else:
                early += 1
            continue
        found.append(({**row, **_tokens(row, counts, span)}, [(row, span)]))
        before = {**counts, **row}
    if not reasons:
        return [row for row, _ in found]
    for row, entries in found:
        row.pop("step_s", None)
        if all("step_s" in entry for entry, _ in entries):
            row["step_s"] = float(sum(span * entry["step_s"] for entry, span in entries))
        if "tokens_total" in row:
            row["tokens_total"] *= entries[0][1]
        for entry, _ in entries[1:]:
            if EVALUATION in entry:
                add_evaluation(row, entry[EVALUATION])
    _report(found, len(rows), early, list(reasons), reading)
    return [row for row, _ in found]


def _report(found: Sequence[tuple[Any, Sequence[tuple[Any, int]]]], rows: int, early: int, reasons: Sequence[str],
            reading: ImportSession) -> None:  # fmt: skip
    steps = [sum(span for _, span in entries) for _, entries in found]
    if complete := steps[:-1] or steps:  # the last generation may go on after the log's end
        reading.facts["steps_per_generation"] = statistics.fmean(complete)
    reading.note(
        f"scalars: {counted(rows, 'entry', 'entries')}, {counted(len(found), 'generation')} ({'; '.join(reasons)}); one row "
        "per generation, whose seconds are those of all its steps"
    )
    if early:
        reading.note(f"scalars: {counted(early, 'entry', 'entries')} before the log's first generation are left out")


def _spans(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return how many optimizer steps each entry covers."""
    steps = [int(row["step"]) for row in rows]
    between = [after - before for before, after in pairwise(steps)]
    usual = int(statistics.median_low([one for one in between if one > 0] or [1]))
    return [min(usual, steps[0]) or 1, *(one if one > 0 else usual for one in between)] if rows else []


def _idle(row: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return how one sees that an entry generated nothing; empty if it generated.

    Args:
        before: the entry before, with the last counts of tokens.
    """
    if not any(name in row for name in OWN_LENGTHS):
        return WITHOUT
    if COUNTER in row and COUNTER in before:
        return STILL if row[COUNTER] == before[COUNTER] else ""
    if row.get(ROUNDED) != before.get(ROUNDED) or not all(name in row for name in LENGTHS):
        return ""
    chance = row["response_tokens_min"] == row["response_tokens_max"] or row["truncation_rate"] >= 1
    return REPEATED if not chance and all(row[name] == before.get(name) for name in LENGTHS) else ""


def _tokens(row: Mapping[str, Any], counts: Mapping[str, float], span: int) -> dict[str, float]:
    """Return ``tokens_total`` of one of the entry's steps, from the tokens that were counted since the entry before."""
    name = COUNTER if COUNTER in row else ROUNDED
    if name not in row or (name not in counts and row["step"] != span):
        return {}  # the log begins within a run
    tokens = row[name] - counts.get(name, 0.0)
    error = 10.0 ** (math.floor(math.log10(row[name])) + 1 - DIGITS) if name == ROUNDED and row[name] > 0 else 0.0
    return {"tokens_total": tokens / span} if tokens > 0 and error <= LARGEST_ERROR * tokens else {}
