"""What an executed run took, by its trace, to which all other ways are compared.

Simulated ways assign responses by a dispatch (``RunSetup.dispatch``). An executed run may have planned every step otherwise,
and pays for GPUs only as long as they were allocated, so nothing that is simulated stands for it.
"""

from __future__ import annotations

from dataclasses import replace

from rlhfless.analysis.draft_savings import already_drafts
from rlhfless.analysis.own_times import OwnTimes
from rlhfless.analysis.step_parts import generating_parts
from rlhfless.analysis.what_ifs.changed_generation import whole_steps
from rlhfless.analysis.what_ifs.outcome import RunToChange, Took, WayOutcome
from rlhfless.errors import InputError
from rlhfless.trace import Trace

NAME = "as executed"
CHANGE = "What the run itself took, by its trace: its own plans, and GPUs only as long as they were allocated."
HELD = "other ways hold all GPUs until a step ends, unless they say that GPUs are released"
WITHOUT_DRAFTS = "the run decoded with drafts, and other ways are simulated without them"


def with_took(run: RunToChange, trace: Trace, times: OwnTimes) -> RunToChange:
    """Return steps of an executed run with what they took, and with their own seconds outside generation.

    Where that is of GPUs of another kind than the setting's, or of no GPUs that generated, ``not_compared`` says so.

    Args:
        run: steps of ``trace``. times: of the trace.
    """
    if times.scale.ran_on:
        why = f"the run's times are of {times.scale.ran_on} GPUs, and profile {times.scale.profile} is of another kind"
        return replace(run, not_compared=f"{why}, so other ways cannot be compared with it; give a profile of its GPUs")
    parts = generating_parts(trace).set_index("step")
    steps = [step.step for step in run.logged]
    if without := [step for step in steps if step not in parts.index]:
        why = f"step {without[0]} of the run has no GPUs that generated"
        return replace(run, not_compared=f"{why}, so its own time is unknown; leave the step out to compare other ways")
    took = parts.loc[steps]
    setup = replace(run.setup, assumed=(*run.setup.assumed, HELD, *(WITHOUT_DRAFTS,) * already_drafts(trace.rollouts)))
    return replace(
        run,
        setup=setup,
        phases=replace(run.phases, learn_s=float(took["fixed_s"].mean())),
        took=Took(tuple(took["generation_s"].tolist()), float(took["gpu_s"].sum())),
    )


def way(run: RunToChange) -> WayOutcome:
    """Return what the run's own steps took.

    Raises:
        InputError: the run was not executed, or what it took is not compared (``RunToChange.not_compared``).
    """
    if run.took is None:
        raise InputError(run.not_compared or f"the way {NAME!r} needs the trace of an executed run")
    return replace(whole_steps(run, (NAME, CHANGE), run.took.generation_s), gpu_s=run.took.gpu_s)
