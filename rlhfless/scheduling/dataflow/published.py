"""Plans a step by every published way that is asked for, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlhfless.errors import InputError
from rlhfless.scheduling.dataflow.colocated import colocated_plan
from rlhfless.scheduling.dataflow.megatron import megatron_plan
from rlhfless.scheduling.dataflow.real import real_plan
from solver.layouts import CallCosts, Graph, StepPlan
from solver.model.cluster import Cluster
from solver.model.errors import as_given

PUBLISHED_PLANS: dict[str, Callable[..., StepPlan]] = {
    "megatron": megatron_plan,
    "real": real_plan,
    "verl": colocated_plan,
}
"""Ways to plan a step by name; all take the arguments of ``megatron_plan``."""


def published_plans(
    names: Sequence[str],
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    lower_bound_s: float = 0.0,
) -> dict[str, StepPlan]:
    """Return the plan of each named way.

    Args:
        names: of ``PUBLISHED_PLANS``. graph, cluster, costs, memory_bytes: see ``solver.layouts.plan_step``.
        lower_bound_s: on the period of every plan, for example that of ``plan_step``.

    Raises:
        InputError: names are no list, or one is unknown; the message lists those that exist.
        PlanningError: an argument makes no sense, or a call runs in no layout.

    Example:
        >>> from rlhfless.scheduling.dataflow import published_plans
        >>> plans = published_plans(["megatron"], graph, cluster, costs, lower_bound_s=plan.lower_bound_s)
        >>> list(plans)
        ['megatron']
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InputError(f"names of published plans are {as_given(names)}; a list of them is needed, such as ['megatron']")
    unknown = [name for name in names if not isinstance(name, str) or name not in PUBLISHED_PLANS]
    if unknown:
        raise InputError(f"there is no published plan {as_given(unknown[0])}; choose from {', '.join(PUBLISHED_PLANS)}")
    return {
        name: PUBLISHED_PLANS[name](graph, cluster, costs, memory_bytes=memory_bytes, lower_bound_s=lower_bound_s)
        for name in names
    }
