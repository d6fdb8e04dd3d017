"""Policies that re-solve the plan while the step runs: on forecasts of lengths, or on true lengths (the oracle).

``rlhfless.scheduling.replan_start`` chooses the start, ``solver.replanning.replan`` makes the decisions during the step.
Lengths come from the workload's scenarios, or from the predictor's own forecast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rlhfless.scheduling.calibration import calibrated
from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from rlhfless.scheduling.replan_start import ReplanStart, Start
from rlhfless.scheduling.solver import Solver
from solver.lengths.remaining import RemainingLengths, check_remaining
from solver.lengths.survival import from_scenarios, known_lengths
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload
from solver.replanning.replan import Replan
from solver.timing.build_plan import assemble

Forecast = Callable[[Workload], RemainingLengths]
"""Makes the forecast of remaining lengths of a step from its workload (predictions and scenarios)."""


@dataclass(frozen=True)
class SolverReplan:
    """Start with the groups and price that look-ahead simulation finds best, then use ``replan`` while the step runs.

    The price of time comes from the objective. A weight w is worth ``w C / ((1 - w) g T)`` actor-seconds per second, plus the
    learner's GPUs that wait for generation. A deadline is worth what its last second costs at the start; a budget what it can
    pay for. Under a weight, rlhfless.scheduling.replan_start compares the static plan (``Solver``) and re-planned ones at
    several prices on lengths drawn from the forecast. Where no re-planned one is better, the static plan runs without a rule.
    Otherwise the start is its grouping, or the one that is right for the forecast of the first iteration
    (solver.replanning.marginal_value), as responses will move. Where only time counts (w = 1), iterations have no base time or
    the limit cannot be kept, nothing can be traded: the static plan runs unchanged.

    Args:
        forecast: makes the remaining-length distributions from the workload. None takes the predictor's own forecast if it has
            one (``PlanningOptions.forecast``), else the scenarios. True lengths are never used.
        looks_ahead: False takes groups of equal marginal value and the price at the random split's T and C. It is for tracing a
            front by the price, where several weights would find the same point best.
    """

    forecast: Forecast | None = None
    name: str = "solver+replan"
    clairvoyant: bool = False
    looks_ahead: bool = True

    @property
    def static(self) -> Solver:
        """The policy whose plan this one starts from."""
        return Solver("oracle", clairvoyant=True) if self.clairvoyant else Solver()

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        options = replace(options, sizes=())  # actors of one size are re-planned
        objective, known = problem.objective, calibrated(problem, options)
        remaining, latency = self._remaining(known, options), problem.one_kind[1]
        ahead = self.looks_ahead and objective.deadline_s is None and objective.budget is None
        plan = (options.static or Solver().plan(problem, options)) if ahead else None
        start = Start(known, options, remaining, plan)
        price = start.price()
        if not 0 < price < math.inf or latency.base_s <= 0:
            return replace(plan or Solver().plan(problem, options), policy=self.name)
        best = start.best(price) if ahead else ReplanStart(start.grouped(price), price)
        if best is None:
            assert plan is not None
            return replace(plan, policy=self.name)
        rule = None if best.price is None else Replan(remaining, latency, best.price)
        return replace(assemble(self.name, best.groups, problem), rule=rule)

    def _remaining(self, known: PlanningProblem, options: PlanningOptions) -> RemainingLengths:
        if self.forecast is not None:
            remaining = self.forecast(known.workload)
            check_remaining(remaining, len(known.workload))
            return remaining
        if options.forecast is None or options.forecast.remaining is None:
            return from_scenarios(known.workload)
        return options.forecast.remaining


class OracleReplan(SolverReplan):
    """``SolverReplan`` with the true lengths: the gain from re-solving under perfect prediction."""

    def __init__(self, looks_ahead: bool = True) -> None:
        super().__init__(known_lengths, "oracle+replan", True, looks_ahead)
