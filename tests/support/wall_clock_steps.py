"""A step on the wall clock with scripted actors, as tests run it beside one on the virtual clock."""

from __future__ import annotations

from executor_samples import Step
from remote_samples import ScriptedCrew

from rlhfless.executor import StepRecord
from rlhfless.executor.distributed.executor import WallStep
from rlhfless.executor.step.step_state import StepOptions
from solver import Plan


def on_the_wall_clock(step: Step, plan: Plan) -> StepRecord:
    record = StepRecord("run", 0, plan, 0.0)
    WallStep(plan, step.requests(), ScriptedCrew(0), record, StepOptions(step.latency, step.cluster, migration="move")).run()
    return record
