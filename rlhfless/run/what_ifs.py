"""Other ways to generate and to learn, on the last steps of a log: what ``Run.what_ifs`` and the command line show."""

from __future__ import annotations

from rlhfless.analysis import text_encoder
from rlhfless.analysis.draft_savings import draft_savings
from rlhfless.analysis.what_ifs.compare import MOST_RESPONSES, WaysCompared, compare_ways, own_schedule
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.report.study import Assumptions, calibrate_log
from rlhfless.simulate import SimulationConfig, logged_steps
from rlhfless.trace import OpenedLog


def ways_of_log(log: OpenedLog, setting: SimulationConfig, stated: Assumptions) -> WaysCompared:
    """Return every way on the last steps with about ``MOST_RESPONSES`` responses.

    Args:
        log: of one run. setting: its GPUs and their profile, which is scaled to logged times. stated: what the user assumes.

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
        PlanningError: a response fits on no actor.
        InputError: an assumption makes no sense.
    """
    setting, setup, phases, _, _ = calibrate_log(log, setting, stated)
    rollouts, steps = log.trace.rollouts, log.trace.steps
    last = max(1, MOST_RESPONSES * len(steps) // len(rollouts))
    logged = list(logged_steps(rollouts, None, setting.max_response_tokens, steps=[int(step) for step in steps[-last:]]))
    run = RunToChange(logged, setting, setup, phases)
    assigned, _ = own_schedule(run)
    return compare_ways(run, draft_savings(rollouts, logged, assigned, setting, *text_encoder(stated.tokenizer)))
