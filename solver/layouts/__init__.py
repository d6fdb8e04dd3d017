"""Plans whole training steps as graphs of model calls, as ReaL (arXiv:2406.14088) does, with a lower bound.

``plan_step`` chooses the GPUs of every call (a mesh), how its model is sharded over them (a parallel strategy), and the order
of calls: for the shortest time per step, or for an objective of time and cost. ``CallCosts`` gives the seconds and bytes of a
call.
"""

from solver.layouts.costs import CallCosts, CallMemory
from solver.layouts.generation import StepGeneration
from solver.layouts.graph import Call, Graph, dpo, grpo, ppo, remax
from solver.layouts.layout import Layout, Mesh, Strategy, meshes, missing_share, strategies
from solver.layouts.plan import PlannedCall, StepPlan
from solver.layouts.planner import plan_step

__all__ = [
    "Call", "CallCosts", "CallMemory", "Graph", "Layout", "Mesh", "PlannedCall", "StepGeneration", "StepPlan", "Strategy",
    "dpo", "grpo", "meshes", "missing_share", "plan_step", "ppo", "remax", "strategies",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
