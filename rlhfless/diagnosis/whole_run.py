"""Seconds per step of logs that have no phases, and what the whole run takes: hours, GPU-hours, dollars.

A progress bar counts optimizer steps. TRL generates for several of them at once, so its seconds per step are no seconds of a
generation and a learning step.
"""

from __future__ import annotations

import numpy as np

from rlhfless.diagnosis.gpus import Gpus, gpus_of, same_in_all
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import BOUND, DERIVED, LOGGED, Collected, Finding, Number, Part, counted, number
from rlhfless.diagnosis.phases import ANY_LINE, PHASES, TIMES_LINE, step_seconds

SAME = 0.02  # relative difference of two ways to the seconds of a step
ROUNDING = 0.0005  # of steps per second at a log's end
TIMES = frozenset({"elapsed_s", "seconds_per_step", "run_s", "steps_per_s"})  # facts from which seconds of a step follow
LARGEST = 1e9  # of a number of the whole run: seconds of thirty years


def whole_run(run: LoggedRun, found: Collected) -> Part:
    """Return seconds per step by the progress bar or the end of the log, and hours and cost of the run as planned.

    ``found`` has the numbers of ``phases``.
    """
    gpus = gpus_of(run)
    numbers: list[Number] = []
    notes: list[str] = []
    bar = _by_the_bar(run, notes)
    if bar is not None:
        numbers.append(bar)
    hours = _hours(run, bar)
    if hours is not None:
        numbers.append(hours)
    numbers += _cost(run, found, gpus, hours)
    split, unknown = _idle_while_few_generate(run, found, gpus)
    return Part((*numbers, *split), cannot_say=unknown or _phases_unknown(run, found), notes=tuple(notes))


def time_alone(found: Collected) -> Part:
    """Return what is known of a step's time, for a log in which no section finds a limit, and which has no phases."""
    step = found.numbers.get("step_s") or found.numbers.get("bar_step_s")
    if step is None or found.findings or any(phase in found.numbers for phase in PHASES):
        return Part()
    hours = found.numbers.get("run_hours")
    whole = "" if hours is None else f", and the run {_ends(hours)} hours"
    sentence = (
        f"A step takes {_ends(step)} s{whole}; what limits it this log cannot say, as it has no seconds of generation and "
        "learning."
    )
    proof = (step.key,) if hours is None else (step.key, hours.key)
    return Part((), (Finding("cannot say", 0.0, sentence, proof),))


def _ends(one: Number) -> str:
    low, high = (f"{end:,.3g}" if end < 1 else f"{end:,.1f}" for end in (one.low, one.high))
    return low if low == high else f"{low} to {high}"


def _phases_unknown(run: LoggedRun, found: Collected) -> tuple[str, ...]:
    """What would tell where the seconds of a step go, where the log has steps or seconds of a run and no seconds of a phase."""
    timed = len(run.steps) or TIMES & _possible(run).keys()
    if run.responses is not None or not timed or any(phase in found.numbers for phase in PHASES):
        return ()
    return (f"Where the seconds of a step go: {TIMES_LINE.get(run.framework, ANY_LINE)} would tell.",)


def _possible(run: LoggedRun) -> dict[str, float]:
    """The facts of a run that are above 0 and not absurdly large; those of a table of runs are in its row."""
    of_row = {name: value for name in ("run_s", "steps_done") if (value := same_in_all(run, name)) is not None}
    return {name: value for name, value in {**of_row, **run.facts}.items() if 0 < value <= LARGEST}


def _by_the_bar(run: LoggedRun, notes: list[str]) -> Number | None:
    """Seconds per step of the progress bar, or of the whole run at its end; a range where the two ways of the bar disagree."""
    known = _possible(run)
    if impossible := sorted(set(run.facts) - set(known)):
        notes.append(f"{', '.join(impossible)} {'is' if len(impossible) == 1 else 'are'} no possible number; not used.")
    done = known.get("steps_done")
    average = known["elapsed_s"] / done if done and "elapsed_s" in known else None
    stated = known.get("seconds_per_step")
    if average is not None and stated is not None:
        if abs(average - stated) > SAME * average:
            how = "elapsed seconds over steps, and the bar's own rate, which is of its last steps"
            return Number("bar_step_s", min(average, stated), max(average, stated), DERIVED, how)
        average = None  # the bar's elapsed time is in whole seconds
    if average is not None:
        return number("bar_step_s", average, DERIVED, "elapsed seconds over steps of the progress bar")
    if stated is not None:
        return number("bar_step_s", stated, LOGGED, "rate of the progress bar")
    return _of_the_whole_run(known, done)


def _of_the_whole_run(known: dict[str, float], done: float | None) -> Number | None:
    """Seconds per step by what a log says at its end; its steps per second have three decimals."""
    took, planned, rate = known.get("run_s"), known.get("planned_steps"), known.get("steps_per_s", 0.0)
    low, high = (1.0 / (rate + ROUNDING), 1.0 / (rate - ROUNDING)) if rate > ROUNDING else (0.0, np.inf)
    steps = done or (planned if took and planned and low <= took / planned <= high else None)
    if took and steps:
        return number("bar_step_s", took / steps, DERIVED, "seconds of the run over its steps")
    if not rate > ROUNDING:
        return None
    return Number("bar_step_s", low, high, DERIVED, "1 over the steps per second at the log's end, which are rounded")


def _hours(run: LoggedRun, bar: Number | None) -> Number | None:
    """Hours of the whole run: as logged at its end, else as planned, else of the logged steps alone."""
    known = _possible(run)
    planned, took_s = known.get("planned_steps"), known.get("run_s")
    if took_s is not None:
        return number("run_hours", took_s / 3600, LOGGED, "seconds of the run at the log's end")
    if planned is not None and bar is not None:
        how = f"{counted(planned, 'planned step')} at the seconds per step of the progress bar"
        return Number("run_hours", planned * bar.low / 3600, planned * bar.high / 3600, DERIVED, how)
    seconds = step_seconds(run)
    step_s = seconds.whole_s  # of all steps, with those that validate: all of them are paid for
    first_differs = len(step_s) > 1 and seconds.differs_once
    later_s = step_s[1:][~np.isnan(step_s[1:])] if first_differs else step_s[~np.isnan(step_s)]
    step_s = step_s[~np.isnan(step_s)]
    if not len(step_s):
        return None
    if planned is not None:
        together = known.get("steps_per_generation", 1.0)  # optimizer steps whose seconds a row has
        to_come = max(0.0, planned / together - seconds.entry_steps * len(step_s))
        but_first = ", without the first" if first_differs else ""
        how = f"{counted(planned, 'planned step')} at the mean of the logged ones{but_first}"
        return number("run_hours", (seconds.total_s + to_come * later_s.mean()) / 3600, DERIVED, how)
    logged = seconds.entry_steps * len(step_s)
    return number("logged_hours", seconds.total_s / 3600, DERIVED, f"logged steps and no others, {logged:,.0f} of them")


def _cost(run: LoggedRun, found: Collected, gpus: Gpus, hours: Number | None) -> list[Number]:
    """GPU-hours and dollars, where the GPUs are known; of a step, too."""
    if gpus.total is None or len(run.allocations):
        return []
    numbers, held = [], counted(gpus.total, "GPU")
    step_s = found.numbers.value("step_s")
    if step_s is not None:
        how = f"{held} for the seconds of an ordinary step"
        numbers.append(number("gpu_hours_per_step", gpus.total * step_s / 3600, DERIVED, how))
    if hours is None:
        return numbers
    whole = Number("gpu_hours", gpus.total * hours.low, gpus.total * hours.high, DERIVED, f"{held}; {hours.how}")
    numbers.append(whole)
    price = run.stated.usd_per_gpu_hour
    if price is not None:
        how = f"{held} at {price:g} USD an hour each; {hours.how}"
        numbers.append(Number("usd", price * whole.low, price * whole.high, DERIVED, how))
    return numbers


def _idle_while_few_generate(run: LoggedRun, found: Collected, gpus: Gpus) -> tuple[list[Number], tuple[str, ...]]:
    """What idles at most while only some GPUs generate: a number where the share of generation is known, else in words."""
    if gpus.total is None or gpus.generate is None or not 0 < gpus.generate < gpus.total:
        return [], ()
    if not all(np.isnan(run.column(name)).all() for name in ("wait_s", "off_policy_steps")):
        return [], ()  # training goes on beside generation
    others = 1.0 - gpus.generate / gpus.total
    share = found.numbers.value("generate_share")
    how = f"{gpus.total - gpus.generate:,.0f} of {counted(gpus.total, 'GPU')}, where they do nothing while the others generate"
    if share is not None:
        return [number("learner_gpus_idle_share_at_most", others * share, BOUND, f"{how}, times the share of generation")], ()
    line = TIMES_LINE.get(run.framework, ANY_LINE)
    sentence = (
        f"What share g of a step is generation: {gpus.generate:,.0f} of {counted(gpus.total, 'GPU')} "
        f"{'generates' if gpus.generate == 1 else 'generate'}, so on the others at most {others:.3g} x g of the paid time "
        f"idles ({others / 2:.0%} if g is one half); {line} would tell."
    )
    return [number("others_of_gpus_share", others, DERIVED, how)], (sentence,)
