"""Defines ``Planner``: what a planning run does, whatever actors may be started.

``single_kind.planner`` and ``mixed_kinds.planner`` add how plans are searched and priced, and which ``Bound`` holds.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from solver.model.errors import PlanningError
from solver.model.plan import Plan, Reference
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, Workload
from solver.planning.bound import Bound
from solver.planning.candidates import Candidate, Candidates
from solver.planning.history import SearchHistory
from solver.planning.infeasible import MissedLimit, more_room
from solver.planning.reference import proven
from solver.planning.scenario_bound import ScenarioBound
from solver.planning.search_options import SearchOptions
from solver.planning.work_budget import WorkBudget
from solver.timing.step_cost import StepObjective


class Planner(ABC):
    """One planning run: search, prices and bounds over scenarios, and a plan or a refusal.

    Args:
        began: time of the clock (``perf_counter``) from which the time limit counts.

    Attributes:
        problem: with affine latency models. reference, goal: the random split, and the value of plans relative to it.
        best, value, bound: the best plan so far, its value, and a lower bound on the value of every plan.
        candidates: plans priced over scenarios; scenario_budget: of the bounds of the scenarios. notes: of the plan.
        stopped: whether the clock has stopped something. exhausted: whether no plan comes nearer to a limit than those found.
    """

    limit_weights: ClassVar[tuple[float, ...]] = (0.0,)  # see ``ScenarioBound``
    shows_scenarios: ClassVar[bool] = False  # whether the history shows the bound after each scenario
    most_halvings: ClassVar[float] = math.inf  # of makespans, for the bound of one scenario

    def __init__(self, problem: PlanningProblem, options: SearchOptions, began: float) -> None:
        self.problem, self.options, self.began = problem.planning_model, options, began
        self.history = SearchHistory(began)
        self.reference: Reference
        self.goal: StepObjective
        self.candidates: Candidates
        self.scenario_budget: WorkBudget
        self.notes: dict[str, Any] = {}
        self.best: Any = None
        self.value, self.bound = math.inf, 0.0
        self.stopped, self.exhausted = False, False

    def plan(self) -> Plan:
        """Return the best plan found.

        Raises:
            PlanningError: no plan was found that meets the limits.
        """
        self.search()
        if self.problem.workload.scenarios is not None:
            self.price_over_scenarios()
            if math.isfinite(self.value):
                self._bound_over_scenarios(self.candidates.best)
        self.improve()
        if math.isinf(self.value):
            raise PlanningError(self.refusal())
        plan = self.best_plan()
        status = "optimal" if proven(self.value, self.bound) else "stopped" if self.stopped else "feasible"
        return replace(
            plan, policy="solver", reference=self.reference, value=self.value, lower_bound=self.bound, status=status,
            history=tuple(self.history.lines), solve_s=time.perf_counter() - self.began, notes={**plan.notes, **self.notes},
        )  # fmt: skip

    @abstractmethod
    def search(self) -> None:
        """Search plans for the predicted lengths; set ``reference`` and ``goal``."""

    @abstractmethod
    def price_over_scenarios(self) -> None:
        """Price the plans found over the scenarios, as ``candidates``; set ``scenario_budget``."""

    @abstractmethod
    def floors(self) -> tuple[FloatArray, FloatArray]:
        """Return (S,) lower bounds on makespan and cost of generation in every scenario that need no search, 0 if unknown."""

    @abstractmethod
    def bound_of(self, case: Workload, work_budget: WorkBudget) -> Bound:
        """Return the bound for one set of lengths."""

    @abstractmethod
    def best_plan(self) -> Plan:
        """Return the best plan with its times."""

    @abstractmethod
    def nearest(self) -> tuple[float, str]:
        """Return the least time (cost) of the step of any plan found, and for what the error message's bound holds."""

    @abstractmethod
    def refusal_limits(self) -> tuple[float, float, float]:
        """Return three limits of a refusal. They are the counted seconds of its bounds, the time limit of each search for what
        would be enough, and when the last one begins."""

    def improve(self) -> None:  # noqa: B027 (nothing by default)
        """Improve the best plan or the bound with what is left of the time."""

    def keep(self, part: str, candidate: Candidate | None = None) -> None:
        """Take ``candidate`` if it is better than the best plan so far, and record value and bound if ``part`` moved them."""
        if candidate is not None and candidate.value < self.value:
            self.best, self.value = candidate.plan, candidate.value
        self.bound = min(self.bound, self.value)
        self.history.note(part, self.value, self.bound)

    def _bound_over_scenarios(self, best: Candidate) -> None:
        """Compute the lower bound on the value over the scenarios."""
        cases, work_budget = self.problem.workload.cases(), self.scenario_budget
        bound = ScenarioBound(self.goal, len(cases), self.limit_weights)
        bound.raise_to(*self.floors())
        bounds = bound.tighten(
            lambda s, share: self.bound_of(cases[s], share), (best.time_s, best.cost), work_budget, self.most_halvings
        )
        self.bound = bound.value
        for tighter in bounds:
            if self.shows_scenarios:
                self.keep("bounds of the scenarios")
            self.bound = tighter
        self.keep("bounds of the scenarios")
        self.stopped |= work_budget.late

    def refusal(self) -> str:
        """Return the error message: which limit no plan found meets, and by how much it is missed."""
        best, where = self.nearest()
        counted_s, time_limit_s, latest_s = self.refusal_limits()
        cases = self.problem.workload.cases()
        until = self.options.stop_at(time.perf_counter(), counted_s)
        bounds = [self.bound_of(case, WorkBudget(counted_s / len(cases), until)) for case in cases]
        missed = MissedLimit.of(self.goal, bounds, best, where=where, proven=self.exhausted)
        if not self.options.explains:
            return missed.message()
        quick = replace(self.options, time_limit_s=time_limit_s, explains=False)
        again = partial(type(self), options=quick)
        stop_at = self.options.stop_at(self.began, latest_s)
        return missed.message(
            more_room(
                self.problem,
                lambda roomier: again(roomier, began=time.perf_counter()).plan(),
                stop_at,
                impossible=missed.impossible,
            )
        )
