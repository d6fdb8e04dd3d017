"""Lower bounds on the value of every plan of a problem, and on what its objective limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from solver.bounds.plans.cost_bound import CostBound
from solver.bounds.plans.late_opening import LateOpening
from solver.bounds.plans.makespan_intervals import MakespanIntervals
from solver.bounds.plans.scenario_bound import limited_bound, value_bound
from solver.bounds.plans.sequence_bound import WIDTH, SequenceBound
from solver.model.objective import Objective
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

# ends of the first intervals, in makespans of a known plan; for several offers quickly, and over scenarios
NEAR, QUICK_NEAR = (0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0), (0.9, 0.98, 1.0, 1.05, 1.2)
HALVINGS, SCENARIO_HALVINGS = (40, 8), (8, 4)  # of intervals, and quickly; of those of each scenario
QUICK_WIDTH = 60  # of the sequence bound


def cost_bound(problem: PlanningProblem, case: Workload, width: int = WIDTH) -> CostBound:
    """Return the bound on the cost of plans for one scenario of a problem.

    Plans are made for the predicted lengths, in which less may have anything to generate than in the scenario.

    Args:
        width: see ``SequenceBound``.
    """
    single = replace(problem, workload=case)
    items, least = Items.of(single), min(problem.needed_actors, single.needed_actors)
    return LateOpening(items, least) if len(items.offers) == 1 else SequenceBound(items, least, width)


def plan_bound(
    problem: PlanningProblem, known_value: float, norms: tuple[float, float], makespans_near: ArrayLike, quick: bool = False
) -> float:
    """Return a lower bound on the value of every plan, over the scenarios where there are some.

    Args:
        known_value: of some plan, above which no bound is needed; infinite if none is known.
        norms: T_ref and C_ref of the values.
        makespans_near: makespan of generation of a good plan, or (S,) those in every scenario: the bound is tight near them.
        quick: with several offers, less work and a looser bound.
    """
    goal, cases = StepObjective.of_problem(problem, norms), problem.workload.cases()
    several = len(cases) > 1
    quick = quick and problem.several_kinds  # of one offer all bounds are quick
    coarse = quick or (several and problem.several_kinds)
    limited = several and goal.objective.limited  # over scenarios, a plan may break the limit in one of them
    priced = StepObjective.of_problem(replace(problem, objective=Objective(cost=goal.objective.cost))) if limited else goal
    near = np.broadcast_to(np.asarray(makespans_near, dtype=float), (len(cases),))
    scenarios = [
        MakespanIntervals(
            cost_bound(problem, case, QUICK_WIDTH if coarse else WIDTH),
            priced,
            makespan_s * np.array(QUICK_NEAR if coarse else NEAR),
            np.inf if limited else problem.generation_within_s,
            np.inf if several else known_value,
        )
        for case, makespan_s in zip(cases, near.tolist(), strict=True)
    ]
    halvings = (SCENARIO_HALVINGS if several else HALVINGS)[quick]
    bound = (limited_bound if limited else value_bound)(goal, scenarios, halvings)
    return max(0.0, min(bound * (1 - 1e-9), known_value))


def least_step_bound(problem: PlanningProblem) -> float:
    """Return a lower bound on what the objective limits: time of the step of every plan under a deadline, cost under a budget.

    Over scenarios it is the risk of the bounds. It is infinite when there is no plan.
    """
    goal = StepObjective.of_problem(problem)

    def least(bound: CostBound) -> float:
        if goal.objective.deadline_s is not None:
            return goal.phases.step_time_s(bound.least_makespan_s)
        return float(goal.step(bound.shortest_makespan_s, bound.at(bound.longest_makespan_s))[1])

    bounds = [cost_bound(problem, case, QUICK_WIDTH) for case in problem.workload.cases()]
    return goal.objective.risk(np.array([least(bound) for bound in bounds]))
