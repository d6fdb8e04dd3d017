"""Plans whole training steps as graphs of model calls, as ReaL (arXiv:2406.14088) does, with a lower bound.

``plan_step`` chooses the GPUs of every call (a mesh), how its model is sharded over them (a parallel strategy), and the order
of calls. ``CallCosts`` gives the seconds and bytes of a call. ``plan_step_for`` weighs the time per step against GPU-seconds or
dollars.
"""

from solver.dataflow.generation import StepGeneration
from solver.dataflow.graph import Call, Graph, dpo, grpo, ppo, remax
from solver.dataflow.layout import Layout, Mesh, Strategy, meshes, missing_share, strategies
from solver.dataflow.lever_space import DividedCosts
from solver.dataflow.levers import Lever
from solver.dataflow.options import CallCosts, CallMemory
from solver.dataflow.plan import PlannedCall, StepPlan
from solver.dataflow.plan_objective import StepPlanObjective
from solver.dataflow.planner import plan_step
from solver.dataflow.weigh import plan_step_for
from solver.dataflow.weighed_plan import WeighedPlan
from solver.dataflow.with_levers import WithLevers

__all__ = [
    "Call", "CallCosts", "CallMemory", "DividedCosts", "Graph", "Layout", "Lever", "Mesh", "PlannedCall", "StepGeneration",
    "StepPlan", "StepPlanObjective", "Strategy", "WeighedPlan", "WithLevers", "dpo", "grpo", "meshes", "missing_share",
    "plan_step", "plan_step_for", "ppo", "remax", "strategies",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
