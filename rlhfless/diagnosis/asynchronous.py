"""Training that goes on while responses are generated: what it waits for, how much more generation would pay, and start-up.

A step of training that takes ``step_s`` and waits ``wait_s`` for responses hides the rest of generation behind its own work. If
generation runs all the time, ``step_s / (step_s - wait_s)`` times its rate hides all of it. Then the loop is at most so much
faster, and no more GPUs of generation help. The wait is not the time of generation. A wait of 0 tells only that generation is
not what limits the step.

While the queue of responses fills or drains, the time of a step is no steady state: steps whose responses were begun in earlier
steps are fast at the expense of those.
"""

from __future__ import annotations

import math

import numpy as np

from rlhfless.diagnosis.gpus import Gpus, gpus_of
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import BOUND, DERIVED, Collected, Finding, Lever, Number, Part, counted, mean_of, number
from rlhfless.diagnosis.phases import StepSeconds, start_up_steps, step_seconds, synchronous

NO_WAIT = 0.005  # of a step: less is no wait
NO_WAIT_S = 0.1  # where the time of the step is unknown
WORTH_SAYING = 0.03
LEAST_PAUSED = 0.001  # share of the time that GPUs are paused, below which it is said as such
IMBALANCE = "performance/average_token_imbalance"  # NeMo-RL: 1 - mean over most tokens of the workers that generate
FAST = 0.6  # times the other steps: a first step that found its responses in the queue
GENERATION_PRICE = "GPUs for generation; staleness grows with the queue"
TRAINING_PRICE = "fewer GPUs generate: training waits as soon as they are too few"


def asynchronous(run: LoggedRun, found: Collected) -> Part:
    """Return what waiting for generation says, and what steps at the start of an asynchronous run are worth.

    ``found`` has the numbers of ``phases``.
    """
    parts = [_start_up(run)]
    if (paused := run.mean("generators_idle_rate")) is not None and 0 <= paused <= 1:
        share = f"{paused:.1%}" if paused >= LEAST_PAUSED else f"less than {LEAST_PAUSED:.1%}"
        paused_for = f"are paused during {share} of the time" if paused else "are never paused"
        parts.append(Part(notes=(f"The GPUs that generate {paused_for}, as the log states.",)))
    together = synchronous(run)
    if not np.isnan(run.column("wait_s")).all():
        if together is None:
            parts.append(_waits_either_way(run))
        elif not together:
            parts.append(_waits(run, found))
    return Part(
        tuple(one for part in parts for one in part.numbers), tuple(one for part in parts for one in part.findings),
        tuple(one for part in parts for one in part.levers), tuple(one for part in parts for one in part.cannot_say),
        tuple(one for part in parts for one in part.notes),
    )  # fmt: skip


def _waits_either_way(run: LoggedRun) -> Part:
    """What a wait says where it is unknown whether generation goes on beside training."""
    line = "the rollout record of the same steps (perf/rollout_time) would tell"
    cannot_say = (f"Whether generation and training take turns or overlap: {line}.",)
    seconds = step_seconds(run)
    wait_s, step_s = _mean_wait(seconds)
    if wait_s is None or step_s is None or (at_stake := seconds.phase_of_run(seconds.phases["wait_s"])) < WORTH_SAYING:
        return Part(cannot_say=cannot_say)
    sentence = (
        f"Training waits during {wait_s / step_s:.0%} of a step, {wait_s:,.1f} of {step_s:,.1f} s, for generation and what is "
        f"around it; faster training saves at most {1 - wait_s / step_s:.0%}."
    )
    return Part(findings=(Finding("waiting", at_stake, sentence, ("wait_s", "step_s")),), cannot_say=cannot_say)


def waits_for_nothing(run: LoggedRun) -> bool | None:
    """Return whether training beside generation never waits for it; None where the log does not say."""
    if synchronous(run) is not False:
        return None
    wait_s, step_s = _mean_wait(step_seconds(run))
    if wait_s is None:
        return None
    return wait_s <= (NO_WAIT_S if step_s is None else NO_WAIT * step_s)


def _mean_wait(seconds: StepSeconds) -> tuple[float | None, float | None]:
    """Mean wait and time of the usual steps that have both; without the time where no step has it; None where unknown."""
    wait_s = seconds.phases.get("wait_s")
    if wait_s is None or np.isnan(wait_s).all():
        return None, None
    both = seconds.ordinary(wait_s)
    if both.any():
        return float(wait_s[both].mean()), float(seconds.step_s[both].mean())
    return float(np.nanmean(wait_s)), None


def _waits(run: LoggedRun, found: Collected) -> Part:
    seconds = step_seconds(run)
    wait_s, step_s = _mean_wait(seconds)
    if wait_s is None:
        return Part()
    if waits_for_nothing(run):
        return _no_wait(run, found, wait_s)
    if step_s is None:
        return Part(cannot_say=("How much of a step is the wait for generation: the seconds of whole steps are not logged.",))
    return _waiting(run, seconds, step_s, wait_s)


def _waiting(run: LoggedRun, seconds: StepSeconds, step_s: float, wait_s: float) -> Part:
    """Training waits: generation limits the loop, until its rate is so high that the wait is gone."""
    hidden_s, share = step_s - wait_s, wait_s / step_s
    numbers = [number("hidden_s", hidden_s, DERIVED, "seconds of a step in which training does not wait")]
    at_stake = seconds.phase_of_run(seconds.phases["wait_s"])
    if hidden_s <= 0:
        sentence = f"Training waits for generation during all of a step of {step_s:,.1f} s."
        return Part(tuple(numbers), (Finding("waiting", at_stake, sentence, ("wait_s", "step_s")),))
    rate = step_s / hidden_s
    how = "step over its part that is not waiting, where generation runs all the time"
    numbers.append(number("generation_rate_to_hide", rate, BOUND, how))
    numbers.append(number("loop_speedup_at_most", rate, BOUND, how))
    gpus = gpus_of(run)
    to_hide = ""
    if gpus.generate is not None:
        needed = math.ceil(gpus.generate * rate - 1e-9)
        numbers.append(number("gpus_generate_to_hide", needed, BOUND, f"{counted(gpus.generate, 'GPU')} times that rate"))
        to_hide = f" (about {counted(needed, 'GPU')} instead of {gpus.generate:,.0f})"
    even, apart = _even_work(run)
    numbers += even
    sentence = (
        f"Training waits for generation: {wait_s:,.2f} s of a step of {step_s:,.2f} s ({share:.1%}). If generation never "
        f"pauses, {rate:.2f} times its throughput hides the wait{to_hide}, and the loop is at most {rate:.2f} times as fast; "
        f"beyond that, more generation wins nothing.{apart}"
    )
    if at_stake < WORTH_SAYING:
        return Part(tuple(numbers))
    lever = Lever("more generation", "more generation (GPUs, engine, or fewer stragglers)", at_stake, GENERATION_PRICE)
    return Part(tuple(numbers), (Finding("waiting", at_stake, sentence, ("wait_s", "step_s")),), (lever,))


def _even_work(run: LoggedRun) -> tuple[list[Number], str]:
    """By how much engines differ in tokens, as a number, and what even work of theirs gives at most, as a sentence."""
    apart = run.column(IMBALANCE)
    apart = np.where((apart >= 0) & (apart < 1), apart, np.nan)
    if np.isnan(apart).all():
        return [], ""
    share = mean_of("engine_tokens_apart_share", apart, "steps", "1 - mean over most tokens of an engine")
    gives = f"Even work of all engines gives at most {1 / (1 - share.value):.2f} times the throughput"
    return [share], f" {gives}, as their mean is {share.value:.1%} below the most tokens of one."


def _no_wait(run: LoggedRun, found: Collected, wait_s: float) -> Part:
    """Training does not wait: nothing that makes generation faster makes the loop faster."""
    gpus, learner = gpus_of(run), found.numbers.value("learner_share")
    moved = _most_by_moving(gpus, learner)
    unknown = (
        f"How large the surplus of generation is: training waits {wait_s:g} s for it, so there is one, and the next GPU "
        "belongs to training. A few steps with more of the GPUs in training would tell."
    )
    levers = [Lever("more generation", "faster generation (GPUs, schedule, drafts)", 0.0, "training does not wait for it")]
    nothing = f"Training does not wait for generation ({wait_s:g} s a step), so more of it wins nothing"
    if moved is None or gpus.total is None:
        said = Finding("waiting", 0.0, f"{nothing}, and the next GPU belongs to training.", ("wait_s",))
        return Part((), (said,), tuple(levers), (unknown,))
    assert gpus.total is not None  # moving is bounded by a share of them
    how = "GPUs that generate over all, times the learner's share: as if all of them trained"
    numbers = (number("moving_gpus_at_most_share", moved, BOUND, how),)
    levers.append(Lever("more training", "GPUs of generation to training", moved, TRAINING_PRICE))
    sentence = (
        f"{nothing}, and the next GPU belongs to training: the learner takes {learner:.0%} of a step on {gpus.train:,.0f} of "
        f"{counted(gpus.total, 'GPU')}."
    )
    findings = (Finding("waiting", moved, sentence, ("wait_s", "moving_gpus_at_most_share")),) if moved >= WORTH_SAYING else ()
    return Part(numbers, findings, tuple(levers), (unknown,))


def _most_by_moving(gpus: Gpus, learner: float | None) -> float | None:
    """Share of the time that GPUs of generation save at most in training; None where the GPUs or the learner are unknown."""
    if gpus.generate is None or gpus.train is None or learner is None:
        return None
    return min(1.0, learner) * gpus.generate / (gpus.generate + gpus.train)


def _start_up(run: LoggedRun) -> Part:
    """Steps while responses become staler: they are no steady state, and are compared with as many synchronous steps."""
    level, step_s = run.column("off_policy_steps"), step_seconds(run).step_s
    rising = int(start_up_steps(run, step_s).sum())
    known = ~np.isnan(level) & ~np.isnan(step_s)
    level, step_s, steps = level[known], step_s[known], run.steps["step"].to_numpy()[known] if len(run.steps) else np.zeros(0)
    if rising < 2:
        return _drained_first(run)
    later = f"their responses become later, from {level[0]:g} to {level[rising - 1]:g} versions of the weights"
    note = (
        f"Steps {steps[0]} to {steps[rising - 1]} are no steady state: {later}, so each uses responses that were begun in the "
        "steps before it."
    )
    if level[0] != 0:
        return Part(notes=(note,))
    return _against_synchronous(steps, step_s, rising, note)


def _against_synchronous(steps: np.ndarray, step_s: np.ndarray, rising: int, note: str) -> Part:
    first_s, last_s, sum_s = float(step_s[0]), float(step_s[rising - 1]), float(step_s[:rising].sum())
    numbers: list[Number] = [
        number("synchronous_step_s", first_s, DERIVED, f"step {steps[0]}, whose responses are not late"),
        number("speedup_over_synchronous", rising * first_s / sum_s, DERIVED,
               f"{rising} times step {steps[0]} over the sum of the first {rising} steps"),
        number("last_step_over_synchronous", first_s / last_s, DERIVED,
               f"step {steps[0]} over step {steps[rising - 1]}, which used responses of the steps before: no steady state"),
    ]  # fmt: skip
    said = (
        f"{note} Together they take {sum_s:,.2f} s, {rising * first_s / sum_s:.2f} times as fast as {rising} synchronous steps "
        f"of {first_s:,.2f} s."
    )
    later = step_s[rising:]
    if len(later):
        middle = float(np.median(later))
        said += f" Later steps take {middle:,.2f} s (median of {len(later):,}), {first_s / middle:.2f} times as fast."
        how = f"step {steps[0]} over the median of the {len(later):,} steps after the first {rising}"
        numbers.append(number("steady_speedup", first_s / middle, DERIVED, how))
        return Part(tuple(numbers), notes=(said,))
    last = f"step {steps[rising - 1]}, {first_s / last_s:.2f} times as fast as step {steps[0]}, drained the queue"
    unknown = f"how fast later steps are: {last}, which does not last; more steps would tell"
    finding = Finding("cannot say", 0.0, said, ("speedup_over_synchronous", "last_step_over_synchronous"))
    return Part(tuple(numbers), (finding,), cannot_say=(unknown,))


def _drained_first(run: LoggedRun) -> Part:
    """A first step of an asynchronous run that is much faster than the others took its responses from a full queue.

    What weights, validation and checkpoints take is no matter of the queue.
    """
    seconds = step_seconds(run)
    others = [*seconds.beside.values(), seconds.phases.get("sync_s", np.zeros(len(seconds.step_s)))]
    step_s = seconds.step_s - np.sum([np.nan_to_num(values) for values in others], axis=0)
    apart = run.column("wait_s"), run.column("off_policy_steps")
    if all(np.isnan(values).all() for values in apart) or synchronous(run):
        return Part()
    rest = step_s[1:][~np.isnan(step_s[1:])]
    if len(rest) < 2 or not 0 < step_s[0] < FAST * float(np.median(rest)):
        return Part()
    at = run.steps["step"].iloc[0]
    without = " without what is beside them" if (step_s != seconds.step_s)[~np.isnan(step_s)].any() else ""
    took = f"Step {at} took {step_s[0]:,.1f} s where later ones take {float(np.median(rest)):,.1f} s{without}"
    return Part(notes=(f"{took}: its responses were in the queue already, so it says nothing about a steady state.",))
