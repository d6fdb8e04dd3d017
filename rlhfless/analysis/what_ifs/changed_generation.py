"""Whole steps of a way that changes generation alone: the same preparation, learning and sending of weights follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from rlhfless.analysis.what_ifs.outcome import DataChange, RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked, gpus_of, learning_s, least_work_s, step_tokens
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.simulate import LoggedStep, execute_steps
from solver.model.workload import Workload

OWN_LEAST_S: WeakKeyDictionary[RunToChange, float] = WeakKeyDictionary()
"""The bound on a run's own steps, which is the same for all ways that learn from them."""


def generated_s(run: RunToChange, steps: Sequence[LoggedStep], policy: str | SchedulingPolicy) -> list[float]:
    """Return the seconds of generation of each step under a policy, executed on simulated engines."""
    (executed,) = execute_steps(steps, run.setting, [policy]).values()
    return [record.end_s - record.start_s for record, _ in executed]


def learned_from(steps: Sequence[LoggedStep], started: Sequence[LoggedStep] = ()) -> DataChange:
    """Return what is learned from if every response of these steps is, and what is dropped of all that were started."""
    responses, tokens = _counted(steps)
    all_responses, all_tokens = _counted(started or steps)
    mean = all_tokens / all_responses if all_responses > responses else None
    dropped = (all_responses - responses, all_tokens - tokens)
    return DataChange(responses, tokens, dropped_responses=dropped[0], dropped_tokens=dropped[1], started_mean_tokens=mean)


def _counted(steps: Sequence[LoggedStep]) -> tuple[int, int]:
    return sum(len(step.truth) for step in steps), sum(int(step.truth.response_tokens.sum()) for step in steps)


def whole_steps(
    run: RunToChange,
    words: tuple[str, str],
    steps_s: Sequence[float],
    *,
    learned: Sequence[LoggedStep] | None = None,
    least: Sequence[tuple[Workload, float]] = (),
    data: DataChange | None = None,
    parameters: Mapping[str, float] | None = None,
) -> WayOutcome:
    """Return the outcome of whole steps whose generation takes ``steps_s``, (steps,) seconds.

    Args:
        words: name and change of the ``WayOutcome``. learned: what each step learns from; the run's own responses when None.
        least: for each step, a workload that no schedule of this way can avoid, and seconds that its generation takes at least;
            what is learned from when empty.
        data: as of ``WayOutcome``; without dropped responses when None. parameters: see ``WayOutcome``.

    Raises:
        InputError: the run cannot be changed (``whole_steps.checked``).
    """
    checked(run)
    learned = run.logged if learned is None else learned
    least_s = run.phases.sync_s * len(learned)
    own = not least and learned is run.logged
    for i, (step, generation_s, after_s) in enumerate(zip(learned, steps_s, _after_s(run, learned), strict=True)):
        if own and run in OWN_LEAST_S:
            break
        workload, at_least_s = least[i] if least else (step.truth, 0.0)
        least_s += max(at_least_s, least_work_s(run, workload, after_s, generation_s + after_s))
    time_s = whole_time_s(run, steps_s, learned)
    if own:
        least_s = OWN_LEAST_S.setdefault(run, least_s)
    change = learned_from(learned) if data is None else data
    return WayOutcome(*words, len(learned), time_s, gpus_of(run) * time_s, least_s, change, dict(parameters or {}))


def whole_time_s(run: RunToChange, steps_s: Sequence[float], learned: Sequence[LoggedStep]) -> float:
    """Return the seconds of whole steps whose generation takes ``steps_s``, (steps,) seconds, and which learn from
    ``learned``."""
    return float(sum(steps_s) + sum(_after_s(run, learned)) + run.phases.sync_s * len(learned))


def _after_s(run: RunToChange, learned: Sequence[LoggedStep]) -> list[float]:
    """Return (steps,) seconds of preparation and learning."""
    learn_s = learning_s(run)
    return [learn_s(step_tokens(step).sum()) for step in learned]
