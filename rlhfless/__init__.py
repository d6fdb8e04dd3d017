"""RLHFless: plan generation with a lower bound, execute the plan, see time, cost and idle GPUs.

>>> import rlhfless as rl
>>> run = rl.load(rl.example(), verbose=False)  # any log or trace; prints its verdict unless told otherwise
>>> run.plan(step=-1).compare("static").results["policy"].tolist()
['static', 'solver']

Importing this package loads nothing heavy; every name below is loaded when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhfless.executor import Executor
    from rlhfless.latency import load_profile
    from rlhfless.run import Hardware, Run, load
    from rlhfless.run.example import example
    from rlhfless.training import TrainConfig, Trainer
    from rlhfless.widgets import compare, explore, live

__version__ = "0.1.0"

_PACKAGE_OF = {
    "Executor": "executor",
    "Hardware": "run",
    "Run": "run",
    "TrainConfig": "training",
    "Trainer": "training",
    "compare": "widgets",
    "example": "run.example",
    "explore": "widgets",
    "live": "widgets",
    "load": "run",
    "load_profile": "latency",
}

__all__ = ["Executor", "Hardware", "Run", "TrainConfig", "Trainer", "compare", "example", "explore", "live", "load",
           "load_profile"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module 'rlhfless' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"rlhfless.{_PACKAGE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext rlhfless``: afterwards ``%rlhfless PATH`` shows the report of a trace or a log."""
    from rlhfless.report.magic import register

    register(ipython)
