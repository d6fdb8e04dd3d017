"""Computes the time-cost front of a workload: the non-dominated plans, and the bound curve below every plan.

Times and costs are those of the planning model. The curve is the relaxation: no plan with makespan M costs less than the curve
at M. For a workload with scenarios, times and costs of plans are means over them, and so is the curve (``bound_curve``). The
plans are searched for the predicted lengths.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from solver.model.errors import PlanningError, as_given, check_flags, is_whole
from solver.model.html_tables import rows_table
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, IntArray
from solver.planning.bound_curve import bound_curve, makespan_grid
from solver.planning.canonical_order import Canonical
from solver.planning.mixed_kinds.planner import search_mixed
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.search_options import SearchOptions, check_time_limit
from solver.planning.single_kind.fill import MOST_FILLED, fill
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.late_opening import LateOpening
from solver.planning.single_kind.rounding import at_least, next_fit
from solver.planning.work_budget import WorkBudget
from solver.timing.build_plan import assemble, timed

if TYPE_CHECKING:
    import pandas as pd


CURVE_BEYOND = 1.2  # the slowest plan, to which the curve of several kinds is dense
CASE_POINTS = 16  # of the curve of a single scenario of several kinds
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class Front:
    """Plans in order of rising makespan and falling cost, and the bound curve on a grid of makespans.

    Attributes:
        plans: non-dominated plans.
        bound_makespan_s, bound_cost: (B,) the curve; the cost is infinite where no plan is that fast.
        cost: what costs are counted in, ``gpu_s`` or ``usd``.
    """

    plans: tuple[Plan, ...]
    bound_makespan_s: FloatArray
    bound_cost: FloatArray
    cost: str = "gpu_s"

    def cost_of(self, plan: Plan) -> float:
        """Return the plan's cost in the front's unit."""
        return plan.gpu_seconds if self.cost == "gpu_s" else plan.cost_usd

    @property
    def epsilon(self) -> float:
        """Return the least e such that the front dominates every possible plan up to the factor 1 + e.

        For every makespan M of the curve some plan of the front takes at most (1 + e) M and costs at most (1 + e) times the
        bound there. Infinite for a curve that allows no plan.
        """
        times = np.array([plan.makespan_s for plan in self.plans])
        costs = np.array([self.cost_of(plan) for plan in self.plans])
        possible = np.flatnonzero(np.isfinite(self.bound_cost) & (self.bound_cost > 0))
        if not len(possible):
            return 0.0 if len(self.plans) and costs.min() <= 0 else float("inf")
        # plans with a makespan in [M_i, M_i+1] cost at least the bound at M_i+1
        worst = 0.0
        for i in possible:
            time_s = self.bound_makespan_s[max(i - 1, 0)]
            worst = max(worst, float(np.min(np.maximum(times / time_s, costs / self.bound_cost[i]))) - 1)
        return worst

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per plan (needs pandas)."""
        import pandas as pd

        return pd.DataFrame(
            {
                "actors": [len(p.actors) for p in self.plans],
                "makespan_s": [p.makespan_s for p in self.plans],
                "gpu_seconds": [p.gpu_seconds for p in self.plans],
                "cost_usd": [p.cost_usd for p in self.plans],
            }
        )

    def __repr__(self) -> str:
        unit = "GPU-s" if self.cost == "gpu_s" else "USD"
        ends = [self.plans[0], self.plans[-1]]
        return (
            f"Front({len(self.plans)} plans, "
            + " to ".join(
                f"{p.makespan_s:.2f} s / {self.cost_of(p):.4g} {unit} with {counted(len(p.actors), 'actor')}" for p in ends
            )
            + f", each within {self.epsilon:.1%} of the lower bound)"
        )

    def _repr_html_(self) -> str:
        unit = "GPU-seconds" if self.cost == "gpu_s" else "USD"
        rows = [(str(len(p.actors)), f"{p.makespan_s:.4g}", f"{self.cost_of(p):.4g}") for p in self.plans]
        caption = f"{len(rows)} plans, each within {self.epsilon:.1%} of the lower bound"
        return rows_table(caption, ("actors", "time (s)", f"cost ({unit})"), rows)


def pareto_front(
    problem: PlanningProblem, *, points: int = 40, time_limit_s: float = 3.0, deterministic: bool = False
) -> Front:
    """Return the front on ``points`` makespans between the fastest plan and one actor for everything.

    Args:
        problem: of its objective only the unit of cost counts. Front and curve describe generation alone: phases only matter
            for plans that hold their GPUs through the step.
        points: makespans of the grid.
        time_limit_s: for several kinds or sizes, whose plans are those of several weights; for one kind they take milliseconds.
        deterministic: count that limit in work instead of time, so that the front does not depend on the load of the machine.

    Raises:
        PlanningError: an argument is wrong, or nothing can be planned.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([100], [0] * 64, list(range(100, 740, 10)))
        >>> front = solver.pareto_front(solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency), points=10)
        >>> times, costs = [p.makespan_s for p in front.plans], [p.gpu_seconds for p in front.plans]
        >>> times == sorted(times), costs == sorted(costs, reverse=True)
        (True, True)
    """
    check_problem(problem)
    if not is_whole(points, 1):
        raise PlanningError(f"points is {as_given(points)}; a whole number of makespans of at least 1 is needed")
    check_time_limit(time_limit_s)
    check_flags(deterministic=deterministic)
    canonical = Canonical.of(problem.workload)
    problem = replace(problem, workload=canonical.workload)
    cost = problem.objective.cost
    if problem.several_kinds:
        options = SearchOptions(time_limit_s, deterministic=deterministic)
        free = replace(problem.planning_model, objective=Objective(cost=cost))
        plans = _plans_of_weights(free, options)
        dense_s = CURVE_BEYOND * max(plan.makespan_s for plan in plans)
        cases = free.workload.cases()
        # over scenarios, bounds are coarser once the time limit is spent as work
        share, stop_at = time_limit_s / len(cases), options.stop_at(time.perf_counter(), time_limit_s)
        budgets = [WorkBudget(share, stop_at) if len(cases) > 1 else WorkBudget() for _ in cases]
        bounds = [Sequences.of_case(free, case, budget) for case, budget in zip(cases, budgets, strict=True)]
        curve = bound_curve(bounds, points, dense_s, min(points, CASE_POINTS))
    else:
        plans = _rounded_plans(problem, points)
        bounds_of = [LateOpening.of_problem(replace(problem, workload=case)) for case in problem.workload.cases()]
        curve = bound_curve(bounds_of, points)
    return Front(_undominated([*map(canonical.with_caller_indices, plans)], cost), *curve, cost)


def _plans_of_weights(problem: PlanningProblem, options: SearchOptions) -> list[Plan]:
    """Return all plans found for the weights 0 to 1 of time, dominated ones too, for several kinds of actors.

    Args:
        problem: only the unit of cost of its objective is used. options: the time limit is of all weights together.
    """
    share = replace(options, time_limit_s=options.time_limit_s / len(WEIGHTS))
    plans: list[Plan] = []
    for weight in WEIGHTS:
        outcome = search_mixed(replace(problem, objective=Objective(weight, cost=problem.objective.cost)), share)
        plans += [outcome.plan, *outcome.candidates]
    return plans if problem.workload.scenarios is None else [timed(plan, problem) for plan in plans]


def _rounded_plans(problem: PlanningProblem, points: int) -> list[Plan]:
    """Return the plans that the roundings at ``points`` makespans give, for one kind of actors."""
    work = SortedWork.of_problem(problem)
    seen: dict[bytes, Plan] = {}
    for makespan_s in makespan_grid(LateOpening.of_problem(problem), points).tolist():
        for groups in _roundings(work, makespan_s):
            responses = [work.responses(group) for group in at_least(groups, problem.min_actors)]
            key = np.concatenate(responses).tobytes() + np.array([len(r) for r in responses]).tobytes()
            if key not in seen:
                seen[key] = assemble("solver", responses, problem)
    return list(seen.values())


def _undominated(candidates: list[Plan], cost: str) -> tuple[Plan, ...]:
    """Return the plans that no other plan beats in time and cost, faster ones first."""

    def paid(plan: Plan) -> float:
        return plan.gpu_seconds if cost == "gpu_s" else plan.cost_usd

    plans: list[Plan] = []
    for plan in sorted(candidates, key=lambda p: (p.makespan_s, paid(p))):
        if not plans or paid(plan) < paid(plans[-1]):
            plans.append(plan)
    return tuple(plans)


def _roundings(work: SortedWork, makespan_s: float) -> list[list[IntArray]]:
    """Return groupings of items that end by ``makespan_s``; empty if there are none."""
    edges = next_fit(work, makespan_s)
    groupings = [] if edges is None else [[np.arange(a, b) for a, b in itertools.pairwise(edges.tolist())]]
    filled = fill(work, makespan_s) if len(work) <= MOST_FILLED else None
    return groupings if filled is None else [*groupings, filled]
