"""Plans on several offers: one search where lengths are known, and the best of its plans over scenarios of lengths.

``solver.planning.planner`` has what planning for one kind of actors does, too.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from solver.model.errors import PlanningError
from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, Workload
from solver.planning.candidates import Candidates
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.parametric_lp import load
from solver.planning.mixed_kinds.point_search import COUNTED, EXCHANGED, HURRY_S, LAST_S, PointSearch
from solver.planning.mixed_kinds.refusal import no_room, too_long_together
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.planner import Planner
from solver.planning.reference import reference_of
from solver.planning.search_options import SearchOptions
from solver.planning.work_budget import WorkBudget
from solver.timing.build_plan import with_times
from solver.timing.evaluate import evaluate
from solver.timing.step_cost import StepObjective

BLAME = 0.05  # share of the time limit for finding out how far a limit is from what can be kept
BEYOND = 0.3  # of the time limit, for the fastest (cheapest) plan of all where none keeps the limit
ROOM, LATEST_ROOM = 0.06, 1.15  # of the time limit: for each look at more slots or memory, and when the last one begins
# over scenarios
SEARCH = 0.5  # of the time limit, less what timing two plans over the scenarios takes, for plans for the predicted lengths
COUNTED_HERE = 0.75  # share of the time limit that counted work may take; vectors and heaps are easier to foresee than searches
RESPONSE_S, BUILD_S = 6e-7, 3e-7  # what a response of a scenario takes to time, and to sort and sum (see ``work_budget``)
NEAREST, NEAR = 0.5, 3  # of the time for that search, for one towards the limit alone, and how many of its plans are timed
BOUNDS = 0.35  # of the work is kept for the bounds


@dataclass(frozen=True, eq=False)
class MixedOutcome:
    """The best plan, and other good ones (best first, the random split last), one for every number of actors of each offer."""

    plan: Plan
    candidates: tuple[Plan, ...]


def search_mixed(problem: PlanningProblem, options: SearchOptions, *, max_candidates: int = 8) -> MixedOutcome:
    """Search for a plan for the predicted lengths and its bound; return also the other good plans found.

    Args:
        options: see ``MixedKindsPlanner``. max_candidates: other plans to return at most, as far as there is time.

    Raises:
        PlanningError: no plan exists or none was found; the message names the limit and by how much it is missed.
    """
    if options.time_limit_s >= HURRY_S:
        load()  # once per process, before the clock starts
    points = replace(problem, workload=problem.workload.points)
    planner = MixedKindsPlanner(points, options, time.perf_counter(), max_candidates)
    plan = planner.plan()
    plans = planner.points.plans
    others = [replace(other, notes=planner.notes) for other in plans.others(max_candidates, planner.points.last_at)]
    return MixedOutcome(plan, (plan, *others, plans.split))


class MixedKindsPlanner(Planner):
    """Plans one step on several offers.

    The time limit is for everything but loading OR-Tools. The search stops when the work that it counts (see ``work_budget``)
    reaches ``COUNTED`` of it. Exchanges between the best plan's actors stop when theirs reaches ``EXCHANGED`` of it. So the
    same problem has the same plan. The clock is a safety net. Building the work and the random split come first, so a limit
    below their time cannot be kept. They take about 30 ms for 2,048 responses on six offers and 0.15 s for 16,384.
    ``notes["stopped_by"]`` is ``proof``, ``failures`` (nothing better found, nothing left to prove), ``work`` or ``time``.

    Over scenarios, the random split and the best plans for the predicted lengths are timed over all of them. The remaining work
    goes into the bound of every scenario. Under a deadline (a budget) the bound is that of the cost (the time) without any
    limit. Timing the split over all scenarios and a first plan for the predicted lengths come first, however little time is
    left. They take 0.5 to 2 microseconds (where memory binds, on a busy machine) for each response of each scenario besides.
    The history holds values over the scenarios; that of the search for the predicted lengths, in its own values, is in
    ``notes["predicted"]``.

    Args:
        max_candidates: plans that are timed after the search for the predicted lengths, for which some time is kept.
    """

    shows_scenarios = True

    def __init__(self, problem: PlanningProblem, options: SearchOptions, began: float, max_candidates: int = 0) -> None:
        super().__init__(problem, options, began)
        self.max_candidates, self.time_limit_s = max_candidates, options.time_limit_s
        self.points: PointSearch
        self._works: dict[int, MixedWork] = {}  # by the identity of the lengths

    def search(self) -> None:
        """Search plans for the predicted lengths; over scenarios they are candidates."""
        if self.problem.workload.scenarios is not None:
            self._search_candidates()
            return
        self.points = PointSearch(self.problem, self.options, self.began, self.max_candidates, self._note)
        self.reference, self.goal = self.points.plans.reference, self.points.plans.goal
        self._works[id(self.problem.workload)] = self.points.work
        self.notes = {"stopped_by": self.points.run()}
        self.stopped = self.notes["stopped_by"] == "time"
        if math.isinf(self.points.plans.value) and self.problem.objective.limited:
            self._look_beyond_limit()

    def _look_beyond_limit(self) -> None:
        """Look once more before a limit is refused: every plan of few responses, else the best plans for what it limits."""
        plans, objective = self.points.plans, self.problem.objective
        plans.try_every_plan()
        if math.isinf(plans.value):
            weight = 0.0 if objective.deadline_s is None else 1.0
            free = replace(self.problem, objective=Objective(weight, cost=objective.cost))
            quick = replace(self.options, time_limit_s=BEYOND * self.time_limit_s, explains=False)
            for plan in search_mixed(free, quick).candidates:
                plans.offer(plan)
        self._note("near the limit")

    def _note(self, cause: str) -> None:
        """Record the state of the search for single lengths in the history."""
        self.best, self.value = self.points.plans.plan, self.points.plans.value
        self.bound = max(self.bound, self.points.lower_bound)
        self.keep(cause)

    def _search_candidates(self) -> None:
        """Search plans for the predicted lengths, and time the random split over the scenarios."""
        problem, objective, limit_s = self.problem, self.problem.objective, self.time_limit_s
        self.scenario_budget = WorkBudget(COUNTED_HERE * limit_s, self.options.stop_at(self.began, LAST_S * limit_s))
        self.once_s = RESPONSE_S * len(problem.workload) * len(problem.workload.cases())
        search_s = max(0.1 * limit_s, SEARCH * limit_s - 2 * self.once_s)
        # without a plan that keeps the limit over the scenarios: what comes nearest keeps it, or says how far it is missed
        weight = 0.0 if objective.deadline_s is None else 1.0
        self.nearest_problem = replace(problem, objective=Objective(weight, cost=objective.cost))
        self.nearest_options = replace(self.options, time_limit_s=NEAREST * search_s)
        self.near: MixedOutcome | None = None
        try:
            self.outcome = search_mixed(problem, replace(self.options, time_limit_s=search_s, explains=False))
        except PlanningError:
            if not objective.limited:
                raise
            self.outcome = self.near = search_mixed(self.nearest_problem, self.nearest_options)
        self.stopped = self.outcome.plan.status == "stopped"
        self.scenario_budget.spend((COUNTED + EXCHANGED) * search_s)
        before = time.perf_counter()
        split, time_s, cost = self._over_scenarios(self.outcome.candidates[-1])
        self.reference = reference_of(problem, len(split.actors), split.makespan_s, split.gpu_seconds, split.cost_usd)
        self.goal = StepObjective.of_problem(problem, self.reference.norms(objective.cost))
        self.candidates = Candidates(
            objective, self.goal.norms, self._over_scenarios, self.scenario_budget, time.perf_counter() - before,
            lambda plan: len(plan.actors) >= problem.needed_actors,
        )  # fmt: skip
        self.keep("random split", self.candidates.note(split, time_s, cost))

    def _over_scenarios(self, plan: Plan) -> tuple[Plan, FloatArray, FloatArray]:
        """Return the plan with its times over the scenarios, and time and cost of the step in each."""
        self.scenario_budget.spend(self.once_s)
        taken = evaluate(plan, self.problem)
        cost = taken.gpu_seconds_of if self.problem.objective.cost == "gpu_s" else taken.cost_usd_of
        time_s, cost = StepObjective.of_problem(self.problem).step(taken.makespans_s, cost)
        return with_times(plan, taken), time_s, cost

    def price_over_scenarios(self) -> None:
        """Time the plans for the predicted lengths over the scenarios."""
        for i, plan in enumerate((self.outcome.plan, *self.outcome.candidates[1:-1])):
            # some of the work is kept for the bounds, once a plan keeps the limit
            if i and math.isfinite(self.value) and self.scenario_budget.left_s < BOUNDS * self.scenario_budget.most_s:
                break
            candidate = self.candidates.evaluate(plan, required=not i and math.isinf(self.value))
            self.keep("other actors" if i else _cause(plan), candidate)
            if i and candidate is None:
                break
        if math.isinf(self.value) and self.near is None:
            self.near = search_mixed(self.nearest_problem, self.nearest_options)
            for plan in self.near.candidates[:NEAR]:
                self.keep("near the limit", self.candidates.evaluate(plan, required=True))
        lines = (self.near or self.outcome).plan.to_dict()["history"]
        # without the clock, so that the same problem has the same notes
        self.notes = {"predicted": [{name: value for name, value in line.items() if name != "at_s"} for line in lines]}

    def floors(self) -> tuple[FloatArray, FloatArray]:
        """Return the bounds from the loads of the scenarios, as far as the work budget lasts."""
        cases = self.problem.workload.cases()
        makespan_s, cost = np.zeros(len(cases)), np.zeros(len(cases))
        for s, case in enumerate(cases):
            if self.scenario_budget.over:
                break
            work = self._works[id(case)] = MixedWork.of(replace(self.problem, workload=case))
            self.scenario_budget.spend(BUILD_S * len(case))
            makespan_s[s], cost[s] = work.shortest_makespan_s, work.least_cost if self.problem.release == "done" else 0.0
        return makespan_s, cost

    def bound_of(self, case: Workload, work_budget: WorkBudget) -> Sequences:
        """Return the bound of whole actors for one set of lengths."""
        return Sequences.of_case(self.problem, case, work_budget, self._works.get(id(case)))

    def best_plan(self) -> Plan:
        """Return the best plan."""
        best: Plan = self.best
        return best

    def nearest(self) -> tuple[float, str]:
        """Return the least time (cost) of any plan found; without a limit, refuse because so many actors do not fit."""
        objective, deadline = self.problem.objective, self.problem.objective.deadline_s is not None
        if self.problem.workload.scenarios is not None:
            return min(objective.risk(c.time_s if deadline else c.cost) for c in self.candidates.evaluated), ""
        plans, work = self.points.plans, self.points.work
        if not objective.limited:
            most = len(work) if self.problem.max_actors is None else self.problem.max_actors
            raise PlanningError(no_room(work, self.problem.needed_actors, most))
        if deadline:
            return self.problem.phases.step_time_s(plans.fastest_s), too_long_together(self.options, work, self.goal)
        return self.goal.step(*plans.cheapest)[1], ""

    def refusal_limits(self) -> tuple[float, float, float]:
        """Return shares of the time limit."""
        return BLAME * self.time_limit_s, ROOM * self.time_limit_s, LATEST_ROOM * self.time_limit_s


def _cause(plan: Plan) -> str:
    """Return the name of the method that found a plan for the predicted lengths."""
    return next(line.solver for line in plan.history if line.value == plan.value)
