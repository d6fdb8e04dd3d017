"""Where the seconds of a step go, phase by phase, time that no phase explains, and how much faster the step is at most without
a phase.

Amdahl's law is the bound: a phase with the share s of a step, infinitely fast, makes the step at most 1/(1-s) as fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import (
    BOUND,
    COUNTED,
    DERIVED,
    LOGGED,
    Collected,
    Finding,
    Number,
    Part,
    mean_of,
    number,
    total_of,
)  # fmt: skip
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.scalars import STANDARD, runs_of
from rlhfless.trace.importers.step_table import understood
from rlhfless.trace.schema.casts import shown

BAR = ["phase", "kind", "seconds", "share"]
"""Columns of ``step_bar``."""

PHASES = {
    "generate_s": "generation",
    "wait_s": "waiting for generation",
    "prepare_s": "rewards and log probabilities",
    "learn_s": "learning",
    "sync_s": "sending weights",
}
"""Standard columns of a step's phases, in the order of the step, in words."""
STATED = ("prepare_s", "learn_s")
"""Phases whose seconds a user may state."""
NOT_NAMED = "not named"

TIMES_LINE = {
    "trl": "report_to='wandb', whose run file has the seconds of every call ('profiling/Time taken: ...'),",
    "verl": "trainer.logger=['console'], whose lines have timing_s/gen and timing_s/step,",
    "openrlhf": "its console lines 'Global step', which have timing/generation and timing/step_total,",
    "slime": "its console lines 'perf N', which have perf/rollout_time and perf/step_time,",
    "nemo-rl": "its console's block 'Timing' of each step, which has generation and Total step time,",
    "prime-rl": "the trainer's wandb run, which has time/wait_for_batch and time/step,",
    "areal": "its console of two steps or more, whose lines have the time of day and whose tables have timeperf/rollout,",
    "skyrl": "trainer.logger=console, whose lines have timing/generate and timing/step,",
    "roll": "track_with: stdout, whose lines 'metrics_tag' have time/step_generate (or time/step_rollout) and time/step_total,",
}
"""The line of a logger that writes the seconds of a step's phases, by framework; the beginning of a sentence."""
ANY_LINE = "a log with the seconds of generation and of the whole step"

LONGEST_S = 1e8  # three years: no step takes longer
MOST_STEPS = 1e6  # of one entry of a log
FITS = 0.01  # of a step: phases whose sum is longer than the step by more overlap
SLOWER, FASTER = 1.25, 0.8  # times the median: a step that differs from the others
SPREAD = 6.0  # times the median deviation from the median, which it has to differ by, too
FEW = 5  # steps of which the usual one can be told
GROWN = 2.0  # times its least seconds: a phase that is so much longer at one end of the log grew or shrank
OFTEN = 2 / 3  # of the steps: what so many have is a part of a usual step
WORTH_SAYING = 0.03  # of the run's time
SYNCHRONOUS = 0.9  # of generation: where training waits for so much of it, generation and training take turns

BESIDE = {
    "validation": re.compile(r"(?:^|[^a-z])(?:test|testing|eval|evaluate|evaluation|val|validate|validation)(?:[^a-z]|$)"),
    "checkpoints": re.compile(r"(?:^|[^a-z])(?:checkpoint|checkpoints|checkpointing|save)(?:[^a-z]|$)"),
}
"""What frameworks do between steps, by words in their own names of seconds."""
TIMING = re.compile(r"(?:^|[^a-z])(?:timing|timeperf|time|seconds)(?:[^a-z]|$)")
IN_SECONDS = re.compile(r"(?:^|[^a-z])(?:(?:run)?time|seconds|sec|s)\)?$")
UNIT_OF_SECONDS = re.compile(r"(?:[ _]|\s*\()(?:seconds|secs?|s)\)?$")
NO_PHASE = re.compile(r"(?:^|[^a-z])(?:eta|elapsed|latency|request|since|total|cumulative|ttft|tpot|itl|wall|p\d+)(?:[^a-z]|$)")
NO_SECONDS = re.compile(r"(?:^|[^a-z])(?:ratio|rate|per|tokens|percent|fraction|count|std|min|max|mean|tflops)(?:[^a-z]|$)")


REWARDS = re.compile(r"reward|rm_score|adv")
"""Own names of preparing that are computed from responses alone, by functions of rewards and advantages."""
LOG_PROBABILITIES = re.compile(r"log_?prob")


@dataclass(frozen=True, eq=False)
class StepSeconds:
    """Seconds of a run's steps; NaN where unknown.

    Attributes:
        steps: (s,) numbers of the steps. step_s: (s,) whole steps.
        phases: (s,) by standard column: what each takes of the step. Where training goes on beside generation, this is what
            it waits for it, and not all of generation.
        further: (s,) what else the framework lists in the step, by its own names.
        beside: (s,) validation and checkpoints, where the step contains them. outside: (s,) where it does not.
        usual: (s,) ordinary steps: those without validation and checkpoints, where only some have them, and whose time does not
            differ from that of the others.
        notes: what was not used, and why. entry_steps: steps whose mean each row is, as TRL logs several steps at once.
    """

    steps: np.ndarray
    step_s: np.ndarray
    phases: dict[str, np.ndarray]
    further: dict[str, np.ndarray]
    beside: dict[str, np.ndarray]
    outside: dict[str, np.ndarray]
    usual: np.ndarray
    notes: tuple[str, ...]
    entry_steps: float = 1.0

    @property
    def unnamed_s(self) -> np.ndarray:
        """(s,) seconds that no phase has; negative where phases overlap, NaN where a phase that other steps have is unknown."""
        unknown = np.any([np.isnan(values) for values in self.phases.values()], axis=0)
        return np.where(unknown, np.nan, self.left_s)

    @property
    def left_s(self) -> np.ndarray:
        """(s,) the step without its known parts."""
        parts = [np.nan_to_num(values) for values in (*self.phases.values(), *self.further.values(), *self.beside.values())]
        return np.asarray(self.step_s - np.sum(parts, axis=0)) if parts else np.full(len(self.step_s), np.nan)

    @property
    def names_any(self) -> bool:
        """Whether any part of a step has a time above 0, so that the rest of it is one that was left out."""
        return any(np.nansum(values) > 0 for values in (*self.phases.values(), *self.further.values(), *self.beside.values()))

    @property
    def overlap(self) -> np.ndarray:
        """(s,) whether the phases of a step are together longer than the step."""
        return np.asarray(self.left_s < -FITS * self.step_s)

    def ordinary(self, seconds: np.ndarray) -> np.ndarray:
        """(s,) which ordinary steps have both some seconds and a known time."""
        return np.asarray(self.usual & ~np.isnan(seconds) & ~np.isnan(self.step_s))

    def share(self, seconds: np.ndarray) -> float | None:
        """Return the share of some seconds in the time of the steps that have them; None where no step has both."""
        both = ~np.isnan(seconds) & ~np.isnan(self.step_s)
        return float(seconds[both].sum() / self.step_s[both].sum()) if both.any() else None

    @property
    def single(self) -> bool:
        """Whether the time of one step alone is known, so that nobody knows how often something comes."""
        return int((~np.isnan(self.step_s)).sum()) == 1

    @property
    def whole_s(self) -> np.ndarray:
        """(s,) the step with what the run does beside it: what is paid for."""
        return np.asarray(self.step_s + sum(np.nan_to_num(values) for values in self._paid.values()) / self.entry_steps)

    @property
    def _paid(self) -> dict[str, np.ndarray]:
        """What is outside of the steps and part of the run; of a single step nobody knows how often it comes."""
        return {} if self.single else self.outside

    @property
    def total_s(self) -> float:
        """Seconds of the whole run as logged, such as a validation before the first step included."""
        return float(self.entry_steps * np.nansum(self.step_s) + sum(np.nansum(values) for values in self._paid.values()))

    def of_run(self, seconds: np.ndarray) -> float:
        """Return the share of some seconds of a step in the whole run as logged; steps that lack them did not spend any."""
        return float(self.entry_steps * np.nansum(seconds) / self.total_s) if np.nansum(self.step_s) > 0 else 0.0

    @property
    def differs_once(self) -> bool:
        """Whether the first step differs from the others, and not by what later ones do, too, such as validation."""
        if self.usual.all() or self.usual[0] or np.isnan(self.step_s[0]):
            return False
        return not any(values[0] > 0 for values in self.beside.values())

    @property
    def ordinary_share(self) -> float:
        """Share of the run's time that would remain, were all its steps ordinary ones; 0 where no step's time is known."""
        ordinary = self.step_s[self.ordinary(self.step_s)]
        steps = int((~np.isnan(self.step_s)).sum())
        return min(1.0, float(ordinary.mean() * steps * self.entry_steps / self.total_s)) if len(ordinary) else 0.0

    def phase_of_run(self, seconds: np.ndarray) -> float:
        """Return the share of the run's time that a phase takes in ordinary steps; what others have more is not its."""
        return (self.share(np.where(self.usual, seconds, np.nan)) or 0.0) * self.ordinary_share


def with_stated_phases(run: LoggedRun) -> LoggedRun:
    """Return the run with the seconds of its phases that are stated, as those of every step that generated.

    Where the log has no whole step, it is generation with what follows it, of a run that takes turns.
    """
    given = {name: value for name in STATED if (value := getattr(run.stated, name)) is not None}
    generate_s = run.column("generate_s")
    if not given or not (generate_s > 0).any():
        return run
    steps = run.steps.assign(**{name: np.where(generate_s > 0, value, np.nan) for name, value in given.items()})
    if np.isnan(run.column("step_s")).all() and synchronous(run):
        after = [replace(run, steps=steps).column(name) for name in ("prepare_s", "learn_s", "sync_s")]
        steps = steps.assign(step_s=generate_s + np.sum(np.nan_to_num(after), axis=0))
    return replace(run, steps=steps)


def _as_stated(run: LoggedRun, numbers: Sequence[Number]) -> list[Number]:
    """Return the numbers, of which those of stated phases say so."""
    return [
        replace(one, evidence=LOGGED, how="as stated")
        if one.key in STATED and getattr(run.stated, one.key) is not None
        else one
        for one in numbers
    ]


def _stated_note(run: LoggedRun) -> list[str]:
    given = [f"{PHASES[name]} {value:,.4g} s" for name in STATED if (value := getattr(run.stated, name)) is not None]
    return [f"Of the phases of a step, the seconds of these are stated, not logged: {', '.join(given)}."] if given else []


def phases(run: LoggedRun, found: Collected) -> Part:
    """Return seconds and shares of the phases, what they limit, which steps differ, and what is impossible in the log."""
    seconds = step_seconds(run)
    notes = [
        *_stated_note(run),
        *seconds.notes,
        *_impossible_shares(run),
        *_growing(seconds),
        *_differing(seconds),
        *_of_unknown_interval(seconds),
    ]
    numbers = [*_as_stated(run, _numbers(seconds, medians(run))), *_rewards(run, seconds)]
    findings = [] if seconds.overlap.any() else _findings(run, seconds, {one.key: one for one in numbers})
    if seconds.overlap.any():
        notes.append(_overlap_note(seconds))
    unknown: tuple[str, ...] = ()
    if seconds.phases and np.isnan(seconds.step_s).all() and "wait_s" not in seconds.phases:
        means = {column: float(np.nanmean(values)) for column, values in seconds.phases.items()}
        named_s = number("named_s", sum(means.values()), DERIVED, "sum of the phases that the log names")
        numbers.append(named_s)
        findings += _without_step(run, means, named_s.value)
        line = TIMES_LINE.get(run.framework, ANY_LINE)
        most = max(means, key=lambda column: means[column])
        known = f"; {PHASES[most]} takes {means[most]:,.1f} of {named_s.value:,.1f} s that it names" if len(means) > 1 else ""
        unknown = (f"What share of a step each phase is{known}: {line} would tell.",)
    return Part(tuple(numbers), tuple(findings), cannot_say=unknown, notes=tuple(notes))


def _without_step(run: LoggedRun, means: dict[str, float], named_s: float) -> list[Finding]:
    """What takes most of the seconds that the log names, where those of a whole step are missing.

    Args:
        means: seconds of each phase, by its column. named_s: their sum.
    """
    most = max(means, key=lambda column: means[column])
    if named_s <= 0:
        return []
    names = NAMES.get(run.framework)
    missing = "" if names is None else f" ({', '.join(names.first('step_s'))})"
    part = f"{means[most]:,.1f} s of {PHASES[most]}"
    of = part if len(means) == 1 else f"{named_s:,.1f} s, {means[most] / named_s:.0%} of them {PHASES[most]}"
    sentence = f"The log names {of}; the seconds of the whole step{missing} are missing, so what share that is, it cannot say."
    return [Finding("cannot say", 0.0, sentence, (most, "named_s"))]


def step_seconds(run: LoggedRun) -> StepSeconds:
    """Return the seconds of every step, without impossible ones."""
    notes: list[str] = []
    taken = {name: _possible(run, name, notes) for name in ("step_s", *PHASES)}
    step_s = np.where(taken["step_s"] > 0, taken.pop("step_s"), np.nan)
    parts = {name: values for name, values in taken.items() if not np.isnan(values).all()}
    for name in list(parts):
        longer = parts[name] > (1 + FITS) * step_s
        if longer.any() and name != "generate_s":
            notes.append(f"{name} is longer than the whole step in {_listed(run, longer)}; not used there.")
            parts[name] = np.where(longer, np.nan, parts[name])
    if "wait_s" in parts and "generate_s" in parts:
        del parts["wait_s" if synchronous(run) else "generate_s"]
    if "wait_s" in parts and "sync_s" in parts:  # slime sends weights while training waits
        rest = np.sum([np.nan_to_num(values) for values in parts.values()], axis=0)
        inside = (rest > (1 + FITS) * step_s) & (parts["sync_s"] <= parts["wait_s"])
        if inside.any() and (rest - np.nan_to_num(parts["sync_s"]) <= (1 + FITS) * step_s)[inside].all():
            parts["wait_s"] = np.where(inside, parts["wait_s"] - parts["sync_s"], parts["wait_s"])
            notes.append("Weights are sent while training waits; these seconds are not counted as waiting.")
    named = np.sum([np.nan_to_num(values) for values in parts.values()], axis=0) if parts else np.zeros(len(step_s))
    beside: dict[str, np.ndarray] = {}
    outside: dict[str, np.ndarray] = {}
    for what, values in _beside(run).items():
        fits = named + np.nan_to_num(values) <= (1 + FITS) * step_s
        fits &= run.framework != "trl"  # whose evaluations come after a step
        (beside if fits[values > 0].all() else outside)[what] = values
    left_s = step_s - named - sum((np.nan_to_num(values) for values in beside.values()), np.zeros(len(step_s)))
    further = _further(run, left_s) if parts else {}
    steps = run.steps["step"].to_numpy() if len(run.steps) else np.zeros(0, dtype=int)
    usual = _usual(steps, step_s, beside, parts.get("generate_s", np.full(len(step_s), np.nan)))
    steady = ~start_up_steps(run, step_s)
    if (steady & usual & ~np.isnan(step_s)).any():
        usual &= steady
    return StepSeconds(steps, step_s, parts, further, beside, outside, usual, tuple(notes), _entry_steps(run))


def _entry_steps(run: LoggedRun) -> float:
    """How many steps a row's seconds are the mean of: more than one where TRL logs several at once and generates in each."""
    if run.facts.get("steps_per_generation", 1.0) > 1:
        return 1.0  # rows are generations, with the seconds of all their steps
    return max(1.0, min(run.facts.get("logging_steps", 1.0), MOST_STEPS))


def synchronous(run: LoggedRun) -> bool | None:
    """Return whether training waits for all of generation, so that the two take turns; None where the log does not say.

    Example:
        >>> import pandas as pd
        >>> synchronous(LoggedRun("log", "", pd.DataFrame({"step": [0], "wait_s": [9.0], "generate_s": [9.0]})))
        True
    """
    wait, generate = run.column("wait_s"), run.column("generate_s")
    both = ~np.isnan(wait) & (generate > 0)
    if both.any():
        return bool(np.mean(wait[both] >= SYNCHRONOUS * generate[both]) >= 0.5)
    if np.isnan(wait).all():
        return None if np.isnan(generate).all() else True
    return None if run.framework == "slime" else False  # slime alone logs a wait where the two take turns, too


def start_up_steps(run: LoggedRun, step_s: np.ndarray) -> np.ndarray:
    """(s,) Which steps are the start of an asynchronous run: the first ones, whose responses become later from step to step.

    Args:
        step_s: (s,) seconds of the steps; those without are not looked at.
    """
    level = run.column("off_policy_steps")
    known = np.flatnonzero(~np.isnan(level) & ~np.isnan(step_s))
    rising = 1
    while rising < len(known) and level[known[rising]] > level[known[rising - 1]]:
        rising += 1
    start = np.zeros(len(step_s), dtype=bool)
    start[known[:rising]] = rising > 1
    return start


def step_bar(run: LoggedRun) -> pd.DataFrame:
    """Return one usual step as logged: rows ``phase, kind, seconds, share``, including time that no phase explains.

    Phases have the framework's own names where the log has them; their kind is one of ``PHASES``, or empty. Without rows where
    the log has no time of a step, where phases overlap, so that they are no parts of it, and of several runs at once.
    """
    if len(runs_of(run.steps)) > 1:
        return pd.DataFrame(columns=BAR)
    seconds = step_seconds(run)
    whole = seconds.usual & ~np.isnan(seconds.unnamed_s)
    if not whole.any() or not seconds.names_any or (seconds.overlap & whole).any():
        return pd.DataFrame(columns=BAR)
    step_s = float(seconds.step_s[whole].mean())
    rows: list[tuple[str, str, float]] = []
    for column, values in seconds.phases.items():
        kind = PHASES[column]
        parts = _own_parts(run, column, values, whole) or [(kind, float(np.nan_to_num(values[whole]).mean()))]
        rows += [(name, kind, part) for name, part in parts]
    others = {**seconds.beside, **seconds.further}
    rows += [(what, "", float(np.nan_to_num(values[whole]).mean())) for what, values in others.items()]
    left = step_s - sum(part for *_, part in rows)
    rows = [row for row in rows if row[-1] > 0]
    if not medians(run):
        rows.append((NOT_NAMED, "", max(0.0, left)))
    return pd.DataFrame([(name, kind, part, part / step_s) for name, kind, part in rows], columns=BAR)


def own_names(run: LoggedRun, column: str) -> list[str]:
    """Return the framework's names behind a standard column, of those that the log has."""
    names = NAMES.get(run.framework)
    if names is None:
        return []
    present = set(map(str, run.steps.columns))
    return list(dict.fromkeys((*names.used(column, present), *names.tracked().used(column, present))))


def _is_in_seconds(name: str) -> bool:
    """Whether a framework's own name is that of seconds: below a folder of times, or at its end."""
    folder, _, last = name.lower().rpartition("/")
    return bool(TIMING.search(folder) or IN_SECONDS.search(last)) and not NO_SECONDS.search(last)


def _is_anybodys_phase(name: str) -> bool:
    """Whether a column of nobody's framework may be a phase: it has a unit of seconds, and no standard column stands for it."""
    return (
        understood(name) is None
        and name not in STANDARD
        and UNIT_OF_SECONDS.search(name.lower()) is not None
        and not NO_PHASE.search(name.lower())
    )


def _own_parts(run: LoggedRun, column: str, values: np.ndarray, whole: np.ndarray) -> list[tuple[str, float]]:
    """Seconds under the framework's own names, where they are the whole phase; else empty."""
    parts = {name: float(np.nan_to_num(run.column(name)[whole]).mean()) for name in own_names(run, column)}
    parts = {name: part for name, part in parts.items() if part > 0}
    mean = float(np.nan_to_num(values[whole]).mean())
    return list(parts.items()) if abs(sum(parts.values()) - mean) <= FITS * mean else []


def _further(run: LoggedRun, left_s: np.ndarray) -> dict[str, np.ndarray]:
    """(s,) Seconds that the framework lists beside those of the phases, by its own names, as long as they fit.

    Args:
        left_s: (s,) what the phases leave of the step; a name that does not fit into it is a part of another one.
    """
    behind = [name for column in ("step_s", *PHASES) for name in own_names(run, column)]
    folders = {name.rpartition("/")[0] for name in behind if "/" in name and not name.endswith("/total")}  # beside parts
    taken = {*behind, *(name for names in _beside_names(run).values() for name in names)}
    others = [
        name
        for name in map(str, run.steps.columns)
        if name not in taken
        and _is_in_seconds(name)
        and (name.rpartition("/")[0] in folders or (not run.framework and _is_anybodys_phase(name)))
    ]
    columns = {name: np.nan_to_num(_possible(run, name, [])) for name in others}
    rounded = 1e-9 if run.framework else np.nan_to_num(FITS * run.column("step_s"))  # tables are written by hand
    found = {}
    for name in sorted(others, key=lambda name: -float(columns[name].sum())):
        part = np.where(np.isnan(left_s), 0.0, columns[name])
        if part.any() and (part <= np.nan_to_num(left_s) + rounded).all():
            found[name if run.framework else UNIT_OF_SECONDS.sub("", name)] = columns[name]
            left_s = left_s - part
    return found


def _possible(run: LoggedRun, name: str, notes: list[str]) -> np.ndarray:
    """A column of seconds without negative, infinite and absurdly long ones, of which a note tells."""
    if name not in run.steps.columns:
        return run.column(name)
    values = pd.to_numeric(run.steps[name], errors="coerce").to_numpy(dtype=float)
    for what, wrong in (("negative", values < 0), (f"above {LONGEST_S:,.0f} s", values > LONGEST_S)):
        if wrong.any():
            notes.append(f"{name} is {what} in {_listed(run, wrong)}; not used.")
    return np.where((values < 0) | (values > LONGEST_S), np.nan, values)


def _impossible_shares(run: LoggedRun) -> list[str]:
    """Say which efficiencies are above 1."""
    notes = []
    for name in map(str, run.steps.columns):
        if "mfu" not in re.split(r"[^a-z]+", name.lower()):
            continue
        values = run.column(name)
        if (values > 1).any():
            notes.append(
                f"{shown(name, 60)} is {np.nanmax(values):.3f}, above 1, in {_listed(run, values > 1)}: it was computed with "
                "the wrong peak of the GPU; not used."
            )
    return notes


def _beside_names(run: LoggedRun) -> dict[str, list[str]]:
    behind = {name for column in ("step_s", *PHASES) for name in own_names(run, column)}
    names = [name for name in map(str, run.steps.columns) if name not in behind and _is_in_seconds(name)]
    return {what: [name for name in names if word.search(name.lower())] for what, word in BESIDE.items()}


def _beside(run: LoggedRun) -> dict[str, np.ndarray]:
    """Seconds of validation and of checkpoints: of several names the longest, which contains the others."""
    found = {}
    for what, names in _beside_names(run).items():
        columns = [_possible(run, name, []) for name in names]
        columns = [column for column in columns if np.nansum(column) > 0]
        if columns:
            found[what] = max(columns, key=lambda column: float(np.nansum(column)))
    return found


def _usual(steps: np.ndarray, step_s: np.ndarray, beside: dict[str, np.ndarray], generate_s: np.ndarray) -> np.ndarray:
    """Whether each step is an ordinary one: see ``StepSeconds``."""
    more_s = np.sum([np.nan_to_num(values) for values in beside.values()], axis=0) if beside else np.zeros(len(step_s))
    known = ~np.isnan(step_s)
    longer = known & (more_s > WORTH_SAYING * step_s)
    without_s = step_s - more_s
    usual = _like_the_others(without_s) & ~_at_intervals(steps, without_s, generate_s)
    if longer.sum() <= OFTEN * known.sum() and (usual & known & ~longer).any():
        usual &= ~longer
    return np.asarray(usual)


def _like_the_others(step_s: np.ndarray) -> np.ndarray:
    """Whether each step's time is like that of the others; of few steps only the first one can differ."""
    known = step_s[~np.isnan(step_s)]
    if len(known) < FEW:
        usual = np.ones(len(step_s), dtype=bool)
        rest = known[1:]
        if len(rest) > 1 and not np.isnan(step_s[0]) and known[0] > SLOWER * rest.max() and rest.max() < SLOWER * rest.min():
            usual[0] = False
        return usual
    middle = float(np.median(known))
    spread = SPREAD * float(np.median(np.abs(known - middle)))
    slow, fast = max(SLOWER * middle, middle + spread), min(FASTER * middle, middle - spread)
    return np.asarray(np.isnan(step_s) | ((step_s <= slow) & (step_s >= fast)))


def _at_intervals(steps: np.ndarray, step_s: np.ndarray, generate_s: np.ndarray) -> np.ndarray:
    """Which steps are slower than all others and come at equal intervals, unless it is their generation that takes longer.

    They may be as many as the others, as where every second step validates, so no median tells them.
    """
    none = np.zeros(len(step_s), dtype=bool)
    in_order = np.sort(step_s[~np.isnan(step_s)])
    if len(in_order) < FEW or in_order[0] <= 0:
        return none
    apart = np.diff(np.log(in_order))
    slow = step_s >= in_order[int(np.argmax(apart)) + 1]
    if apart.max() <= np.log(SLOWER) or _interval(steps[slow]) is None or slow.sum() > OFTEN * len(in_order):
        return none
    others = ~slow & ~np.isnan(step_s)
    more_s = np.median(step_s[slow]) - np.median(step_s[others])
    generates_s = np.median(generate_s[slow]) - np.median(generate_s[others])
    return none if generates_s > more_s / 2 else slow


def _numbers(seconds: StepSeconds, are_medians: bool) -> list[Number]:
    known_s = ~np.isnan(seconds.step_s)
    usual = seconds.ordinary(seconds.step_s)
    what = "ordinary steps" if (~seconds.usual).any() else "steps"
    numbers = []
    if usual.any():
        numbers.append(mean_of("step_s", seconds.step_s[usual], what))
        if known_s.sum() > 1:
            numbers.append(number("step_least_s", float(seconds.step_s[known_s].min()), LOGGED, "the fastest step"))
            numbers.append(number("step_most_s", float(seconds.step_s[known_s].max()), LOGGED, "the slowest step"))
        if (~seconds.usual).any() or (seconds.outside and not seconds.single):
            numbers.append(mean_of("all_steps_s", seconds.whole_s, "steps, with all that the run does beside them"))
            how = "of the run's time would remain, were all its steps ordinary ones"
            numbers.append(number("ordinary_steps_share", seconds.ordinary_share, DERIVED, how))
    for column, values in seconds.phases.items():
        name = column.removesuffix("_s")
        known = seconds.usual & ~np.isnan(values)
        if known.any():
            numbers.append(mean_of(f"{name}_s", values[known], what))
        numbers += _share_numbers(name, values, seconds, what)
    whole = usual & ~np.isnan(seconds.unnamed_s)
    if seconds.phases and whole.any() and not (are_medians or (seconds.overlap & usual).any()):
        left = np.maximum(seconds.unnamed_s, 0.0)
        named_s = float((seconds.step_s - left)[whole].mean())
        numbers.append(number("named_s", named_s, DERIVED, "sum of the phases and parts of a step that the log names"))
        numbers.append(number("unnamed_s", float(left[whole].mean()), DERIVED, "step minus what the log names"))
        numbers += _share_numbers("unnamed", left, seconds, what)
    for name, values in {**seconds.beside, **seconds.outside}.items():
        took = values[values > 0]
        numbers.append(mean_of(f"{name}_s", took, f"steps with {name}"))
        numbers.append(total_of(f"{name}_total_s", took, f"steps with {name}"))
        numbers.append(number(f"{name}_steps", len(took), COUNTED, f"steps with seconds of {name}"))
    learner = _learner(seconds)
    if learner is not None:
        numbers += _share_numbers("learner", learner, seconds, what)
    return numbers


def _learner(seconds: StepSeconds) -> np.ndarray | None:
    """(s,) Learning with rewards and log probabilities; None where neither is logged."""
    parts = [seconds.phases[name] for name in ("learn_s", "prepare_s") if name in seconds.phases]
    if not parts:
        return None
    unknown = np.all([np.isnan(part) for part in parts], axis=0)
    return np.where(unknown, np.nan, np.sum([np.nan_to_num(part) for part in parts], axis=0))


def _most_of_the_learner(run: LoggedRun, seconds: StepSeconds, names: Sequence[str]) -> np.ndarray | None:
    """(s,) Seconds under some of the framework's own names, where they are most of what follows generation; else None."""
    learner = _learner(seconds)
    if learner is None or not names:
        return None
    columns = [_possible(run, name, []) for name in names]
    unknown = np.all([np.isnan(column) for column in columns], axis=0)
    values = np.where(unknown, np.nan, np.sum([np.nan_to_num(column) for column in columns], axis=0))
    both = seconds.ordinary(learner)
    most = both.any() and np.nansum(values[both]) > learner[both].sum() / 2
    return values if most and seconds.ordinary(values).any() else None


def _rewards(run: LoggedRun, seconds: StepSeconds) -> list[Number]:
    """The seconds of rewards and advantages, where they are most of what follows generation: nothing of a model is in them."""
    if "prepare_s" not in seconds.phases:
        return []
    names = [name for name in own_names(run, "prepare_s") if REWARDS.search(name) and not LOG_PROBABILITIES.search(name)]
    values = _most_of_the_learner(run, seconds, names)
    if values is None:
        return []
    what = "ordinary steps" if (~seconds.usual).any() else "steps"
    return [mean_of("rewards_s", values[seconds.ordinary(values)], what), *_share_numbers("rewards", values, seconds, what)]


def _largest_own_part(run: LoggedRun, seconds: StepSeconds) -> str:
    """Say which part of preparing is most of what follows generation, by its own name; empty where none is."""
    names = own_names(run, "prepare_s") if "prepare_s" in seconds.phases else []
    for name in names if len(names) > 1 or "learn_s" in seconds.phases else []:
        if (values := _most_of_the_learner(run, seconds, [name])) is not None:
            took = values[seconds.ordinary(values)].mean()
            return f", most of it {shown(name.rpartition('/')[2] or name, 60)} ({took:,.1f} s)"
    return ""


def _share_numbers(name: str, values: np.ndarray, seconds: StepSeconds, what: str) -> list[Number]:
    """The share of a phase in the ordinary steps, its range, and how much faster the step is at most without it."""
    both = seconds.ordinary(values) & (values <= seconds.step_s)
    if not both.any():
        return []
    shares = values[both] / seconds.step_s[both]
    share = float(values[both].sum() / seconds.step_s[both].sum())
    numbers = [number(f"{name}_share", share, DERIVED, f"its seconds over those of {len(shares):,} {what}")]
    if len(shares) > 1:
        numbers.append(number(f"{name}_least_share", float(shares.min()), DERIVED, "least of the steps"))
        numbers.append(number(f"{name}_most_share", float(shares.max()), DERIVED, "most of the steps"))
    if name != "wait" and share < 1 and not (seconds.overlap & seconds.usual).any():
        how = "1/(1 - share), Amdahl's law: so many times as fast is the step at most, were this infinitely fast"
        numbers.append(number(f"without_{name}_speedup", 1.0 / (1.0 - share), BOUND, how))
    return numbers


def _findings(run: LoggedRun, seconds: StepSeconds, numbers: dict[str, Number]) -> list[Finding]:
    findings: list[Finding] = []
    waits = seconds.share(seconds.phases["wait_s"]) if "wait_s" in seconds.phases else None
    counts = waits is None or waits <= FITS or synchronous(run)  # where training waits, faster training only waits longer
    findings += [one for one in _of_the_step(run, seconds, numbers) if counts or "sync_s" in one.proof]
    within = {what: np.where(np.isnan(seconds.step_s), np.nan, values) for what, values in seconds.beside.items()}
    for what, values in {**within, **({} if seconds.single else seconds.outside)}.items():
        at_stake = seconds.of_run(values / seconds.entry_steps if what in seconds.outside else values)
        took = values[values > 0]
        of = "the run's time"
        if len(values[values > 0]) == 1:  # nobody knows how often it comes
            of = "the only logged step" if seconds.single else "the logged time"
        takes = f"{what.capitalize()} {'take' if what.endswith('s') else 'takes'} {_per_cent(at_stake)} of {of}"
        each = f"{took.mean():,.1f} s in {_which(seconds.steps[values > 0])}"
        together = f", {took.sum():,.1f} s together" if len(took) > 1 else ""
        ordinary = f"; an ordinary step takes {numbers['step_s'].value:,.1f} s" if "step_s" in numbers else ""
        findings += _finding("beside the step", at_stake, f"{takes}: {each}{together}{ordinary}.", (f"{what}_s", "step_s"))
    return findings + _slow_steps(run, seconds, numbers)


def _of_the_step(run: LoggedRun, seconds: StepSeconds, numbers: dict[str, Number]) -> list[Finding]:
    findings: list[Finding] = []
    learner = _learner(seconds)
    if learner is not None:
        at_stake, sentence = _learner_limit(run, seconds, numbers, learner)
        findings += _finding("learner", at_stake, sentence, _proof(numbers, "learn", "prepare"))
    if "sync_s" in seconds.phases:
        took = seconds.phases["sync_s"]
        sentence = f"Sending weights takes {_of_a_step(seconds, took)}."
        findings += _finding("beside the step", seconds.phase_of_run(took), sentence, ("sync_s", "step_s"))
    for name, values in seconds.further.items():
        sentence = f"{shown(name, 60)} takes {_of_a_step(seconds, values)}."
        findings += _finding("beside the step", seconds.phase_of_run(values), sentence, ("named_s", "step_s"))
    if "unnamed_s" in numbers and seconds.names_any:
        left_s = np.maximum(seconds.unnamed_s, 0.0)
        sentence = f"The log does not name {_of_a_step(seconds, left_s)}."
        findings += _finding("beside the step", seconds.phase_of_run(left_s), sentence, ("unnamed_s", "step_s"))
    return findings


def _of_a_step(seconds: StepSeconds, values: np.ndarray) -> str:
    """A part of an ordinary step, as a share and in seconds; of steps that have both."""
    both = seconds.ordinary(values)
    took, step_s = (float(each[both].sum() / max(both.sum(), 1)) for each in (values, seconds.step_s))
    return f"{_per_cent(took / step_s if step_s else 0.0)} of a step, {_seconds(took)} of {_seconds(step_s)} s"


def _seconds(value: float) -> str:
    """Return seconds with one decimal, and small ones with two significant digits."""
    return f"{value:,.1f}" if value >= 1 or value == 0 else f"{value:#.2g}"


def _finding(kind: str, at_stake: float, sentence: str, proof: Sequence[str]) -> list[Finding]:
    return [Finding(kind, min(1.0, at_stake), sentence, tuple(proof))] if at_stake >= WORTH_SAYING else []


def _proof(numbers: dict[str, Number], *names: str) -> tuple[str, ...]:
    keys = [f"{name}_share" for name in names if f"{name}_share" in numbers]
    return tuple(keys) if len(keys) > 1 else (*keys, "step_s")


def ordinary_share(found: Collected) -> float:
    """Return the share of the run's time that would remain, were all its steps ordinary ones; 1 where all are."""
    return found.numbers.value("ordinary_steps_share") or 1.0


def _learner_limit(run: LoggedRun, seconds: StepSeconds, numbers: dict[str, Number], learner: np.ndarray) -> tuple[float, str]:
    """Return what a faster learner wins at most of the run's time, and the sentence.

    Where generation goes on beside it, a step takes no less than the seconds of generation, where they are known.
    """
    at_stake = seconds.phase_of_run(learner)
    known = [key for key in ("learn_s", "prepare_s") if key in numbers]
    parts = [f"{PHASES[key]} {value:,.1f} s" for key in known if (value := numbers[key].value) >= 0.05]
    beside = "wait_s" in numbers
    own = _largest_own_part(run, seconds)
    which = own or (f": {' and '.join(parts)}" if len(known) > 1 and parts else "")
    sentence = f"{'The learner' if beside else 'What follows generation'} takes {_of_a_step(seconds, learner)}{which}."
    if "learner_share" not in numbers or "step_s" not in numbers:
        return at_stake, sentence
    limit = numbers.get("without_learner_speedup")
    amdahl = limit.value if limit is not None else np.inf  # of a learner that is the whole step, no bound
    times, follows = amdahl, " as long as generation can follow" if beside else ""
    generates = _possible(run, "generate_s", [])
    generates = generates[seconds.ordinary(generates)]
    generate_s, step_s = float(generates.mean()) if len(generates) else 0.0, numbers["step_s"].value
    if beside and 0 < generate_s <= step_s < times * generate_s:
        times, follows = step_s / generate_s, f", as generation takes {generate_s:,.1f} s"
        at_stake *= min(1.0, (1.0 - 1.0 / times) / (1.0 - 1.0 / amdahl))
    if np.isinf(times):
        return at_stake, sentence
    return at_stake, f"{sentence} Were it infinitely fast, a step would be at most {times:.2f} times as fast{follows}."


def _slow_steps(run: LoggedRun, seconds: StepSeconds, numbers: dict[str, Number]) -> list[Finding]:
    """What steps that are slower than the others cost, by the phase that makes them slow.

    Steps whose responses are less stale than those of others are the start of an asynchronous run (``asynchronous``).
    """
    if seconds.usual.all() or "step_s" not in numbers:
        return []
    more_s = np.sum([np.nan_to_num(values) for values in seconds.beside.values()], axis=0) if seconds.beside else 0.0
    slow = ~seconds.usual & (seconds.step_s - more_s > SLOWER * numbers["step_s"].value)
    stale = run.column("off_policy_steps")
    if not slow.any() or ((~np.isnan(stale[slow])).any() and np.nanmin(stale[slow]) < np.nanmax(stale)):
        return []
    not_named = np.maximum(seconds.unnamed_s, 0.0) if seconds.phases else seconds.step_s
    parts = {**seconds.phases, NOT_NAMED: not_named}
    excess = {}
    for name, values in parts.items():
        typical = np.nanmedian(values[seconds.usual]) if (~np.isnan(values[seconds.usual])).any() else np.nan
        excess[name] = np.where(slow, np.maximum(values - typical, 0.0), np.nan)
    most = max(excess, key=lambda name: float(np.nansum(excess[name])))
    if most in ("generate_s", "wait_s") or np.nansum(excess[most]) <= 0:
        return []
    at_stake = seconds.of_run(excess[most])
    kind = "learner" if most in ("learn_s", "prepare_s") else "beside the step"
    where = "that the log does not name" if most == NOT_NAMED else f"of {PHASES[most]}"
    which = _which(seconds.steps[slow])
    sentence = (
        f"{which.capitalize()} {'takes' if slow.sum() == 1 else 'take'} longer than the others, up to "
        f"{np.nanmax(seconds.step_s[slow]):,.1f} s where an ordinary step takes {numbers['step_s'].value:,.1f} s: "
        f"{np.nansum(excess[most]):,.1f} s {where}, {_per_cent(at_stake)} of the run's time{_cause(seconds.steps, slow)}."
    )
    return _finding(kind, at_stake, sentence, ("step_most_s", "step_s"))


def _cause(steps: np.ndarray, slow: np.ndarray) -> str:
    """The usual cause of such steps, where their numbers hint at it."""
    if slow[0] and slow.sum() == 1:
        return "; compilation and warming up are what a first step has more than others"
    if slow[-1] and slow.sum() == 1:
        return "; a last validation and checkpoint are what a last step has more than others"
    return "; validation and checkpoints come at such intervals" if _interval(steps[slow]) else ""


def _of_unknown_interval(seconds: StepSeconds) -> list[str]:
    """Say what a single step has beside it, of which nobody knows how often it comes."""
    return [
        f"{what.capitalize()} took {np.nansum(values):,.1f} s beside a step of {np.nansum(seconds.step_s):,.1f} s; how often "
        f"{'they come' if what.endswith('s') else 'it comes'}, a single logged step does not tell."
        for what, values in (seconds.outside.items() if seconds.single else ())
    ]


def _growing(seconds: StepSeconds) -> list[str]:
    """Say which phases grow or shrink with every step, so that their means are those of no step."""
    said = []
    for column, values in seconds.phases.items():
        known = values[~np.isnan(values)]
        if len(known) < 3 or known.min() <= 0 or known.max() < GROWN * known.min():
            continue
        apart = np.diff(known)
        if known.max() < WORTH_SAYING * np.nan_to_num(seconds.step_s).max() or not ((apart > 0).all() or (apart < 0).all()):
            continue
        grows = "grows" if apart[0] > 0 else "shrinks"
        said.append(f"{PHASES[column]} {grows} with every logged step, from {known[0]:,.1f} to {known[-1]:,.1f} s")
    if not said:
        return []
    sentence = "; ".join(said)
    return [f"{sentence[0].upper()}{sentence[1:]}: a mean is that of no step, and later steps may take longer or shorter."]


def _differing(seconds: StepSeconds) -> list[str]:
    """Say which steps differ from the ordinary ones, so that the means leave them out: those with validation apart."""
    ordinary = seconds.step_s[seconds.ordinary(seconds.step_s)]
    differ = ~seconds.usual & ~np.isnan(seconds.step_s)
    if not len(ordinary) or not differ.any():
        return []
    notes = []
    for what, values in seconds.beside.items():
        having = differ & (values > 0)
        if having.any():
            more = f"of which {values[having].mean():,.1f} s are {what}"
            notes.append(_not_in_the_means(seconds, having, float(ordinary.mean()), more))
            differ &= ~having
    return [*notes, _not_in_the_means(seconds, differ, float(ordinary.mean()))] if differ.any() else notes


def _not_in_the_means(seconds: StepSeconds, which: np.ndarray, ordinary_s: float, more: str = "") -> str:
    low, high = float(seconds.step_s[which].min()), float(seconds.step_s[which].max())
    took = f"{low:,.1f} s" if low == high else f"{low:,.1f} to {high:,.1f} s"
    several = which.sum() > 1 and not _interval(seconds.steps[which])
    named, takes, are = _which(seconds.steps[which]).capitalize(), "take" if several else "takes", "are" if several else "is"
    more = f", {more}," if more else ""
    return f"{named} {takes} {took}{more} and {are} not in the means; other steps take {ordinary_s:,.1f} s."


def _overlap_note(seconds: StepSeconds) -> str:
    at = int(np.argmax(seconds.overlap))
    named = float(seconds.step_s[at] - seconds.left_s[at])
    return (
        f"The phases of step {seconds.steps[at]} are {named:,.1f} s of a step of {seconds.step_s[at]:,.1f} s: they overlap, or "
        "one contains another, so their shares do not add up."
    )


def medians(run: LoggedRun) -> bool:
    """Return whether the log's seconds are medians, which do not add up."""
    named = (str(name) for name in run.steps.columns if {"median", "p50"} & set(re.split(r"[^a-z0-9]+", str(name).lower())))
    return any((column := understood(name)) is not None and column.means in ("step_s", *PHASES) for name in named)


def _which(steps: np.ndarray) -> str:
    """Name steps: every how many, or their numbers."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    every = _interval(steps)
    numbers = ", ".join(str(step) for step in steps[:4])
    if every:
        return f"every {_ordinal(every)} step ({numbers}{', ...' if len(steps) > 4 else ''})"
    return f"steps {numbers}" + (f" and {len(steps) - 4:,} more" if len(steps) > 4 else "")


def _interval(steps: np.ndarray) -> int | None:
    """The distance of steps that come at equal distances of at least 2, where there are several; else None."""
    apart = np.unique(np.diff(steps))
    return int(apart[0]) if len(steps) > 2 and len(apart) == 1 and apart[0] > 1 else None


def _ordinal(count: int) -> str:
    """Return such as 2nd, 3rd, 10th, 21st."""
    end = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{end}"


def _listed(run: LoggedRun, which: np.ndarray) -> str:
    return _which(run.steps["step"].to_numpy()[which])


def _per_cent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
