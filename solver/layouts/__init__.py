"""Plans whole training steps as graphs of model calls, as ReaL (arXiv:2406.14088) does, with a lower bound.

``plan_step`` chooses the GPUs of every call (a mesh), how its model is sharded over them (a parallel strategy), and the order
of calls. ``CallCosts`` gives the seconds and bytes of a call. ``plan_step_for`` weighs the time per step against GPU-seconds or
dollars.
"""

from solver.layouts.generation import StepGeneration
from solver.layouts.graph import Call, Graph, dpo, grpo, ppo, remax
from solver.layouts.layout import Layout, Mesh, Strategy, meshes, missing_share, strategies
from solver.layouts.options import CallCosts, CallMemory
from solver.layouts.plan import PlannedCall, StepPlan
from solver.layouts.plan_objective import StepPlanObjective
from solver.layouts.planner import plan_step
from solver.layouts.weigh import plan_step_for
from solver.layouts.weighed_plan import WeighedPlan

__all__ = [
    "Call", "CallCosts", "CallMemory", "Graph", "Layout", "Mesh", "PlannedCall", "StepGeneration", "StepPlan",
    "StepPlanObjective", "Strategy", "WeighedPlan", "dpo", "grpo", "meshes", "missing_share", "plan_step", "plan_step_for",
    "ppo", "remax", "strategies",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
