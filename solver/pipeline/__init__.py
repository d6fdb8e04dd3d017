"""Schedules pipeline training of one or several models on the same devices, such as the actor and critic of PPO.

``schedule_pipeline`` returns a ``PipelinePlan``: an order of forward and backward passes per device, with its latency, peak
memory and lower bounds on both. Searches run in plain Python. CP-SAT helps with memory; numba, where installed, compiles the
inner loops.
"""

from solver.pipeline.plan import ExecutedPlan, PipelinePlan, SearchReport, evaluate_pipeline, schedule_pipeline, serial
from solver.pipeline.problem import Chain, Operation, PipelineProblem, fused

__all__ = [
    "Chain", "ExecutedPlan", "Operation", "PipelinePlan", "PipelineProblem", "SearchReport", "evaluate_pipeline", "fused",
    "schedule_pipeline", "serial",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
