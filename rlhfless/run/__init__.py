"""The main objects: a log or trace with the GPUs that it is studied on, its diagnosis, plans, simulations and report."""

from rlhfless.run.hardware import Hardware
from rlhfless.run.loading import load
from rlhfless.run.planned_step import PlannedStep
from rlhfless.run.planned_whole_step import PlannedWholeStep
from rlhfless.run.run import Run
from rlhfless.run.split import Split
from rlhfless.run.sweeps import Variant, variants

__all__ = [
    "Hardware",
    "PlannedStep",
    "PlannedWholeStep",
    "Run",
    "Split",
    "Variant",
    "load",
    "variants",
]


def __dir__() -> list[str]:
    return sorted(__all__)
