"""Says when a step plan is made again while a run trains, and what changing it moves.

Generation is planned again in every step, for its new lengths. The layouts of a step plan stay, because changing that of a
training moves its optimizer state, too: 20 bytes per parameter (weights, gradients, and Adam's state in fp32), as ReaL counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from solver.dataflow.graph import TRAIN
from solver.dataflow.plan import StepPlan
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_number

MOVED_LENGTH = 0.1  # relative change of the mean length from which a step is planned again
MOVED_BYTES = 20.0  # of a training per parameter


def why_again(plan: StepPlan, cluster: Cluster, *, planned_tokens: float, mean_tokens: float) -> str | None:
    """Return why a step should be planned again, or None if its plan can stay.

    Args:
        cluster: that the next steps run on. planned_tokens: mean response length that the plan was made for.
        mean_tokens: mean length that is predicted now.

    Raises:
        PlanningError: a mean length is no number above 0.

    Example:
        >>> from solver import Cluster
        >>> from solver.dataflow import CallMemory, grpo, plan_step, why_again
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return 1.0 / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> plan = plan_step(grpo(), Cluster(1, 4, 1), Costs())
        >>> why_again(plan, Cluster(1, 4, 1), planned_tokens=400, mean_tokens=420) is None
        True
        >>> why_again(plan, Cluster(1, 4, 1), planned_tokens=400, mean_tokens=500)
        'mean length 400 -> 500 tokens'
    """
    for name, tokens in (("planned_tokens", planned_tokens), ("mean_tokens", mean_tokens)):
        if not is_number(tokens, 0) or tokens == 0:
            raise PlanningError(f"{name} is {as_given(tokens)}; a mean length above 0 is needed")
    if (plan.gpus, plan.gpus_per_node) != (cluster.gpus, cluster.gpus_per_node):
        return f"GPUs {plan.gpus} in nodes of {plan.gpus_per_node} -> {cluster.gpus} in nodes of {cluster.gpus_per_node}"
    if abs(mean_tokens - planned_tokens) > MOVED_LENGTH * planned_tokens:
        return f"mean length {planned_tokens:.0f} -> {mean_tokens:.0f} tokens"
    return None


def moved_state_bytes(before: StepPlan, after: StepPlan, parameters: Mapping[str, float]) -> float:
    """Return the bytes that change places between two plans: the whole state of every training whose layout differs.

    Args:
        parameters: of the model of every trained role.

    Raises:
        PlanningError: the plans train other roles, or a role's parameters are missing or no number of 0 or more.
    """
    layouts = [{call.role: call.layout for call in plan.calls if call.kind == TRAIN} for plan in (before, after)]
    if layouts[0].keys() != layouts[1].keys():
        one, other = (", ".join(of) or "nothing" for of in layouts)
        raise PlanningError(f"one plan trains {one} and the other {other}; plans of one algorithm are needed")
    for role in layouts[0]:
        if not is_number(parameters.get(role), 0):
            raise PlanningError(f"parameters of {role!r} are {as_given(parameters.get(role))}; a number of 0 or more is needed")
    return sum(MOVED_BYTES * parameters[role] for role, layout in layouts[0].items() if layout != layouts[1][role])
