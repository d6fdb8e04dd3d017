"""Runs plans. ``run_step`` on the virtual clock; its record holds the rows of the trace."""

from rlhfless.executor.record import StepRecord
from rlhfless.executor.virtual import EngineFactory, run_step

__all__ = ["EngineFactory", "StepRecord", "run_step"]
