"""One number of a diagnosis, with what it rests on, and the parts that a diagnosis is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

LOGGED, COUNTED, DERIVED, BOUND, OWN_PROFILE, STAND_IN = (
    "logged", "counted", "derived", "bound", "simulated (own profile)", "simulated (stand-in profile)",
)  # fmt: skip
EVIDENCE = (LOGGED, COUNTED, DERIVED, BOUND, OWN_PROFILE, STAND_IN)
"""What a number rests on, the surest first. *Derived* is arithmetic on logged numbers; a *bound* is the most or the least that
is possible; a stand-in is a profile of another model or other GPUs than the run's, and never reaches a headline."""


@dataclass(frozen=True)
class Number:
    """One number, or a range of which nobody knows more.

    Attributes:
        key: stable name that ends in its unit, such as ``generation_s`` or ``slot_idle_share``; key of the JSON.
        low, high: of the range; equal where the number is known.
        evidence: one of ``EVIDENCE``. how: where it comes from, as the end of a sentence: "timing_s/gen over timing_s/step".

    Raises:
        ValueError: an end is not finite, the ends are in the wrong order, or the evidence is none.
    """

    key: str
    low: float
    high: float
    evidence: str
    how: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"{self.key} is {self.low} to {self.high}; finite numbers in ascending order are needed")
        if self.evidence not in EVIDENCE:
            raise ValueError(f"{self.key} rests on {self.evidence!r}; one of {', '.join(EVIDENCE)} is needed")

    @property
    def value(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2


def number(key: str, value: float, evidence: str, how: str) -> Number:
    """Return a number that is no range."""
    return Number(key, float(value), float(value), evidence, how)


def digits(value: float) -> str:
    """Return three significant digits for a sentence, without an exponent.

    Example:
        >>> digits(1234.5), digits(0.01234), digits(0)
        ('1,230', '0.0123', '0')
    """
    if value <= 0:
        return "0"
    places = 2 - math.floor(math.log10(value))
    return f"{round(value, places):,.{max(places, 0)}f}"


class Numbers(Mapping[str, Number]):
    """Numbers by key, in the order in which they were added; a key is added once."""

    def __init__(self, numbers: Iterable[Number] = ()) -> None:
        self._by_key: dict[str, Number] = {}
        self.add(numbers)

    def add(self, numbers: Iterable[Number]) -> None:
        """Add numbers.

        Raises:
            ValueError: a key is there already.
        """
        for one in numbers:
            if one.key in self._by_key:
                raise ValueError(f"{one.key} is there already")
            self._by_key[one.key] = one

    def value(self, key: str) -> float | None:
        """Return the middle of a number; None where it is unknown."""
        return self._by_key[key].value if key in self._by_key else None

    def __getitem__(self, key: str) -> Number:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)


@dataclass(frozen=True)
class Finding:
    """One thing that limits the run: a candidate for the verdict.

    Attributes:
        kind: one of ``KINDS``.
        at_stake: share of the run's time that would be gone if this limited nothing, 0 to 1; findings are ranked by it.
        sentence: what it is, with the two numbers that prove it; a whole sentence.
        proof: keys of those numbers.
    """

    kind: str
    at_stake: float
    sentence: str
    proof: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no kind of finding; one of {', '.join(KINDS)} is needed")


KINDS = (
    "engine", "tail", "limit", "learner", "waiting", "groups", "beside the step", "layout", "memory", "pace", "cannot say",
)  # fmt: skip
"""The engine is slow; the long tail; a length limit cuts responses; the learner or log-probabilities; waiting for
generation, or for nothing; groups without a learning signal; something beside the step; number or division of the GPUs, of
several runs; what fits into the GPUs' memory; how fast an engine is, of
which nobody can say whether it limits the run; this log cannot say."""


LEVERS = (
    "partial rollout", "over-sampling", "release", "assignment", "asynchrony", "engine", "learner", "groups",
    "beside the step", "more generation", "more training",
)  # fmt: skip
"""Kinds of levers: stable keys, by which a simulation says what each is expected to save."""


@dataclass(frozen=True)
class Lever:
    """One thing that a user can change.

    Attributes:
        kind: one of ``LEVERS``. name: in words, such as "carry over the last 12 responses".
        at_most: most of the run's time (or GPU-hours, where ``of`` says so) that it can save, by arithmetic, 0 to 1.
        price: what it costs in data, time and GPUs; a clause. of: "time" or "GPU-hours".
        line: of the user's framework that pulls it; empty where none is known.
        expected: low and high end of the simulated saving, where a profile beats a constant on held-out steps; else None.
    """

    kind: str
    name: str
    at_most: float
    price: str
    of: str = "time"
    line: str = ""
    expected: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in LEVERS:
            raise ValueError(f"{self.kind!r} is no kind of lever; one of {', '.join(LEVERS)} is needed")


@dataclass(frozen=True)
class Part:
    """What one section of the arithmetic found.

    Attributes:
        numbers, findings, levers: see there.
        cannot_say: what the log does not tell, each with the line of a logger, or the option, that would.
        notes: what was left out or not used, and why; sentences.
    """

    numbers: tuple[Number, ...] = ()
    findings: tuple[Finding, ...] = ()
    levers: tuple[Lever, ...] = ()
    cannot_say: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Collected:
    """The parts so far."""

    numbers: Numbers = field(default_factory=Numbers)
    findings: list[Finding] = field(default_factory=list)
    levers: list[Lever] = field(default_factory=list)
    cannot_say: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Add a part."""
        self.numbers.add(part.numbers)
        self.findings += part.findings
        self.levers += part.levers
        self.cannot_say += part.cannot_say
        self.notes += part.notes
