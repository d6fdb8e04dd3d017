"""TRL's console text: a Python dict per entry of the log, and the progress bar of optimizer steps.

A dict has no number of its step: transformers' ``ProgressCallback`` writes it through the bar, which is then printed again with
the number of steps that are done. Newer versions print numbers as texts of four digits. Entries of evaluations are left out.
ms-swift, which trains with TRL, prints the number of the step in the dict, and newer versions JSON.
Written by ``transformers/trainer_callback.py``; the last dict by ``Trainer`` with ``speed_metrics``. A notebook shows it once
more, in the result of ``trainer.train()``: ``TrainOutput(global_step=250, training_loss=0.1, metrics={...})``.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import LONGEST_DICT, Line, parse_dict
from rlhfless.trace.importers.console.progress import BAR
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.trl_steps import (
    COUNTER,
    ROUNDED,
    add_evaluation,
    as_numbers,
    evaluation_s,
    generations,
    whole_run,
)
from solver.model.plurals import counted

PREFIXES = (
    r"\d{4}-\d\d-\d\d[T ][\d:.,+Z]{5,20}\s{0,9}", r"std(?:out|err) [FP] ", r"(?:INFO|WARNING)\b\s{0,9}", r"[-|:]\s{0,9}",
    r"\[[\w:. -]{1,40}\]:?\s*", r"\d{1,5}:\s+", r">\s{0,3}",
)  # fmt: skip
"""What stands before an entry: the time of day, the container's stream, a logger's level, the process by torchrun or srun, and
the sign of a quotation."""
START = rf"(?:.{{0,400}}?it\])?\s*(?:{'|'.join(PREFIXES)}){{0,6}}"  # a bar, and prefixes
ENTRY = re.compile(rf"^{START}(\{{['\"].*)")
RESULT = re.compile(r"\bTrainOutput\(global_step=(\d{1,12}), .{0,200}?\bmetrics=(?=\{'train_runtime': )")
MARK = re.compile(
    rf"^(?=.{{0,100000}}?['\"](?:epoch|completions/mean_length|completion_length|num_tokens)['\"]: )"
    rf"{START}\{{['\"][^'\"]{{1,200}}['\"]: "
    rf"|{RESULT.pattern}"
    r"|^\s{0,20}\{?['\"](?:completions/\w{1,40}|completion_length|num_tokens|frac_reward_zero_std)['\"]: "  # over lines
)
ALONE = re.compile(rf"^{START}\{{$")  # of an entry over several lines
OWN = ("loss", *NAMES["trl"].own())  # names that tell an entry of a step from other dicts
BROKEN = re.compile(r"['\"](?:loss|grad_norm|learning_rate|reward|completion[\w/]{1,40}|num_tokens)['\"]: ")
HEADER = re.compile(r"\b(Total train batch size|Total optimization steps)\b[^=]{0,80}= (\d[\d,]{0,14})\s*$")
FACTS = {"Total train batch size": "responses_per_step", "Total optimization steps": "planned_steps"}
PROGRESS, ELAPSED = "global_step/max_steps", "elapsed_time"  # of ms-swift, such as '12/1000' and '1h 22m 38s'
DURATION = re.compile(r"(\d{1,9}) ?([dhms])\b")
UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
MOST_WAITING = 1_000  # entries without a bar between them
MOST_LINES = 100  # of an entry that a terminal wrapped, or that is over lines


class StepNumbers:
    """Numbers the entries of a log by the progress bar that follows them.

    Several entries before one bar are spread evenly up to it. Without a bar they are counted.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Line, dict[str, Any] | None]] = []
        self._total, self._bar, self._last = 0, 0, 0
        self._between: list[int] = []
        self._spread = self._counted = 0
        self._by_bar = False  # whether the last number is a bar's

    def entry(self, line: Line, values: dict[str, Any] | None) -> Iterator[Entry]:
        """Take the next entry of the log; None if it is broken."""
        if self._waiting and values is not None and values == self._waiting[-1][1]:
            return  # another process printed it, too
        self._waiting.append((line, values))
        if len(self._waiting) >= MOST_WAITING:
            yield from self.end()

    def evaluated(self, seconds: float) -> Iterator[float]:
        """Add the seconds of an evaluation to the entry that waits for its bar; yield them where none waits."""
        if self._waiting and (values := self._waiting[-1][1]) is not None:
            self._waiting[-1] = self._waiting[-1][0], add_evaluation(dict(values), seconds)
        else:
            yield seconds

    def bar(self, done: int, total: int) -> Iterator[Entry]:
        """Take the next state of a bar; bars of other lengths than the first one's are of evaluations. Yields entries that
        waited for it.
        """
        self._total = self._total or total
        if total != self._total:
            return
        if done < self._last:  # a restart
            self._last, self._by_bar = done, False
        self._bar = done
        if self._waiting:
            yield from self._numbered()

    def end(self) -> Iterator[Entry]:
        """Yield the entries that no bar follows."""
        if self._waiting:
            yield from self._numbered()

    def restart(self) -> None:
        """Take that a run is over, and that another one may follow."""
        self._total, self._bar, self._last, self._by_bar = 0, 0, 0, False

    def _numbered(self) -> Iterator[Entry]:
        count, ahead = len(self._waiting), self._bar - self._last
        if ahead >= count:
            apart = ahead // count if ahead % count == 0 else 1
            steps = [self._bar - apart * (count - 1 - at) for at in range(count)]
            self._spread += count > 1
            if count == 1 and self._by_bar:
                self._between.append(ahead)
        else:
            steps = [self._last + self._apart() * (at + 1) for at in range(count)]
            self._counted += count
        self._by_bar = count == 1 and ahead >= count
        self._last = steps[-1]
        for step, (line, values) in zip(steps, self._waiting, strict=True):
            yield Entry(line.number, step, values)
        self._waiting = []

    def _apart(self) -> int:
        """Return how many steps are between two entries, as far as the bars tell."""
        return int(statistics.median_low(self._between[-99:])) if self._between else 1

    def report(self, reading: ImportSession) -> None:
        """Report how many steps an entry covers, and which numbers are inferred."""
        if self._between:
            reading.facts["logging_steps"] = float(self._apart())
        if self._counted:
            reading.note(
                f"steps: no progress bar follows {counted(self._counted, 'entry', 'entries')}, so their steps are counted on"
            )
        if self._spread:
            reading.note("steps: where several entries stand before one progress bar, their steps are spread evenly up to it")


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the dict of every step, with the seconds of the evaluation after it, and report what the log says of the run."""
    last: Entry | None = None
    for one in _entries(lines, reading):
        if isinstance(one, float):
            if last is not None and last.values is not None:
                last = last._replace(values=add_evaluation(dict(last.values), one))
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry | float]:
    """Yield the dict of every step, and the seconds of every evaluation of an entry that was yielded before."""
    numbers = StepNumbers()
    for line in _whole(lines):
        text = line.text
        if ("{'" in text or '{"' in text) and (match := ENTRY.search(text)):
            yield from _bar(text[: match.start(1)], numbers)
            yield from _entry(line, match[1], numbers, reading)
            yield from _bar(text[text.rfind("}") + 1 :], numbers)
        elif "TrainOutput(" in text and (match := RESULT.search(text)):
            _result(int(match[1]), text[match.end() :], reading)
        elif "Total " in text and (match := HEADER.search(text)):
            reading.facts[FACTS[match[1]]] = float(match[2].replace(",", ""))
        else:
            yield from _bar(text, numbers)
    yield from numbers.end()
    numbers.report(reading)


def _whole(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines; an entry over several is one again, up to its brace, a bar, another entry or a blank line."""
    begun: Line | None = None
    count = 0
    for line in lines:
        if begun is not None:
            goes_on = line.text.strip() and count < MOST_LINES and len(begun.text) < LONGEST_DICT
            if goes_on and not (BAR.search(line.text) or ENTRY.search(line.text) or HEADER.search(line.text)):
                begun, count = begun._replace(text=begun.text + line.text, ended=line.ended), count + 1
                if "}" in line.text:
                    yield begun
                    begun = None
                continue
            yield begun
            begun = None
        match = ENTRY.search(line.text) if "{'" in line.text or '{"' in line.text else None
        alone = line.text.endswith("{") and ALONE.search(line.text)
        if alone or (match is not None and "}" not in match[1]):
            begun, count = line, 1
        else:
            yield line
    if begun is not None:
        yield begun


def _result(steps: int, text: str, reading: ImportSession) -> None:
    """Report what a notebook shows of the whole run."""
    if facts := whole_run(as_numbers(parse_dict(text) or {})):
        reading.facts.update({**facts, "steps_done": float(steps)})


def _bar(text: str, numbers: StepNumbers) -> Iterator[Entry]:
    if " [" in text and (match := BAR.search(text)) and not text[: match.start()].strip():
        yield from numbers.bar(int(match[1]), int(match[2]))


def _entry(line: Line, text: str, numbers: StepNumbers, reading: ImportSession) -> Iterator[Entry | float]:
    found = parse_dict(text)
    if found is None:
        if BROKEN.search(text):
            yield from numbers.entry(line, None)
        return
    values = as_numbers(found)
    if facts := whole_run(values):
        reading.facts.update(facts)
        yield from numbers.end()
        numbers.restart()
    elif (took := evaluation_s(values)) is not None:
        yield from numbers.evaluated(took)
    elif any(name in values for name in OWN) and not any(str(name).startswith("eval_") for name in values):
        if COUNTER in values and isinstance(found[COUNTER], str):
            values[ROUNDED] = values.pop(COUNTER)
        yield from numbers.entry(line, values)
        if match := re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(values.get(PROGRESS))):
            reading.facts["planned_steps"] = float(match[2])
            if passed := sum(float(count) * UNITS[unit] for count, unit in DURATION.findall(str(values.get(ELAPSED)))):
                reading.facts |= {"steps_done": float(match[1]), "elapsed_s": passed}
            yield from numbers.bar(int(match[1]), int(match[2]))


GRAMMAR = Grammar(
    "trl",
    hint=": ",
    mark=MARK,
    example="{'loss': ..., 'epoch': ...}",
    near=re.compile(
        r"'(?:completions/\w{1,40}|completion_length|num_tokens|frac_reward_zero_std)':|\bGRPOTrainer\b"
        r"|Total optimization steps ="
    ),
    files="trainer_state.json of a checkpoint, or its completions (log_completions=True)",
    entries=entries,
    finish=generations,
)
