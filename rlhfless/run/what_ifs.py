"""Other ways to generate and to learn, on the last steps of a log: what ``Run.what_ifs`` and the command line show."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from rlhfless.analysis import Assumptions, OwnTimes, generating_parts, steps_of_run, text_encoder
from rlhfless.analysis.draft_savings import DraftSavings, draft_savings
from rlhfless.analysis.what_ifs.as_executed import with_took
from rlhfless.analysis.what_ifs.compare import MOST_RESPONSES, compare_ways
from rlhfless.analysis.what_ifs.named import own_schedule
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.errors import InputError
from rlhfless.simulate import Comparison, logged_steps
from rlhfless.trace import OpenedLog


def ways_of_log(log: OpenedLog, times: OwnTimes, stated: Assumptions, useless_share: float | None = None) -> Comparison:
    """Return every way on the last steps with about ``MOST_RESPONSES`` responses.

    Args:
        log: of one run, or the trace of an executed one. times: its own, with its GPUs and their profile.
        stated: what the user assumes about a logged run. useless_share: as of ``RunToChange``.

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
        PlanningError: a response fits on no actor.
        InputError: an assumption makes no sense, no step of an executed run generated anything, or what it took is of other
            GPUs than the profile.
    """
    run = run_to_change(log, times, useless_share=useless_share)
    found = compare_ways(run, drafts_of_log(log, run, stated))
    return replace(found, times=f"{times.scale.words()}; {found.times}")


def drafts_of_log(log: OpenedLog, run: RunToChange, stated: Assumptions) -> tuple[DraftSavings, ...]:
    """Return what vLLM's speculative methods save on the texts of a log, the best first; nothing without texts.

    Args:
        log, stated: as of ``ways_of_log``. run: the steps.
    """
    assigned, _ = own_schedule(run)
    return draft_savings(log.trace.rollouts, run.logged, assigned, run.setting, *text_encoder(stated.tokenizer))


def last_of(steps: Sequence[int], responses: int) -> Sequence[int]:
    """Return the last steps of a log, with about ``MOST_RESPONSES`` of all its responses."""
    return steps[-max(1, MOST_RESPONSES * len(steps) // responses) :]


def run_to_change(
    log: OpenedLog, times: OwnTimes, steps: Collection[int] | None = None, useless_share: float | None = None
) -> RunToChange:
    """Return steps of a run, with its set-up, its seconds outside generation and, where it was executed, what they took.

    Args:
        log, times: as of ``ways_of_log``. steps: the last ones, with about ``MOST_RESPONSES`` responses, when None.
        useless_share: as of ``RunToChange``.

    Raises:
        TraceError: the log holds several runs, or a response above the limit, or none of the steps.
        InputError: no step of an executed run generated anything.
    """
    if times.executed and not (generating_parts(log.trace)["working_s"] > 0).any():
        raise InputError(f"{log.trace.source or 'the trace'}: no step generated a response; a step with responses is needed")
    setting = replace(times.setting, drafts=None) if times.executed else times.setting
    rollouts, own = log.trace.rollouts, log.trace.steps
    chosen = last_of(own, len(rollouts)) if steps is None else steps
    logged = list(logged_steps(rollouts, None, setting.max_response_tokens, steps=[int(step) for step in chosen]))
    all_steps = len(steps_of_run(log))
    run = RunToChange(logged, setting, times.setup, times.phases, all_steps, useless_share=useless_share)
    return with_took(run, log.trace, times) if times.executed else run
