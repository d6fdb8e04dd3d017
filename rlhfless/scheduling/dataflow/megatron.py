"""Plans a step by Megatron's rule of thumb: every call on all GPUs, tensor parallel in a node, pipeline stages across nodes.

ReaL (arXiv:2406.14088, section 8) compares itself with this plan. No weights are ever sent, and calls run one after another.
"""

from __future__ import annotations

import math

import numpy as np

from rlhfless.scheduling.dataflow.judge import judged, judged_options
from solver.layouts import CallCosts, Graph, Layout, StepPlan
from solver.layouts.costs import CallOptions, IntArray
from solver.layouts.times import Order
from solver.model.cluster import Cluster


def megatron_plan(
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    order: Order = "fifo",
    lower_bound_s: float = 0.0,
) -> StepPlan:
    """Return the step plan of Megatron's rule: tp 8 (at most a node), pp = number of nodes, dp 1, for every call.

    Where a call does not run like this, it gets the largest mesh, then the largest tp, then the largest pp of at most the
    number of nodes.

    Args:
        graph, cluster, costs, memory_bytes: see ``solver.plan_step``. order: in which ready calls start.
        lower_bound_s: on the period of every plan, for example that of ``plan_step``.

    Returns:
        The plan, with status ``given``, or ``infeasible`` where a GPU has too few bytes.

    Raises:
        PlanningError: an argument makes no sense, or a call runs in no layout.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import CallMemory, dpo
        >>> from rlhfless.scheduling.dataflow import megatron_plan
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> plan = megatron_plan(dpo(), Cluster(2, 4, 1), Costs())
        >>> [str(call.layout.strategy) for call in plan.calls], plan.period_s
        (['1x4x2', '1x4x2'], 0.5)
    """
    options = judged_options(graph, cluster, costs, memory_bytes, order, lower_bound_s)
    return judged(options, megatron_options(options), memory_bytes, order, lower_bound_s)


def megatron_options(options: CallOptions) -> IntArray:
    """Return (K,) the option of every call by the rule."""
    nodes = max(1, options.gpus // options.gpus_per_node)

    def rank(layout: Layout) -> tuple[int, int, bool, int]:
        strategy = layout.strategy
        return -layout.mesh.gpus, -strategy.tp, strategy.pp > nodes, -strategy.pp

    ranks = ([rank(layout) for layout in of_call] for of_call in options.layouts)
    return np.array([of_call.index(min(of_call)) for of_call in ranks])
