"""RLHFless: plan generation with a lower bound, execute the plan, see time, cost and idle GPUs.

>>> import rlhfless as rl
>>> run = rl.load(rl.example(), verbose=False)  # any log or trace; verbose=True prints what limits the run
>>> run.plan(step=-1).compare("static").table["policy"].tolist()
['static', 'solver']

Importing this package loads nothing heavy; every name below is loaded when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhfless.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlhfless.engine import TorchEngine
    from rlhfless.executor import Executor, WorkItem, requests
    from rlhfless.latency import load_profile, profile_like
    from rlhfless.run import Hardware, Run, load
    from rlhfless.run.example import example
    from rlhfless.training import (
        ClusterConfig,
        GrpoConfig,
        OptimizerConfig,
        PlannerConfig,
        PpoConfig,
        RolloutConfig,
        TaskConfig,
        TrainConfig,
        Trainer,
    )
    from rlhfless.widgets import compare, live
    from solver.model.drafting import Drafting

__version__ = "0.2.0"

__all__ = [
    "ClusterConfig",
    "Drafting",
    "Executor",
    "GrpoConfig",
    "Hardware",
    "OptimizerConfig",
    "PlannerConfig",
    "PpoConfig",
    "RolloutConfig",
    "Run",
    "TaskConfig",
    "TorchEngine",
    "TrainConfig",
    "Trainer",
    "WorkItem",
    "compare",
    "example",
    "live",
    "load",
    "load_profile",
    "profile_like",
    "requests",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Drafting": "engine.common.drafter",
        "Executor": "executor",
        "Hardware": "run",
        "Run": "run",
        "TorchEngine": "engine",
        "ClusterConfig": "training",
        "GrpoConfig": "training",
        "OptimizerConfig": "training",
        "PlannerConfig": "training",
        "PpoConfig": "training",
        "RolloutConfig": "training",
        "TaskConfig": "training",
        "TrainConfig": "training",
        "Trainer": "training",
        "WorkItem": "executor",
        "compare": "widgets",
        "example": "run.example",
        "live": "widgets",
        "load": "run",
        "load_profile": "latency",
        "profile_like": "latency",
        "requests": "executor",
    },
)


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext rlhfless``: afterwards ``%rlhfless PATH`` shows the report of a trace or a log."""
    from rlhfless.cli.magic import register

    register(ipython)
