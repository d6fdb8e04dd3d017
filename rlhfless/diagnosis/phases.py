"""Where the seconds of a step go, phase by phase, what nobody named, and how much faster the step is at most without a phase.

Amdahl's law is the bound: a phase with the share s of a step, infinitely fast, makes the step at most 1/(1-s) as fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import BOUND, DERIVED, LOGGED, Collected, Finding, Number, Part, number
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.scalars import runs_of
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
NOT_NAMED = "not named"

TIMES_LINE = {
    "trl": "report_to='wandb', whose run file has the seconds of every call ('profiling/Time taken: ...'),",
    "verl": "trainer.logger=['console'], whose lines have timing_s/gen and timing_s/step,",
    "openrlhf": "its console lines 'Global step', which have timing/generation and timing/step_total,",
}
"""The line of a logger that writes the seconds of a step's phases, by framework; the beginning of a sentence."""
ANY_LINE = "a log with the seconds of generation and of the whole step"

LONGEST_S = 1e8  # three years: no step takes longer
FITS = 0.01  # of a step: phases whose sum is longer than the step by more overlap
SLOWER, FASTER = 1.25, 0.8  # times the median: a step that differs from the others
SPREAD = 6.0  # times the median deviation from the median, which it has to differ by, too
FEW = 5  # steps of which the usual one can be told
WORTH_SAYING = 0.03  # of the run's time
SYNCHRONOUS = 0.9  # of generation: where training waits for so much of it, generation and training take turns

BESIDE = {
    "validation": re.compile(r"(?:^|[^a-z])(?:test|testing|eval|evaluate|evaluation|val|validate|validation)(?:[^a-z]|$)"),
    "checkpoints": re.compile(r"(?:^|[^a-z])(?:checkpoint|checkpoints|checkpointing|save)(?:[^a-z]|$)"),
}
"""What frameworks do between steps, by words in their own names of seconds."""
TIMING = re.compile(r"(?:^|[^a-z])(?:timing|time|seconds)(?:[^a-z]|$)")
IN_SECONDS = re.compile(r"(?:^|[^a-z])(?:time|seconds|sec|s)$")
NO_SECONDS = re.compile(r"(?:^|[^a-z])(?:ratio|rate|per|tokens|percent|fraction|count|std|min|max|mean|tflops)(?:[^a-z]|$)")


@dataclass(frozen=True, eq=False)
class StepSeconds:
    """Seconds of a run's steps; NaN where unknown.

    Attributes:
        steps: (s,) numbers of the steps. step_s: (s,) whole steps.
        phases: (s,) by standard column: what each takes of the step. Where training goes on beside generation, this is what
            it waits for it, and not all of generation.
        further: (s,) what else the framework lists in the step, by its own names.
        beside: (s,) validation and checkpoints, where the step contains them. outside: (s,) where it does not.
        usual: (s,) steps that do not differ from the others.
        notes: what was not used, and why.
    """

    steps: np.ndarray
    step_s: np.ndarray
    phases: dict[str, np.ndarray]
    further: dict[str, np.ndarray]
    beside: dict[str, np.ndarray]
    outside: dict[str, np.ndarray]
    usual: np.ndarray
    notes: tuple[str, ...]

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
    def overlap(self) -> np.ndarray:
        """(s,) whether the phases of a step are together longer than the step."""
        return np.asarray(self.left_s < -FITS * self.step_s)

    def share(self, seconds: np.ndarray) -> float | None:
        """Return the share of some seconds in the time of the steps that have them; None where no step has both."""
        both = ~np.isnan(seconds) & ~np.isnan(self.step_s)
        return float(seconds[both].sum() / self.step_s[both].sum()) if both.any() else None

    def of_run(self, seconds: np.ndarray) -> float:
        """Return the share of some seconds in the whole run as logged; steps that lack them did not spend any."""
        total = np.nansum(self.step_s) + sum(np.nansum(values) for values in self.outside.values())
        return float(np.nansum(np.where(np.isnan(self.step_s), np.nan, seconds)) / total) if total > 0 else 0.0

    def phase_of_run(self, seconds: np.ndarray) -> float:
        """Return the share of a phase in the whole run as logged; steps that lack it are like those that have it."""
        return (self.share(seconds) or 0.0) * self.of_run(self.step_s)


def phases(run: LoggedRun, found: Collected) -> Part:
    """Return seconds and shares of the phases, what they limit, which steps differ, and what is impossible in the log."""
    seconds = step_seconds(run)
    notes = [*seconds.notes, *_impossible_shares(run), *_differing(seconds)]
    numbers = list(_numbers(seconds, medians(run)))
    findings = [] if seconds.overlap.any() else _findings(run, seconds, {one.key: one for one in numbers})
    if seconds.overlap.any():
        notes.append(_overlap_note(seconds))
    unknown: tuple[str, ...] = ()
    if seconds.phases and np.isnan(seconds.step_s).all() and "wait_s" not in seconds.phases:
        unknown = (f"What share of a step each phase is: {TIMES_LINE.get(run.framework, ANY_LINE)} would tell.",)
    return Part(tuple(numbers), tuple(findings), cannot_say=unknown, notes=tuple(notes))


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
        (beside if fits[values > 0].all() else outside)[what] = values
    left_s = step_s - named - sum((np.nan_to_num(values) for values in beside.values()), np.zeros(len(step_s)))
    further = _further(run, left_s) if parts else {}
    steps = run.steps["step"].to_numpy() if len(run.steps) else np.zeros(0, dtype=int)
    return StepSeconds(steps, step_s, parts, further, beside, outside, _usual(step_s), tuple(notes))


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


def step_bar(run: LoggedRun) -> pd.DataFrame:
    """Return one usual step as logged: rows ``phase, kind, seconds, share``, the part that nobody named included.

    Phases have the framework's own names where the log has them; their kind is one of ``PHASES``, or empty. Without rows where
    the log has no time of a step, where phases overlap, so that they are no parts of it, and of several runs at once.
    """
    if len(runs_of(run.steps)) > 1:
        return pd.DataFrame(columns=BAR)
    seconds = step_seconds(run)
    whole = seconds.usual & ~np.isnan(seconds.unnamed_s)
    if not whole.any() or not (seconds.phases or seconds.beside) or (seconds.overlap & whole).any():
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
    either = dict.fromkeys((*names.own(column), *names.tracked().own(column)))
    return [name for name in either if name in run.steps.columns]


def _is_in_seconds(name: str) -> bool:
    """Whether a framework's own name is that of seconds: below a folder of times, or at its end."""
    folder, _, last = name.lower().rpartition("/")
    return bool(TIMING.search(folder) or IN_SECONDS.search(last)) and not NO_SECONDS.search(last)


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
        if name not in taken and name.rpartition("/")[0] in folders and _is_in_seconds(name)
    ]
    columns = {name: np.nan_to_num(_possible(run, name, [])) for name in others}
    found = {}
    for name in sorted(others, key=lambda name: -float(columns[name].sum())):
        part = np.where(np.isnan(left_s), 0.0, columns[name])
        if part.any() and (part <= np.nan_to_num(left_s) + 1e-9).all():
            found[name] = columns[name]
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


def _usual(step_s: np.ndarray) -> np.ndarray:
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


def _numbers(seconds: StepSeconds, are_medians: bool) -> list[Number]:
    usual = seconds.usual & ~np.isnan(seconds.step_s)
    many = "mean of the usual steps" if (~seconds.usual).any() else "mean of the steps" if usual.sum() > 1 else "the step"
    numbers = []
    if usual.any():
        all_s = seconds.step_s[~np.isnan(seconds.step_s)]
        numbers.append(number("step_s", float(seconds.step_s[usual].mean()), LOGGED, f"{many}, as logged"))
        if len(all_s) > 1:
            numbers.append(number("step_least_s", float(all_s.min()), LOGGED, "the fastest step"))
            numbers.append(number("step_most_s", float(all_s.max()), LOGGED, "the slowest step"))
    for column, values in seconds.phases.items():
        name = column.removesuffix("_s")
        known = seconds.usual & ~np.isnan(values)
        if known.any():
            numbers.append(number(f"{name}_s", float(values[known].mean()), LOGGED, f"{many}, as logged"))
        numbers += _share_numbers(name, values, seconds, many)
    whole = usual & ~np.isnan(seconds.unnamed_s)
    if seconds.phases and whole.any() and not (are_medians or (seconds.overlap & usual).any()):
        left = np.maximum(seconds.unnamed_s, 0.0)
        named_s = float((seconds.step_s - left)[whole].mean())
        numbers.append(number("named_s", named_s, DERIVED, "sum of the phases and parts of a step that the log names"))
        numbers.append(number("unnamed_s", float(left[whole].mean()), DERIVED, "step minus what the log names"))
        numbers += _share_numbers("unnamed", left, seconds, many)
    for what, values in {**seconds.beside, **seconds.outside}.items():
        numbers.append(number(f"{what}_s", float(np.nansum(values)), LOGGED, "sum over the steps of the log"))
    learner = _learner(seconds)
    if learner is not None and {"learn_s", "prepare_s"} <= set(seconds.phases):
        numbers += _share_numbers("learner", learner, seconds, many)
    return numbers


def _learner(seconds: StepSeconds) -> np.ndarray | None:
    """(s,) Learning with rewards and log probabilities; None where neither is logged."""
    parts = [seconds.phases[name] for name in ("learn_s", "prepare_s") if name in seconds.phases]
    if not parts:
        return None
    unknown = np.all([np.isnan(part) for part in parts], axis=0)
    return np.where(unknown, np.nan, np.sum([np.nan_to_num(part) for part in parts], axis=0))


def _share_numbers(name: str, values: np.ndarray, seconds: StepSeconds, many: str) -> list[Number]:
    """The share of a phase in the usual steps, its range, and how much faster the step is at most without it."""
    both = seconds.usual & ~np.isnan(values) & ~np.isnan(seconds.step_s) & (values <= seconds.step_s)
    if not both.any():
        return []
    shares = values[both] / seconds.step_s[both]
    share = float(values[both].sum() / seconds.step_s[both].sum())
    numbers = [number(f"{name}_share", share, DERIVED, f"its seconds over those of the step, {many}")]
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
    if waits is None or waits <= FITS or synchronous(run):  # where training waits, faster training only waits longer
        findings += _of_the_step(run, seconds, numbers)
    for what, values in {**seconds.beside, **seconds.outside}.items():
        at_stake = seconds.of_run(values)
        which = _which(seconds.steps[np.nan_to_num(values) > 0])
        takes = f"{what.capitalize()} {'take' if what.endswith('s') else 'takes'}"
        sentence = f"{takes} {_per_cent(at_stake)} of the run's time, {np.nansum(values):,.1f} s in {which}."
        findings += _finding("beside the step", at_stake, sentence, (f"{what}_s", "step_s"))
    return findings + _slow_steps(seconds, numbers)


def _of_the_step(run: LoggedRun, seconds: StepSeconds, numbers: dict[str, Number]) -> list[Finding]:
    findings: list[Finding] = []
    learner = _learner(seconds)
    if learner is not None:
        at_stake = seconds.phase_of_run(learner)
        findings += _finding("learner", at_stake, _learner_sentence(numbers, at_stake), _proof(numbers, "learn", "prepare"))
    if "sync_s" in seconds.phases:
        at_stake = seconds.phase_of_run(seconds.phases["sync_s"])
        sentence = f"Sending weights takes {_per_cent(at_stake)} of the run's time{_seconds(numbers, 'sync_s')}."
        findings += _finding("beside the step", at_stake, sentence, ("sync_s", "step_s"))
    for name, values in seconds.further.items():
        at_stake, mean_s = seconds.of_run(values), float(values[seconds.usual].mean())
        sentence = f"{shown(name, 60)} takes {_per_cent(at_stake)} of the run's time, {mean_s:,.1f} s a step."
        findings += _finding("beside the step", at_stake, sentence, ("named_s", "step_s"))
    if "unnamed_s" in numbers:
        at_stake = seconds.phase_of_run(np.where(seconds.usual, np.maximum(seconds.unnamed_s, 0.0), np.nan))
        sentence = f"{_per_cent(at_stake)} of the run's time has no name in the log{_seconds(numbers, 'unnamed_s')}."
        findings += _finding("beside the step", at_stake, sentence, ("unnamed_s", "step_s"))
    return findings


def _finding(kind: str, at_stake: float, sentence: str, proof: Sequence[str]) -> list[Finding]:
    return [Finding(kind, min(1.0, at_stake), sentence, tuple(proof))] if at_stake >= WORTH_SAYING else []


def _proof(numbers: dict[str, Number], *names: str) -> tuple[str, ...]:
    keys = [f"{name}_share" for name in names if f"{name}_share" in numbers]
    return tuple(keys) if len(keys) > 1 else (*keys, "step_s")


def _learner_sentence(numbers: dict[str, Number], at_stake: float) -> str:
    parts = [f"{PHASES[key]} {numbers[key].value:,.1f} s" for key in ("learn_s", "prepare_s") if key in numbers]
    of = f" of a step of {numbers['step_s'].value:,.1f} s" if "step_s" in numbers else ""
    name = "learner" if "learner_share" in numbers else "learn" if "learn_share" in numbers else "prepare"
    limit = numbers.get(f"without_{name}_speedup")
    follows = " as long as generation can follow" if "wait_s" in numbers else ""
    were = " Were it infinitely fast, a step would be at most"
    faster = "" if limit is None else f"{were} {limit.value:.2f} times as fast{follows}."
    return f"What follows generation takes {_per_cent(at_stake)} of the run's time: {' and '.join(parts)}{of}.{faster}"


def _slow_steps(seconds: StepSeconds, numbers: dict[str, Number]) -> list[Finding]:
    """What steps that are slower than the others cost, by the phase that makes them slow."""
    if seconds.usual.all():
        return []
    slow = ~seconds.usual & (seconds.step_s > SLOWER * np.nanmedian(seconds.step_s))
    if not slow.any():
        return []
    parts = {**seconds.phases, NOT_NAMED: np.maximum(seconds.unnamed_s, 0.0)}
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
        f"{np.nanmax(seconds.step_s[slow]):,.1f} s where a usual step takes {numbers['step_s'].value:,.1f} s: "
        f"{np.nansum(excess[most]):,.1f} s {where}, {_per_cent(at_stake)} of the run's time{_cause(seconds.steps, slow)}."
    )
    return _finding(kind, at_stake, sentence, ("step_most_s", "step_s"))


def _cause(steps: np.ndarray, slow: np.ndarray) -> str:
    """The usual cause of such steps, where their numbers hint at it."""
    if slow[0] and slow.sum() == 1:
        return "; compilation and warming up are what a first step has more than others"
    return "; validation and checkpoints come at such intervals" if _interval(steps[slow]) else ""


def _differing(seconds: StepSeconds) -> list[str]:
    """Say which steps differ from the others, so that the means leave them out."""
    differ = ~seconds.usual
    if not differ.any():
        return []
    usual = float(seconds.step_s[seconds.usual & ~np.isnan(seconds.step_s)].mean())
    low, high = float(seconds.step_s[differ].min()), float(seconds.step_s[differ].max())
    took = f"{low:,.1f} s" if differ.sum() == 1 else f"{low:,.1f} to {high:,.1f} s"
    which, are = _which(seconds.steps[differ]).capitalize(), "is" if differ.sum() == 1 else "are"
    return [f"{which} ({took}) {are} not in the means; other steps take {usual:,.1f} s."]


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
        return f"every {every}th step ({numbers}{', ...' if len(steps) > 4 else ''})"
    return f"steps {numbers}" + (f" and {len(steps) - 4:,} more" if len(steps) > 4 else "")


def _interval(steps: np.ndarray) -> int | None:
    """The distance of steps that come at equal distances of at least 3, where there are several; else None."""
    apart = np.unique(np.diff(steps))
    return int(apart[0]) if len(steps) > 2 and len(apart) == 1 and apart[0] > 2 else None


def _listed(run: LoggedRun, which: np.ndarray) -> str:
    return _which(run.steps["step"].to_numpy()[which])


def _seconds(numbers: dict[str, Number], key: str) -> str:
    both = key in numbers and "step_s" in numbers
    return f", {numbers[key].value:,.1f} of {numbers['step_s'].value:,.1f} s a step" if both else ""


def _per_cent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
