"""A logged run's own way, to which all others are compared: generate a step, learn from all of it, then generate the next.

Responses are assigned by the run's own dispatch (``RunSetup.dispatch``), and all GPUs are held throughout.
"""

from __future__ import annotations

from rlhfless.analysis.what_ifs.outcome import DataChange, RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked, gpus_of, learning_s, least_work_s, step_tokens
from rlhfless.simulate import execute_steps

NAME = "as logged"


def way(run: RunToChange) -> WayOutcome:
    """Simulate the run's own steps one after another.

    Raises:
        InputError: the run cannot be changed (``whole_steps.checked``). PlanningError: a response fits on no actor.
    """
    checked(run)
    (executed,) = execute_steps(run.logged, run.setting, [run.setup.dispatch]).values()
    learn_s = learning_s(run)
    time_s = least_s = 0.0
    responses = tokens = 0
    for record, step in executed:
        after_s = learn_s(step_tokens(step).sum())
        whole_s = record.end_s - record.start_s + after_s
        time_s += whole_s + run.phases.sync_s
        least_s += least_work_s(run, step.truth, after_s, whole_s) + run.phases.sync_s
        responses += len(step.truth)
        tokens += int(step.truth.response_tokens.sum())
    return WayOutcome(
        NAME,
        "Every step generates all its responses, then learns from them.",
        len(executed),
        time_s,
        gpus_of(run) * time_s,
        least_s,
        DataChange(responses, tokens),
    )
