"""Names and numbers that people paste without the line that they stood in: ``timing_s/gen: 74.0``, a dict, a list, a summary.

Read is every known name with a number after it, whatever is between and around them: quotes, colons, bullets, wandb's summary
at the end of a run. Names of the same folders as known ones are kept, too. A known name that is there again, with another
number, begins the next step; a step's own number counts where it is among them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from rlhfless.trace.importers.console.grammar import Entry, Grammar
from rlhfless.trace.importers.console.lines import Line
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import NAMES, Names
from rlhfless.trace.importers.summary import OTHER_FRAMEWORK
from solver.model.plurals import counted

NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,3})?)"
STEP = re.compile(
    r"(?<![\w/])['\"]?(?:training/global_step|system/global_step|system/step|rollout/step|train/global_step|global_step|step|_step)"
    r"['\"]?\s{0,20}[:= ]\s{0,20}(\d{1,15})(?![\w.])"
)
LONGEST = 100_000  # characters of a line that are looked at
FRAMEWORKS = tuple(key for key, one in NAMES.items() if any("/" in name for name in one.own()))


def pasted(lines: Iterable[Line]) -> Grammar | None:
    """Return the grammar of the framework whose names stand most often before numbers in these lines; None if none does."""
    found: Counter[str] = Counter()
    for line in lines:
        if "\0" in line.text:
            return None
        for name, _ in _pairs(line.text):
            found.update(key for key in FRAMEWORKS if name in _known(key))
    return _grammar(found.most_common(1)[0][0]) if found else None


def _pairs(text: str) -> list[tuple[str, str]]:
    return _pair().findall(text[:LONGEST]) if any(folder in text for folder in _folders()) else []


@cache
def _folders() -> tuple[str, ...]:
    """The beginnings of known names, up to their first stroke."""
    return tuple(sorted({f"{name.partition('/')[0]}/" for key in FRAMEWORKS for name in _known(key)}))


@cache
def _pair() -> re.Pattern[str]:
    """A name in the folder of a known one, and the number after it; not a row of a table, which may have several."""
    folders = "|".join(map(re.escape, _folders()))
    return re.compile(
        rf"(?<![\w/.])((?:{folders})[\w@+.-]{{1,80}}(?:/[\w@+.-]{{1,80}}){{0,5}})['\"`*]{{0,4}}\s{{0,80}}(?:[:=≈]\s{{0,80}})?[~≈]?"
        rf"(?:np\.\w{{1,20}}\()?['\"`*]{{0,2}}({NUMBER})(?= ?s?(?:[\s,;)}}\]'\"`*]|$))(?!\s{{0,3}}\|)"
    )


@cache
def _known(framework: str) -> frozenset[str]:
    names = NAMES[framework]
    return frozenset(name for name in (*names.own(), *names.tracked().own()) if "/" in name)


@dataclass
class _Steps:
    """Numbers of one step after the other."""

    framework: str
    values: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    line: int = 0
    count: int = 0

    def take(self, line: int, name: str, value: float) -> Iterator[Entry]:
        """Take the next number; yields the step before it, where it begins another one."""
        if name in _known(self.framework) and self.values.get(name, value) != value:
            yield from self.end()
        self.line = self.line or line
        self.values[name] = value

    def end(self) -> Iterator[Entry]:
        """Yield the step that is over, if it has numbers."""
        if self.values:
            names: Names = NAMES[self.framework]
            own = {name.removeprefix(names.tracked_prefix): value for name, value in self.values.items()}
            yield Entry(self.line, self.count if self.step is None else self.step, own)
            self.count += 1
        self.values, self.step, self.line = {}, None, 0


def _grammar(framework: str) -> Grammar:
    known = _known(framework)
    folders = frozenset(name.rpartition("/")[0] for name in known)

    def entries(lines: Iterable[Line], reading: ImportSession) -> Iterator[Entry]:
        """Yield the numbers of every step."""
        steps = _Steps(framework)
        others: Counter[str] = Counter()
        for line in lines:
            pairs = _pairs(line.text)
            if (number := STEP.search(line.text[:LONGEST])) and steps.step != int(number[1]):
                if steps.step is not None or (steps.values and number.start() < line.text.find("/")):
                    yield from steps.end()
                steps.step = int(number[1])
            for name, value in pairs:
                if name in known or name.rpartition("/")[0] in folders or name.partition("/")[0] in folders:
                    yield from steps.take(line.number, name, float(value))
                elif owner := next((key for key in FRAMEWORKS if name in _known(key)), None):
                    others[NAMES[owner].title] += 1
        yield from steps.end()
        for title, count in others.items():
            left_out = counted(count, "number")
            reading.note(f"left out: {left_out} under names of {title}; {OTHER_FRAMEWORK}")
        read = counted(steps.count, "step")
        reading.note(f"pasted: names of {NAMES[framework].title} with numbers, without the lines of steps; read as {read}")

    return Grammar(
        framework, hint="/", mark=re.compile(r"(?!)"), example="", near=re.compile(r"(?!)"), files="", entries=entries,
    )  # fmt: skip
