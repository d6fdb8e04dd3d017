"""Computes the time-cost front of a workload: the non-dominated plans, and the bound curve below every plan.

Times and costs are those of the planning model. The curve is a lower bound (``solver.bounds.plans``): no plan with makespan M
costs less than the curve at M. For a workload with scenarios, times and costs of plans are means over them, as is the curve.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from solver.bounds.plans import PlanBound
from solver.generation.canonical_order import Canonical
from solver.generation.column_model import ColumnModel
from solver.generation.columns import first_cuts
from solver.generation.fill import Filler, openings_of
from solver.generation.plan_values import Actors
from solver.generation.planner import FULL, Planner
from solver.model.errors import PlanningError, as_given, is_whole
from solver.model.html_tables import rows_table
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray

if TYPE_CHECKING:
    import pandas as pd


WEIGHTS = (0.5, 0.7, 0.9, 1.0)  # of time, whose plans are candidates of a front over scenarios
CURVE_BEYOND = 1.2  # the slowest plan, up to which the curve is dense
CASE_POINTS = 16  # of the curve of a single scenario
CELLS = 96  # into which items are cut
HALVINGS = 8  # of the least makespan


@dataclass(frozen=True, eq=False)
class Front:
    """Plans in order of rising makespan and falling cost, and the bound curve on a grid of makespans.

    Attributes:
        plans: of which none beats another. Over scenarios, none of ``plan`` at ``WEIGHTS`` beats them all either; at other
            weights, and with one set of lengths, a plan may be a little beyond the front.
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


def pareto_front(problem: PlanningProblem, *, points: int = 40) -> Front:
    """Return plans from the fastest to the cheapest: the time-cost front at ``points`` makespans, up to one actor for
    everything.

    Candidate actors are priced once. At every makespan the cheapest set of actors is chosen, and responses are assigned to it.
    Over scenarios, ``plan``'s own candidates at some time weights take part, so that none of its plans there is better.

    Args:
        problem: the step; of its objective only the unit of cost is used. The front describes generation alone: phases only
            matter for plans that hold their GPUs through the step.
        points: number of makespans.

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
    canonical, cost = Canonical.of(problem.workload), problem.objective.cost
    free = replace(problem, workload=canonical.workload, objective=Objective(cost=cost)).planning_model
    plans = _plans(free, points)
    curve = PlanBound(free).front(points, CURVE_BEYOND * plans[-1].makespan_s, min(points, CASE_POINTS))
    return Front(tuple(map(canonical.with_caller_indices, plans)), *curve, cost)


def _plans(problem: PlanningProblem, points: int) -> list[Plan]:
    """Return the plans that no other one beats: of the random split, of those that are bought and filled at ``points``
    makespans, and over scenarios of all that ``plan`` times at ``WEIGHTS``.

    Over scenarios, plans that share responses evenly are often faster than those that are bought for their typical lengths.

    Args:
        problem: without a limit, its workload in canonical order.
    """
    planner = Planner(problem, FULL, 0, time.perf_counter())
    found = [planner.split]
    for weight in WEIGHTS if problem.workload.scenarios is not None else ():
        weighed = planner.weighed(weight)
        weighed.search()
        found += weighed.seen
    cuts = first_cuts(planner.items, CELLS)
    columns = planner.prices.of_offers(cuts, [1])
    if len(columns):
        model = ColumnModel(columns, len(cuts) - 1, planner.items, planner.problem, planner.goal)
        for makespan_s in _makespans(model, points):
            found += map(planner.values.of, _bought(model, planner.filler, makespan_s))
    possible = [plan for plan in found if len(plan.actors) >= problem.needed_actors]
    means = [(float(plan.makespan_s.mean()), float(plan.cost.mean())) for plan in possible]
    return [planner.values.assembled(possible[i]) for i in _undominated(means)]


def _makespans(model: ColumnModel, points: int) -> list[float]:
    """Return makespans from about the least at which columns cover everything to that of the cheapest choice."""
    high_s = float(model.risk_s.max())
    cheapest = model.at(high_s)
    if cheapest is None:
        return []
    low_s, high_s = max(float(model.risk_s.min()), 1e-12), max(float(model.risk_s[cheapest.columns].max()), 1e-12)
    late_s = high_s
    for _ in range(HALVINGS):
        middle = math.sqrt(low_s * late_s)
        low_s, late_s = (low_s, middle) if model.at(middle) is not None else (middle, late_s)
    return [float(m) for m in np.geomspace(late_s, high_s, points)]


def _bought(model: ColumnModel, filler: Filler, makespan_s: float) -> list[Actors]:
    """Return the actors of the cheapest columns at a makespan, and the same filled up to it item by item."""
    relaxed = model.at(makespan_s)
    chosen = None if relaxed is None else model.whole(makespan_s, relaxed)
    if chosen is None:
        return []
    openings = openings_of(model.columns, chosen)
    top_s = float(model.columns.time_s[chosen].mean(axis=1).max())
    filled = [filler.at(openings, makespan_s)]
    if (least := filler.least(openings, 0.7 * top_s, top_s)) is not None:
        filled.append(least.shares)
    return [filler.actors(shares) for shares in filled if shares is not None]


def _undominated(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the positions of the (time, cost) that no other beats in both, the fastest first; of equal ones the first."""
    least, found = math.inf, []
    for i in sorted(range(len(points)), key=points.__getitem__):
        if points[i][1] < least:
            least = points[i][1]
            found.append(i)
    return found
