"""One number of a diagnosis, with what it rests on, and the parts that a diagnosis is made of.

What a number rests on follows one rule, and a number has one class:

- *logged*: one value as it stands in the log, if in other units, such as the seconds of one step, or of the slowest of several;
  or one that a user states;
- *counted*: statistics over single records of the log, such as the mean length of its responses, or how many lines it has;
- *derived*: arithmetic on logged values, of which a mean or a sum over steps is the simplest (``mean_of``, ``total_of``);
- *bound*: the most or the least that is possible;
- *simulated*: with the run's own latency profile, or with a stand-in, which is one of another model or other GPUs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

LOGGED, COUNTED, DERIVED, BOUND, OWN_PROFILE, STAND_IN = (
    "logged", "counted", "derived", "bound", "simulated (own profile)", "simulated (stand-in profile)",
)  # fmt: skip
EVIDENCE = (LOGGED, COUNTED, DERIVED, BOUND, OWN_PROFILE, STAND_IN)
"""What a number rests on, the surest first; a stand-in reaches a headline only beside what arithmetic says."""

TIME, GENERATION_TIME, GPU_HOURS, GENERATION_GPU_HOURS, RESPONSES, SLOTS = (
    "time", "time of generation", "GPU-hours", "GPU-hours of generation", "responses", "decode slots",
)  # fmt: skip
SHARES_OF = (TIME, GENERATION_TIME, GPU_HOURS, GENERATION_GPU_HOURS, RESPONSES, SLOTS)
"""What a share at stake, or the most that a lever saves, is a share of: of the run, where it names nothing else."""


@dataclass(frozen=True)
class Number:
    """One number, or a range if it is not known exactly.

    Attributes:
        key: stable name that ends with its unit (``unit_of``), such as ``generate_s`` or ``cut_share``; the key in the JSON.
        low, high: ends of the range; equal if the number is known.
        evidence: one of ``EVIDENCE``. how: how it was computed, as the end of a sentence: "timing_s/gen over timing_s/step".

    Raises:
        ValueError: an end is not finite, the ends are in the wrong order, or the evidence is unknown.
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


def counted(count: float, noun: str) -> str:
    """Return a count without decimals with its noun, which has an s unless it is one.

    Example:
        >>> counted(1.0, "request"), counted(1200.4, "request")
        ('1 request', '1,200 requests')
    """
    return f"{count:,.0f} {noun}{'' if round(count) == 1 else 's'}"


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


def mean_of(key: str, values: ArrayLike, what: str = "steps", means: str = "") -> Number:
    """Return the mean of logged values, NaN left out: of a single one it is the value as logged, of several it is derived.

    Args:
        values: at least one of them is known. what: they are of, in the plural.
        means: what one value is, where it is a mean itself, such as "mean lengths".

    Example:
        >>> mean_of("step_s", [10.0, 12.0, float("nan")])
        Number(key='step_s', low=11.0, high=11.0, evidence='derived', how='mean of 2 steps')
    """
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    of = f"{means} of " if means else ""
    if len(known) == 1:
        return number(
            key, float(known[0]), LOGGED, f"{of}one of the {what}, as logged" if of else f"as logged, one of the {what}"
        )
    return number(key, float(known.mean()), DERIVED, f"mean of {of}{len(known):,} {what}")


def total_of(key: str, values: ArrayLike, what: str = "steps") -> Number:
    """Return the sum of logged values, NaN left out; of a single one it is the value as logged."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return number(key, float(known.sum()), LOGGED if len(known) == 1 else DERIVED, f"sum over {len(known):,} {what}")


UNITS = (
    (r".*_share|mean_over_longest", "share, 0 to 1"),
    (r".*(_speedup|_over_synchronous|_rate|_ratio|times_as_fast)", "times"),
    (r".*tokens_per_gpu_s", "tokens/s per GPU"),
    (r".*tokens_per_s", "tokens/s"),
    (r".*_bytes_per_token", "bytes per token"),
    (r".*_gib", "GiB"),
    (r"(.*_)?ms_per_token", "ms per token"),
    (r".*_ms", "ms"),
    (r".*gpu_hours(_per_[a-z]+)?", "GPU-hours"),
    (r".*_hours", "hours"),
    (r".*_s", "s"),
    (r"(.*/)?usd(_per_[a-z_]+)?", "USD"),
    (r".*tokens(_[a-z]+)*", "tokens"),
    (r"gpus(_[a-z]+)?", "GPUs"),
)
"""Ends of keys, and the unit that each stands for; what has none of them is a count."""
WITHOUT_UNIT = re.compile(r"(_at_most|_of_generation|_to_hide|_mean|_max)$")  # ends of keys that follow the unit


def unit_of(key: str) -> str:
    """Return the unit of a number by its key.

    Example:
        >>> unit_of("generate_s"), unit_of("generate_share"), unit_of("responses_per_step")
        ('s', 'share, 0 to 1', 'count')
    """
    of_it = WITHOUT_UNIT.sub("", key)
    return next((unit for end, unit in UNITS if re.fullmatch(end, of_it, re.DOTALL)), "count")


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


def _check_share(of: str) -> None:
    if of not in SHARES_OF:
        raise ValueError(f"{of!r} is nothing that shares are of; one of {', '.join(SHARES_OF)} is needed")


@dataclass(frozen=True)
class Finding:
    """One thing that limits the run.

    Attributes:
        kind: one of ``KINDS``.
        at_stake: share of time or cost that would be saved without this limit, or of the responses that it is about, 0 to 1; 0
            if unknown.
        sentence: a whole sentence with the finding and the two numbers that prove it.
        proof: keys of those numbers. of: what ``at_stake`` is a share of, one of ``SHARES_OF``.
        time_share: of the run's time at most, where ``at_stake`` is a share of responses; None if unknown.
    """

    kind: str
    at_stake: float
    sentence: str
    proof: tuple[str, ...]
    of: str = TIME
    time_share: float | None = None

    @property
    def costs(self) -> float | None:
        """Share of time or GPU-hours by which findings are ranked; None where none is known, or a share of responses alone."""
        return self.time_share if self.of == RESPONSES else self.at_stake or None

    def __post_init__(self) -> None:
        _check_share(self.of)
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is not a kind of finding; one of {', '.join(KINDS)} is needed")


KINDS = {
    "engine": "the engine is slow, and no schedule mends that",
    "tail": "the long tail: a few responses end long after the others",
    "limit": "a length limit cuts responses",
    "generation": "generation takes much of the step; whether engine, limit or long responses do it, the log cannot say",
    "learner": "learning, rewards and log probabilities",
    "prompts": "prompts, whose prefill generation mostly is",
    "waiting": "waiting for generation, for tools, or for nothing",
    "groups": "groups without a learning signal",
    "beside the step": "validation, checkpoints, sending weights, or time that the log does not name",
    "layout": "of several runs: number or division of the GPUs",
    "memory": "what fits into the GPUs' memory",
    "pace": "how fast an engine is, of which nobody can say whether it limits the run",
    "cannot say": "what limits the run, the log cannot say; never in the verdict",
}
"""Kinds of findings, and what each says."""


MINUS = "\N{MINUS SIGN}"
LEVERS = {
    "partial rollout": "the last responses of a step are continued in the next one",
    "over-sampling": "more prompts are started than are learned from, and the slowest dropped",
    "release": "replicas are released when few responses are left",
    "assignment": "which replica generates which response, and in what order",
    "slots": "more responses are decoded at once by an engine",
    "asynchrony": "generation goes on while the learner learns",
    "engine": "a faster engine",
    "memory": "more memory for the KV cache",
    "prompts": "prompts are computed once, or faster",
    "drafts": "speculative decoding; only where it was simulated",
    "router": "a router that plans every batch; only where it was simulated",
    "limit": "shorter responses, so that the limit cuts none",
    "groups": "groups without a learning signal are filtered",
    "learner": "faster learning and log probabilities",
    "rewards": "rewards and advantages in parallel, or beside generation",
    "beside the step": "validation, checkpoints or sending weights less often",
    "more generation": "more of the GPUs generate, or generation is faster",
    "more training": "more of the GPUs train",
    "overlap": "preparing or learning begins while other responses are decoded; only where it was simulated",
    "streaming": "rewards or learning of each response as it ends; only where it was simulated",
}
"""Kinds of levers, and what each changes: stable keys, by which a simulation says what each is expected to save."""


@dataclass(frozen=True)
class Knob:
    """One setting of a lever, such as "1 % of the responses are carried over".

    Attributes:
        value: value of the setting, which ``Lever.knob`` names. at_most: the most that it can save, as in ``Lever``.
        data: how it changes the data and the GPUs, by name with its unit, such as ``late_responses_share``.
    """

    value: float
    at_most: float
    data: Mapping[str, float]


@dataclass(frozen=True)
class Lever:
    """One thing that a user can change.

    Attributes:
        kind: one of ``LEVERS``. name: in words, such as "carry over the last 12 responses".
        at_most: most that it can save, by arithmetic, 0 to 1.
        price: what it costs in data, time and GPUs; a clause.
        of: what ``at_most`` is a share of, one of ``SHARES_OF``.
        line: the configuration line of the user's framework that makes the change; empty if unknown.
        expected: lower and upper end of the simulated saving, if the latency profile predicts held-out steps better than a
            constant does; else None.
        simulated_most: the most that any schedule saves at simulated times, where that is less than ``at_most``; else None.
        knob: name of the adjustable setting, with its unit (``diagnosis.knobs``); empty if there is none.
        value: the setting to which the other attributes belong.
        swept: other settings with the most that each saves, ascending.
    """

    kind: str
    name: str
    at_most: float
    price: str
    of: str = TIME
    line: str = ""
    expected: tuple[float, float] | None = None
    simulated_most: float | None = None
    knob: str = ""
    value: float | None = None
    swept: tuple[Knob, ...] = ()

    @property
    def expected_in_words(self) -> str:
        """The simulated saving in percent; one number if both ends round to the same; empty if there is none."""
        if self.expected is None:
            return ""
        low, high = (f"{end:.0%}".replace("-", MINUS) for end in self.expected)
        return low if low == high else f"{low} to {high}"

    @property
    def most(self) -> float:
        """The most that it can save: by simulation where that allows less, else by arithmetic."""
        return self.at_most if self.simulated_most is None else self.simulated_most

    @property
    def at_most_in_words(self) -> str:
        """The most that it can save, such as ``38% of the time``; where simulation allows less, that first."""
        by = "" if self.simulated_most is None else f" at simulated times ({self.at_most:.0%} by arithmetic)"
        return f"{self.most:.0%} of the {self.of}{by}"

    def __post_init__(self) -> None:
        _check_share(self.of)
        if self.kind not in LEVERS:
            raise ValueError(f"{self.kind!r} is not a kind of lever; one of {', '.join(LEVERS)} is needed")


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
