"""Lower bounds on every plan of a step: a fixed assignment of responses to actors, with the lengths or scenarios of a problem.

What a plan costs within a makespan is bounded by late opening: for one kind of actors in ``solver.bounds.late_opening``, for
several in ``solver.bounds.sequences``. From that follow, for plans with one set of lengths or several scenarios:

**Values.** A plan whose makespan is in the interval [M_low, M_high] has at least the makespan M_low and the bounded cost at
M_high, as that cost never rises with the makespan. So its value is at least value(M_low, cost(M_high)), for every value that
rises with both. The least of these over intervals that contain all makespans is below every plan. Halving the interval where it
is least makes the bound tighter (``MakespanIntervals``).

**Values over scenarios.** A plan is one and the same in all scenarios. So in scenario s its value v_s is at least l_s, the
least value of any plan for the lengths of s. That is what could be done if s were known. Mean and conditional value at risk
never fall when their arguments rise, so the value over the scenarios is at least that of (l_s).

**Limits over scenarios.** Let a deadline D limit the risk of the time T. Time and cost of a plan in scenario s are those of one
of its intervals at least, t_si and c_si. So for every rate r >= 0 the risk of the cost C of a plan that keeps the deadline is
at least

    risk(C + r T) - r risk(T)  >=  risk of min_i (c_si + r t_si)  -  r D ,

because the risk of a sum is at most the sum of the risks. The largest of these over many r is the bound. For a budget B the
parts are exchanged: the risk of the time is at least (risk of min_i (c_si + r t_si) - B) / r.

**Mean cost by mean makespan.** Let intervals that begin at t_si cover the makespans that a plan may have in scenario s. Let no
plan whose makespan there lies in the i-th interval cost less than c_si there. Then a plan with mean makespan T has a mean cost
of at least ``mean_s min_i (c_si + r t_si) - r T`` for every r >= 0. *Proof.* In s the plan takes some T_s and C_s with ``C_s +
r T_s >= c_si + r t_si`` for the interval of T_s, so at least the minimum. Take the mean over s. The bound is the largest of
these for many r: the curves of single scenarios made convex and added up. That one plan is the same in all scenarios is not
used. It never rises with T, so it holds for all plans up to T.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from solver.bounds.bound import Bound
from solver.bounds.late_opening import CostBound, LateOpening
from solver.bounds.sequences import WIDTH, SequenceBound
from solver.model.errors import check_real
from solver.model.objective import Objective
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

PLANS = "late opening"  # method of the bound
# ends of the first intervals, in makespans of a known plan; for several offers quickly, and over scenarios
NEAR, QUICK_NEAR = (0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0), (0.9, 0.98, 1.0, 1.05, 1.2)
HALVINGS, SCENARIO_HALVINGS = (40, 8), (8, 4)  # of intervals, and quickly; of those of each scenario
QUICK_WIDTH = 60  # of the bound over sequences
NARROW = 1e-7  # relative width of makespans below which an interval is not halved any more
RATES = np.geomspace(0.05, 100.0, 64)  # values of r under a limit, in C_ref / T_ref of the objective
CURVE_RATES = 256  # values of r of a mean curve
SCENARIO_POINTS = 40  # of the curve of each scenario
NOT_NEAR = 1.5  # times the least makespan, where the value is sought when no plan is known


class PlanBound(Bound):
    """Lower bounds on every plan of a problem; times and costs are means over its scenarios.

    Args:
        problem: in the planning model (``PlanningProblem.planning_model``), by which plans are timed.
        quick: with several kinds of actors, less work and a looser bound.

    Attributes:
        cases: the bound on the cost of plans, in the unit of the objective, for each scenario.
    """

    def __init__(self, problem: PlanningProblem, quick: bool = False) -> None:
        check_problem(problem)
        workloads = problem.workload.cases()
        self.problem, self._several = problem, len(workloads) > 1
        self._quick = quick and problem.several_kinds  # of one kind all bounds are quick
        self._coarse = problem.several_kinds and (quick or self._several)
        self.length, self.ready_s, self.phases = problem.workload.points.remaining_tokens.astype(float), 0.0, problem.phases
        self.cases = tuple(self._cost_bound(replace(problem, workload=workload)) for workload in workloads)

    def _cost_bound(self, case: PlanningProblem) -> CostBound:
        """Plans are made for the predicted lengths, in which less may have anything to generate than in a scenario."""
        items, least = Items.of(case), min(self.problem.needed_actors, case.needed_actors)
        if len(items.offers) == 1:
            return LateOpening(items, least)
        return SequenceBound(items, least, QUICK_WIDTH if self._coarse else WIDTH)

    def gpu_seconds(self, time_s: float) -> float:
        """Return the least GPU-seconds of any plan whose makespan is at most ``time_s``; infinite if no plan is that fast."""
        check_real("time_s", time_s)
        if not self._several:
            return self._in_gpu_s.cases[0].at(time_s)
        return float(mean_curve(*self._in_gpu_s._intervals, np.array([time_s]))[0])

    @cached_property
    def _in_gpu_s(self) -> PlanBound:
        return self if self.problem.objective.cost == "gpu_s" else PlanBound(replace(self.problem, objective=Objective()))

    @cached_property
    def _intervals(self) -> tuple[FloatArray, FloatArray]:
        return _intervals(self.cases, [_grid(case, SCENARIO_POINTS) for case in self.cases])

    def method(self, time_s: float) -> str:
        """Return ``late opening``."""
        return PLANS

    def value(self, objective: Objective) -> float:
        """See ``Bound``; the objective may count dollars, too."""
        own = PlanBound(replace(self.problem, objective=objective), self._quick)
        near_s = [NOT_NEAR * case.least_makespan_s for case in own.cases]
        return own.value_near(math.inf, (1.0, 1.0), near_s) if np.isfinite(near_s).all() else math.inf

    def value_near(self, known_value: float, norms: tuple[float, float], makespans_near: ArrayLike) -> float:
        """Return the least value of any plan under the problem's objective, over the scenarios where there are some.

        Args:
            known_value: of some plan, above which no bound is needed; infinite if none is known.
            norms: T_ref and C_ref of the values.
            makespans_near: makespan of a good plan, or (S,) those in every scenario: the bound is tight near them.
        """
        problem, goal = self.problem, StepObjective.of_problem(self.problem, norms)
        limited = self._several and goal.objective.limited  # over scenarios, a plan may break the limit in one of them
        priced = replace(goal, objective=Objective(cost=goal.objective.cost)) if limited else goal
        near = np.broadcast_to(np.asarray(makespans_near, dtype=float), (len(self.cases),))
        scenarios = [
            MakespanIntervals(
                case,
                priced,
                makespan_s * np.array(QUICK_NEAR if self._coarse else NEAR),
                math.inf if limited else problem.generation_within_s,
                math.inf if self._several else known_value,
            )
            for case, makespan_s in zip(self.cases, near.tolist(), strict=True)
        ]
        halvings = (SCENARIO_HALVINGS if self._several else HALVINGS)[self._quick]
        if limited:
            bound = limited_value(goal, scenarios, halvings)
        else:
            bound = goal.objective.risk(np.array([intervals.least_value(halvings) for intervals in scenarios]))
        return max(0.0, min(bound * (1 - 1e-9), known_value))

    def least_limited(self) -> float:
        """Return the least of what the objective limits: time of the step under a deadline, cost under a budget.

        Over scenarios it is the risk of the bounds. It is infinite when there is no plan.
        """
        goal = StepObjective.of_problem(self.problem)

        def least(case: CostBound) -> float:
            if goal.objective.deadline_s is not None:
                return goal.phases.step_time_s(case.least_makespan_s)
            return float(goal.step(case.shortest_makespan_s, case.at(case.longest_makespan_s))[1])

        return goal.objective.risk(np.array([least(case) for case in self.cases]))

    def front(self, points: int, up_to_s: float = math.inf, case_points: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Return ``points`` makespans and, up to each, the least cost of generation of any plan, in the objective's unit.

        Args:
            up_to_s: the makespans are dense up to here; the last one is that of everything on one actor in any case.
            case_points: makespans for every scenario, if there are several; ``points`` when None.
        """
        grids = [_grid(case, case_points or points if self._several else points, up_to_s) for case in self.cases]
        begins, costs = _intervals(self.cases, grids)
        if not self._several:
            return grids[0], costs[0]
        grid = np.geomspace(np.mean([g[0] for g in grids]), np.mean([g[-1] for g in grids]), points)
        return grid, mean_curve(begins, costs, grid)


class MakespanIntervals:
    """The intervals for one set of lengths, between the least makespan and ``last_s``.

    Args:
        goal: says when actors release their GPUs.
        grid: makespans at which the first intervals meet, besides the ends.
        last_s: above it no plan is relevant; by default the longest makespan of ``bound``, from which on none costs less.
        known: value from which on a bound of ``goal`` need not be tighter; infinite where other values are asked for, too.
    """

    def __init__(
        self, bound: CostBound, goal: StepObjective, grid: Iterable[float], last_s: float = math.inf, known: float = math.inf
    ) -> None:
        self.bound, self.goal, self.known = bound, goal, known
        first_s = bound.shortest_makespan_s
        last_s = max(first_s, min(last_s, bound.longest_makespan_s))
        edges = sorted({first_s, last_s, *(m for m in grid if first_s < m < last_s)})
        self._low = edges[:-1] or edges
        self._high = edges[1:] or edges
        self._cost = [self._bounded(*ends) for ends in zip(self._low, self._high, strict=True)]

    def _bounded(self, low_s: float, high_s: float) -> float:
        return self.bound.at(high_s, self.goal.most_cost(self.known, low_s), low_s)

    @property
    def ends(self) -> tuple[FloatArray, FloatArray]:
        """Return the least makespan of every interval, and its bound on the cost of generation: infinite without plans."""
        return np.array(self._low), np.array(self._cost)

    def halve(self, i: int) -> bool:
        """Halve the i-th interval, and return whether it was wide enough for that."""
        low, high, cost = self._low[i], self._high[i], self._cost[i]
        if high - low <= NARROW * high:
            return False
        middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
        # the bound on the cost of the upper half is known where it does not depend on its least makespan
        upper = cost if self.goal.held_after_s is None else max(cost, self._bounded(middle, high))
        self._low.append(middle)
        self._high.append(high)
        self._cost.append(upper)
        self._high[i], self._cost[i] = middle, max(cost, self._bounded(low, middle))
        return True

    def least_value(self, halvings: int) -> float:
        """Return the lower bound on the value of ``goal`` of any plan, after so many halvings; infinite if there is no plan."""
        values = [self._value(i) for i in range(len(self._low))]
        for _ in range(halvings):
            i = int(np.argmin(values))
            if values[i] >= self.known * (1 - 1e-6) or not self.halve(i):
                break
            values[i] = self._value(i)
            values.append(self._value(len(values)))
        return min(values)

    def _value(self, i: int) -> float:
        return math.inf if math.isinf(self._cost[i]) else self.goal.value(self._low[i], self._cost[i])


def limited_value(goal: StepObjective, scenarios: Sequence[MakespanIntervals], halvings: int) -> float:
    """Return the lower bound on the cost over the scenarios under a deadline, on the time under a budget.

    In every round it halves, in each scenario, the interval that decides at the best rate so far.
    """
    best = 0.0
    for left in reversed(range(halvings + 1)):
        rate, bound = _best_rate(goal, scenarios)
        best = max(best, bound)
        halved = [intervals.halve(int(np.argmin(_sums(goal, intervals, rate)))) for intervals in scenarios if left]
        if not any(halved):
            break
    return best


def _sums(goal: StepObjective, intervals: MakespanIntervals, rate: float) -> FloatArray:
    """Return c + r t of the step for every interval; with an infinite rate t alone."""
    time_s, cost = goal.step(*intervals.ends)
    return np.asarray(np.where(np.isfinite(cost), time_s, np.inf) if np.isinf(rate) else cost + rate * time_s)


def _best_rate(goal: StepObjective, scenarios: Sequence[MakespanIntervals]) -> tuple[float, float]:
    """Return the rate with the highest bound, and that bound."""
    objective, (time_ref, cost_ref) = goal.objective, goal.norms
    deadline = objective.deadline_s
    bounds: list[tuple[float, float]] = []
    for rate in [0.0 if deadline is not None else np.inf, *(RATES * cost_ref / time_ref).tolist()]:
        risk = objective.risk(np.array([_sums(goal, intervals, rate).min() for intervals in scenarios]))
        if deadline is not None:
            bounds.append((risk - rate * deadline, rate))
        else:
            assert objective.budget is not None
            bounds.append((risk if np.isinf(rate) else (risk - objective.budget) / rate, rate))
    bound, rate = max(bounds)
    return rate, bound


def _grid(bound: CostBound, points: int, up_to_s: float = math.inf) -> FloatArray:
    """Return makespans from the least possible one to that of everything on one actor, dense up to ``up_to_s``."""
    first_s = max(bound.shortest_makespan_s, 1e-12)  # 0 when every response is complete already
    last_s = max(first_s, bound.longest_makespan_s)
    if up_to_s >= last_s:
        return np.geomspace(first_s, last_s, points)
    return np.append(np.geomspace(first_s, max(first_s, up_to_s), max(points - 1, 1)), last_s)


def _intervals(cases: Sequence[CostBound], grids: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return (S, B) makespans at which intervals begin, and the least cost of a plan in each."""
    begins = [np.concatenate([[case.shortest_makespan_s], grid[:-1]]) for case, grid in zip(cases, grids, strict=True)]
    costs = [
        [case.at(high, low_s=low) for low, high in zip(begin.tolist(), grid.tolist(), strict=True)]
        for case, begin, grid in zip(cases, begins, grids, strict=True)
    ]
    return np.array(begins), np.array(costs)


def mean_curve(begin_s: FloatArray, cost: FloatArray, makespan_s: FloatArray) -> FloatArray:
    """Return (G,) lower bounds of the mean cost of plans with a mean makespan of up to ``makespan_s``; infinite if no
    plan is that fast.

    Args:
        begin_s, cost: (S, B) of the intervals of each scenario, rising in time; an infinite cost means no plan.
        makespan_s: (G,) mean makespans.
    """
    possible = np.isfinite(cost)
    if not possible.any(axis=1).all():
        return np.full(len(makespan_s), np.inf)
    least_s = float(np.where(possible, begin_s, np.inf).min(axis=1).mean())
    falls = np.where(possible[:, 1:] & possible[:, :-1], -np.diff(np.where(possible, cost, 0.0), axis=1), 0.0)
    slopes = falls / np.maximum(np.diff(begin_s, axis=1), 1e-300)
    steep = slopes[(falls > 0) & (np.diff(begin_s, axis=1) > 0)]
    rates = np.concatenate([[0.0], np.geomspace(steep.min(), steep.max(), CURVE_RATES)]) if len(steep) else np.zeros(1)
    least = np.min(np.where(possible, cost, np.inf)[:, :, None] + begin_s[:, :, None] * rates, axis=1).mean(axis=0)
    bound = (least - rates * makespan_s[:, None]).max(axis=1)
    return np.asarray(np.where(makespan_s < least_s * (1 - 1e-12), np.inf, bound * (1 - 1e-9)))
