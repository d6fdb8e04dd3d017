"""Runs plans: ``Executor`` step after step, by ``run_step`` on the virtual clock, by ``ProcessPool.run_step`` on the devices of
this machine, by ``RayPool.run_step`` on those of a Ray cluster.

Records hold the trace's rows.
"""

from rlhfless.executor.actors import EngineFactory
from rlhfless.executor.decisions import RuleError
from rlhfless.executor.executor import Executor
from rlhfless.executor.faults import Faults
from rlhfless.executor.lifecycle import Lifecycle, PlanForecast, ShortestStep
from rlhfless.executor.processes import ProcessPool
from rlhfless.executor.ray_pool import RayPool
from rlhfless.executor.record import StepRecord
from rlhfless.executor.remote import ActorError
from rlhfless.executor.virtual import run_step

__all__ = [
    "ActorError",
    "EngineFactory",
    "Executor",
    "Faults",
    "Lifecycle",
    "PlanForecast",
    "ProcessPool",
    "RayPool",
    "RuleError",
    "ShortestStep",
    "StepRecord",
    "run_step",
]
