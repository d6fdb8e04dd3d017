"""Other ways to generate and to learn, on the last steps of a log: what ``Run.what_ifs`` and the command line show."""

from __future__ import annotations

from dataclasses import replace

from rlhfless.analysis import ExecutedTimes, LoggedTimes, PhaseSeconds, RunSetup, run_setup, steps_of_run, text_encoder
from rlhfless.analysis.draft_savings import draft_savings
from rlhfless.analysis.executed_run import GENERATES
from rlhfless.analysis.what_ifs.compare import MOST_RESPONSES, WaysCompared, compare_ways, own_schedule
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.errors import InputError
from rlhfless.report.study import Assumptions
from rlhfless.simulate import SimulationConfig, logged_steps
from rlhfless.trace import OpenedLog, Trace
from solver.model.objective import NonGenerationPhases

PLANS_LEFT_OUT = (
    "as logged is an equal split of every step's prompts over all actors, not the executed plans; all that the run did outside "
    "generation counts as learning"
)


def ways_of_log(log: OpenedLog, times: LoggedTimes | ExecutedTimes, stated: Assumptions) -> WaysCompared:
    """Return every way on the last steps with about ``MOST_RESPONSES`` responses.

    Args:
        log: of one run, or the trace of an executed one. times: its own, with its GPUs and their profile.
        stated: what the user assumes about a logged run.

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
        PlanningError: a response fits on no actor.
        InputError: an assumption makes no sense, or no step of an executed run generated anything.
    """
    if isinstance(times, ExecutedTimes):
        setting, setup, phases = _executed(log.trace, times)
    else:
        setting, setup, phases = times.setting, times.setup, times.phases
    rollouts, steps = log.trace.rollouts, log.trace.steps
    last = max(1, MOST_RESPONSES * len(steps) // len(rollouts))
    logged = list(logged_steps(rollouts, None, setting.max_response_tokens, steps=[int(step) for step in steps[-last:]]))
    run = RunToChange(logged, setting, setup, phases, len(steps_of_run(log)))
    assigned, _ = own_schedule(run)
    return compare_ways(run, draft_savings(rollouts, logged, assigned, setting, *text_encoder(stated.tokenizer)))


def _executed(trace: Trace, times: ExecutedTimes) -> tuple[SimulationConfig, RunSetup, PhaseSeconds]:
    """Return the calibrated setting of an executed run, its GPUs and its seconds outside generation, by its spans."""
    took = times.took[times.took["working_s"] > 0]
    if took.empty:
        raise InputError(f"{trace.source or 'the trace'}: no step generated a response; a step with responses is needed")
    others = trace.allocations[~trace.allocations["role"].isin(GENERATES)]
    learner_gpus = max((len(set().union(*ids)) for _, ids in others.groupby("step")["gpu_ids"]), default=0)
    setup = run_setup("rlhfless", dispatch="static", learner_gpus=learner_gpus)
    setting = replace(times.setting, phases=NonGenerationPhases(), drafts=None)
    return (
        setting,
        replace(setup, assumed=(PLANS_LEFT_OUT,)),
        PhaseSeconds(learn_s=float(took["fixed_s"].mean()), basis="measured"),
    )
