"""What a user holds: a log or a trace with the GPUs that it is studied on, its diagnosis, plans, simulations and report."""

from rlhfless.run.capacity import CapacityLimits, CapacityResults
from rlhfless.run.hardware import Hardware
from rlhfless.run.loading import load
from rlhfless.run.planned_step import PlannedStep, StepComparison
from rlhfless.run.planned_whole_step import PlannedWholeStep
from rlhfless.run.run import Run

__all__ = [
    "CapacityLimits",
    "CapacityResults",
    "Hardware",
    "PlannedStep",
    "PlannedWholeStep",
    "Run",
    "StepComparison",
    "load",
]


def __dir__() -> list[str]:
    return sorted(__all__)
