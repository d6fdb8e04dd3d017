"""Times and sizes the layouts of published planners by the cost model of ``plan_step``."""

from __future__ import annotations

from solver.layouts import CallCosts, Graph, StepPlan
from solver.layouts.costs import CallOptions, IntArray
from solver.layouts.plan import step_plan
from solver.layouts.planner import problem_options
from solver.layouts.times import ORDERS, Order
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_number


def judged_options(
    graph: Graph, cluster: Cluster, costs: CallCosts, memory_bytes: float, order: Order, lower_bound_s: float
) -> CallOptions:
    """Return the options of every call for a published way, once what ``judged`` takes is checked.

    Raises:
        PlanningError: an argument makes no sense, or a call runs in no layout.
    """
    if order not in ORDERS:
        raise PlanningError(f"order is {as_given(order)}; {' or '.join(map(repr, ORDERS))} is needed")
    if not is_number(lower_bound_s, 0):
        raise PlanningError(f"lower_bound_s is {as_given(lower_bound_s)}; a number of 0 or more is needed")
    return problem_options(graph, cluster, costs, memory_bytes)


def judged(
    options: CallOptions,
    plan: IntArray,
    memory_bytes: float,
    order: Order,
    lower_bound_s: float,
    history: tuple[tuple[int, float], ...] = (),
) -> StepPlan:
    """Return the step plan of (K,) options, with status ``given``, or ``infeasible`` where a GPU has too few bytes."""
    fits = options.peak_bytes(plan[None]).max() <= memory_bytes
    status = "given" if fits else "infeasible"
    return step_plan(options, plan, status=status, order=order, lower_bound_s=lower_bound_s, history=history)
