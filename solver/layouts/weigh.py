"""Plans whole training steps by period and cost: ``plan_step_for``."""

from __future__ import annotations

import math

import numpy as np

from solver.layouts.assemble import step_plan
from solver.layouts.graph import Graph
from solver.layouts.options import CallCosts, CallOptions, IntArray
from solver.layouts.plan import StepPlan
from solver.layouts.plan_objective import StepPlanObjective
from solver.layouts.planner import plan_step, problem_options
from solver.layouts.schedule import ORDERS
from solver.layouts.searched import BOUNDED_PER_EVALUATED, EQUAL, FIRST_GAP, GAPS, WORK
from solver.layouts.weighed_plan import WeighedPlan
from solver.layouts.weighed_search import WeighedSearch
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, shown, shown_above
from solver.model.objective import Objective


def plan_step_for(
    asked: StepPlanObjective,
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    gap: float = 0.01,
    work: int = WORK,
    seed: int = 0,
) -> WeighedPlan:
    """Return the step plan with the least ``T^w C^(1-w)``, the least cost within a deadline, or the least time within a budget.

    T is the time per step (period) and C the cost of a step. First ``plan_step`` finds the shortest period; values are relative
    to that plan. If all GPUs are paid for throughout, cost grows with the period, so that plan is the best one. Otherwise a
    second search of the same kind minimises the value.

    Args:
        asked: a time weight or a limit, and which GPUs are paid for.
        graph, cluster, costs, memory_bytes, gap, work, seed: as in ``plan_step``; gap and work apply to each of the two
            searches.

    Raises:
        PlanningError: an argument makes no sense, no plan fits into memory, or none is within the deadline or the budget.

    Example:
        >>> from solver import Cluster, Objective
        >>> from solver.layouts import CallMemory, StepPlanObjective, dpo, plan_step_for
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus**0.5
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> cheap = plan_step_for(StepPlanObjective(Objective(deadline_s=3.0)), dpo(), Cluster(1, 4, 1), Costs())
        >>> cheap.period_s, cheap.gpu_seconds, cheap.status
        (3.0, 4.0, 'optimal')
    """
    if not isinstance(asked, StepPlanObjective):
        raise PlanningError(f"asked is {as_given(asked)}; a StepPlanObjective is needed")
    shortest = plan_step(graph, cluster, costs, memory_bytes=memory_bytes, gap=gap, work=work, seed=seed)
    objective = asked.objective
    price = cluster.usd_per_gpu_s if objective.cost == "usd" else 1.0
    if not price:
        raise PlanningError("cost is counted in USD, but the cluster's usd_per_gpu_hour is 0; give its price")
    held_gpu_s = shortest.gpu_seconds if asked.held == "calls" else shortest.gpus * shortest.period_s
    reference = shortest.period_s, price * held_gpu_s
    usd_per_gpu_hour = cluster.usd_per_gpu_hour
    if asked.held == "step" or not shortest.period_s:
        least = _least_of_period(shortest, objective, reference)
        if least == (math.inf, math.inf):
            raise PlanningError(_out_of_reach(objective, shortest, price * held_gpu_s))
        return WeighedPlan(shortest, shortest, asked, usd_per_gpu_hour, *least, shortest.status, 0, 0)
    options = problem_options(graph, cluster, costs, memory_bytes)
    search = WeighedSearch(options, memory_bytes, objective, reference, price, seed)
    ended = _minimise(search, _options_of(options, shortest), gap, work)
    found = search.found
    if found.plan is None:
        if not ended:
            raise PlanningError(
                f"{_limit(objective)}: no such plan was found within the work; allow more work or a larger limit"
            )
        cheapest = WeighedSearch(options, memory_bytes, Objective(0.0), (1.0, 1.0), price, seed)
        cheapest.improve([_options_of(options, shortest)], work // BOUNDED_PER_EVALUATED)
        raise PlanningError(_out_of_reach(objective, shortest, cheapest.found.value))
    status = "optimal" if found.value <= found.bound / (1 - gap) * (1 + EQUAL) else "gap" if ended else "stopped"
    plan = step_plan(options, found.plan, status="given", order=found.order, lower_bound_s=shortest.lower_bound_s)
    bound = min(found.bound, found.value)
    return WeighedPlan(plan, shortest, asked, usd_per_gpu_hour, found.value, bound, status, found.evaluated, found.bounded)


def _minimise(search: WeighedSearch, start: IntArray, gap: float, work: int) -> bool:
    """Search for the least value from the plan of the shortest period, and return whether all plans were searched."""
    most = work // BOUNDED_PER_EVALUATED
    search.improve([start], most)
    gaps = [one for one in (FIRST_GAP, *GAPS) if one > gap]
    ended = all(search.prove(one, work) for one in (*gaps, gap))
    found = search.found
    if found.plan is not None and found.value * (1 - gap) > found.bound:
        for order in ORDERS:
            search.descend(found.plan, found.evaluated + most, order)
    return ended


def _least_of_period(plan: StepPlan, objective: Objective, reference: tuple[float, float]) -> tuple[float, float]:
    """Return the value of the plan of the shortest period if all GPUs are held, and its lower bound."""
    if not plan.period_s:
        return 0.0, 0.0
    times, (period_s, cost) = np.array([plan.period_s, plan.lower_bound_s]), reference
    best, bound = objective.values(times, cost / period_s * times, reference).tolist()
    return (best, bound) if best < math.inf else (math.inf, math.inf)


def _options_of(options: CallOptions, plan: StepPlan) -> IntArray:
    """Return (K,) the options that a plan of them has."""
    layouts = {call.name: call.layout for call in plan.calls}
    return np.array([of.index(layouts[call.name]) for call, of in zip(options.graph.calls, options.layouts, strict=True)])


def _limit(objective: Objective) -> str:
    """Return the limit in words."""
    name = next(name for name in ("deadline_s", "budget_gpu_s", "budget_usd") if getattr(objective, name) is not None)
    return f"{name} is {shown(getattr(objective, name))}"


def _out_of_reach(objective: Objective, shortest: StepPlan, least_cost: float) -> str:
    """Return the sentence for a limit that no plan keeps."""
    if objective.deadline_s is not None:
        found = f"the shortest period that was found is {shown_above(shortest.period_s)} s"
    else:
        found = f"the cheapest plan that was found costs {shown_above(least_cost)} {objective.cost_unit}"
    return f"{_limit(objective)}, but {found}; allow as much"
