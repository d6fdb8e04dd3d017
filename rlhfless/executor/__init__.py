"""Executes plans. ``Executor`` runs one step after another.

``run_step`` runs a step on the virtual clock, ``ProcessPool.run_step`` on the devices of this machine, and ``RayPool.run_step``
on a Ray cluster. Their records contain the rows of the trace. ``run_step_plan`` runs plans of whole steps on the virtual clock.
"""

from rlhfless.executor.dataflow.run import ExecutedSteps, run_step_plan
from rlhfless.executor.distributed.actor_host import ActorHost
from rlhfless.executor.distributed.failure_limits import Faults
from rlhfless.executor.distributed.kill_one_actor import KillOneActor
from rlhfless.executor.distributed.local.pool import ProcessPool
from rlhfless.executor.distributed.pool.lifecycle import Lifecycle, PlanForecast, ShortestStep
from rlhfless.executor.distributed.ray.cluster import RayCluster
from rlhfless.executor.distributed.ray.pool import RayPool
from rlhfless.executor.executor import Executor
from rlhfless.executor.repeat import repeat
from rlhfless.executor.step.failure import ActorError, StepFailed
from rlhfless.executor.step.phase_work import phase_work_items
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.requests import requests
from rlhfless.executor.step.rule_validation import RuleError
from rlhfless.executor.step.tokens_hash import tokens_hash
from rlhfless.executor.step.trace_by_gpu import trace_by_gpu
from rlhfless.executor.step.work_items import Gpus, ItemRun, WorkItem
from rlhfless.executor.virtual.actors import EngineFactory
from rlhfless.executor.virtual.executor import run_step

__all__ = [
    "ActorError",
    "ActorHost",
    "EngineFactory",
    "ExecutedSteps",
    "Executor",
    "Faults",
    "Gpus",
    "ItemRun",
    "KillOneActor",
    "Lifecycle",
    "PlanForecast",
    "ProcessPool",
    "RayCluster",
    "RayPool",
    "RuleError",
    "ShortestStep",
    "StepFailed",
    "StepRecord",
    "WorkItem",
    "phase_work_items",
    "repeat",
    "requests",
    "run_step",
    "run_step_plan",
    "tokens_hash",
    "trace_by_gpu",
]


def __dir__() -> list[str]:
    return sorted(__all__)
