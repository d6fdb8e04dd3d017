"""SkyRL's console text: dicts of steps, or the lines in which its timers end.

A dict follows the line ``Step {n}:`` and is over many lines, as pprint shows it, with its floats as texts. It is written by
``ConsoleLogger`` in ``skyrl/train/utils/tracking.py``, where that logger is chosen. The asynchronous trainer prints two of them
per step, of its metrics and of its seconds.

Timers write ``Finished: 'generate', time cost: 12.50s`` whatever the logger is (``Timer`` in ``skyrl/train/utils/utils.py``).
These seconds are those of the dicts, so they count only for steps without a dict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.console.progress import BAR
from rlhfless.trace.importers.import_session import ImportSession

HEAD = re.compile(r"\bStep (\d{1,15}):\s*$")
NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
ITEM = re.compile(rf"(?:^|[\s)])(\{{?)'([^'\s]{{1,400}})': '?({NUMBER})'?([,}}])?\s*$")
KNOWN_TIMERS = (
    "step|generate|wait_for_generation_buffer|postprocess_generator_output|convert_to_training_input|fwd_logprobs\\w{0,30}"
    "|compute_advantages_and_returns|run_training|train_critic_and_policy|policy_train|critic_train|sync_weights\\w{0,30}"
)
MARK = re.compile(
    r"(?:^|[\s)])\{?'timing/\w{1,200}': '\d{1,20}\.\d{4}'[,}]?\s*$"
    rf"|\bFinished: '(?:{KNOWN_TIMERS})', time cost: \d{{1,12}}\.\d\ds"
)
BEGIN, END = re.compile(r"(?:^|[\s)])\{'"), re.compile(r"(?:^|[\s)])'[^'\s]{1,400}': [^{]{1,1000}\}\s*$")
MOST_BETWEEN = 200  # lines of other processes within a dict
LONGEST = 2_000  # characters of a line of the dict

STARTED = re.compile(r"\bStarted: '(\w{1,100})'")
FINISHED = re.compile(r"\bFinished: '(\w{1,100})', time cost: (\d{1,12}\.\d\d)s")
SEQUENCES = re.compile(r"\bNumber of sequences(?: before padding)?: (\d{1,9})\s*$")
RESULT = re.compile(r"\b(avg_response_length|reward/avg_raw_reward): (-?\d{1,12}(?:\.\d{1,20})?)(?![\w.])")
RESAMPLED = re.compile(r"\bResample batch \d{1,9}, continue sampling")
TIMING, STEP = "timing/", "timing/step"
BEGINNING = frozenset({"init_weight_sync_state", "load_checkpoints"})  # of a run, before its first step
AT_BEGINNING = frozenset({"sync_weights", "eval"})  # timers that the beginning of a run has, too
AFTER_STEP = frozenset({"eval", "step"})  # timers that end after a step, and are logged with it
WHOLE = frozenset(TIMING + name for name in ("generate", "wait_for_generation_buffer", "train_critic_and_policy"))
ERROR = "Traceback (most recent call last)"
MOST_TIMERS = 100  # different names in a step


class Timers:
    """Adds up the timers of every step that has no dict, and counts these steps.

    A step ends with its timer ``step``; where dynamic sampling goes on, with a later one. Timers end also where an error passes
    through them, so the last step is incomplete where an error follows it. Of a step that did not end, only the timers in
    ``WHOLE`` count, as no other timer belongs to the same phase.
    """

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._line = self._last = self._bar = self._error = 0
        self._begun = self._complete = self._resampled = self._beginning = False
        self._known: set[str] = set()

    def take(self, line: Line) -> Iterator[Entry]:
        """Take the next line; yields the step before, if it begins another one."""
        text = line.text
        if "Started: '" in text and (match := STARTED.search(text)):
            if match[1] == "step":
                yield from self._begin()
        elif "Finished: '" in text and (match := FINISHED.search(text)):
            yield from self._finished(line, match[1], float(match[2]))
        elif ERROR in text:
            self._error = line.number
        elif RESAMPLED.search(text):
            self._resampled = True
        elif match := SEQUENCES.search(text):
            self._values["console/sequences"] = float(match[1])
        elif "Training" in text and (match := BAR.search(text)):
            self._bar = int(match[1])
        elif "avg_r" in text:
            self._values |= {name: float(value) for name, value in RESULT.findall(text)}

    def _begin(self) -> Iterator[Entry]:
        if self._complete and not self._resampled:
            yield self._entry()
        if not self._begun and not self._complete:  # what was timed before the first step
            self._values.clear()
            self._last = self._last or self._bar  # a resumed run
        self._begun, self._resampled, self._complete = True, False, False

    def _finished(self, line: Line, name: str, seconds: float) -> Iterator[Entry]:
        if name in BEGINNING:
            if name == "init_weight_sync_state":
                yield from self.end()
                self._last = self._bar = 0
            self._values.clear()
            self._begun, self._beginning = False, True
            return
        if self._beginning and name in AT_BEGINNING:
            return
        self._beginning = False
        if self._complete and not self._resampled and name not in AFTER_STEP:  # a text without the lines of a step's start
            yield self._entry()
        key = TIMING + name
        if key in self._values or len(self._values) < MOST_TIMERS:
            self._line = self._line or line.number
            self._values[key] = round(self._values.get(key, 0.0) + seconds, 2)
        self._complete = self._complete or name == "step"
        self._error = 0

    def logged(self, step: int, values: dict[str, Any]) -> None:
        """Take that a dict of this step was printed; one with seconds replaces those of the timers."""
        if STEP in values:
            self._clear()
            self._last = step
        else:
            self._last = step - 1

    def end(self) -> Iterator[Entry]:
        """Yield the last step; of one that did not end, the phases that no step before has."""
        if self._complete and not self._error:
            yield self._entry()
        elif self._line:
            further = {name: value for name, value in self._values.items() if name in WHOLE and name not in self._known}
            yield Entry(self._line, self._last + 1, further or None)
        self._clear()

    def _entry(self) -> Entry:
        entry = Entry(self._line, self._last + 1, dict(self._values))
        self._known |= self._values.keys()
        self._clear()
        self._last = entry.step
        return entry

    def _clear(self) -> None:
        self._values.clear()
        self._line = self._error = 0
        self._complete = self._resampled = False


def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
    """Yield the dict of every step, or its timers where it has none; of a dict without its end, that it is incomplete."""
    at, step, begun, between = 0, 0, False, 0
    values: dict[str, Any] = {}
    timers = Timers()
    for line in lines:
        if len(line.text) > LONGEST:
            continue
        yield from timers.take(line)
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
            timers.logged(step, values)
            yield Entry(at, step, values)
            at, begun = 0, False
    if begun:
        yield Entry(at, step, None)
    yield from timers.end()


GRAMMAR = Grammar(
    "skyrl",
    hint="'",
    mark=MARK,
    example="Finished: 'step', time cost: ...s, or Step N: and below it {'timing/step': '...',",
    near=re.compile(
        r"\btiming/(?:step|generate|sync_weights|wait_for_generation_buffer)\b|Generation Buffer Progress"
        r"|\bStarted: '(?:step|generate)'"
    ),
    files="its TensorBoard or wandb files, or a csv of its steps",
    entries=entries,
    bar="Training",
)
