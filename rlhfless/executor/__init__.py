"""Runs plans: ``Executor`` step after step, by ``run_step`` on the virtual clock or ``ProcessPool.run_step`` on real devices.

Records hold the trace's rows.
"""

from rlhfless.executor.actors import EngineFactory
from rlhfless.executor.decisions import RuleError
from rlhfless.executor.executor import Executor
from rlhfless.executor.faults import Faults
from rlhfless.executor.processes import ProcessPool
from rlhfless.executor.record import StepRecord
from rlhfless.executor.remote import ActorError
from rlhfless.executor.virtual import run_step

__all__ = ["ActorError", "EngineFactory", "Executor", "Faults", "ProcessPool", "RuleError", "StepRecord", "run_step"]
