"""Computes the time-cost front on several offers: plans for many weights, and the bound curve below them.

The plans come from ``solver.planning.mixed_kinds.planner``, the curve from its bound over sequences of whole actors.
``solver.planning.pareto_front`` defines the front.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from solver.model.objective import Objective
from solver.model.plan import Plan
from solver.model.workload import FloatArray
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.planner import search_mixed
from solver.planning.mixed_kinds.problem import MixedProblem
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.mixed_kinds.work_budget import WorkBudget
from solver.planning.scenario_bound_curve import mean_curve
from solver.timing.build_plan import timed

POINTS = 16  # of the curve of a single scenario
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def mixed_front(problem: MixedProblem, points: int, time_limit_s: float) -> tuple[list[Plan], FloatArray, FloatArray]:
    """Return all plans found for the weights 0 to 1 of time (dominated ones too), and the bound curve: makespans and costs.

    Args:
        problem: only the unit of cost of its objective is used. points: of the curve.
        time_limit_s: of all weights together; the curve takes additional time.
    """
    found: list[Plan] = []
    share = time_limit_s / len(WEIGHTS)
    for weight in WEIGHTS:
        weighted = replace(problem, objective=Objective(weight, cost=problem.objective.cost))
        outcome = search_mixed(weighted, share)
        found += [outcome.plan, *outcome.candidates]
    if problem.workload.scenarios is not None:
        found = [timed(p, problem.workload, problem.latencies, problem.phases, admission=problem.admission) for p in found]
    slowest_s = max(plan.makespan_s for plan in found)
    cases = problem.workload.cases()
    if len(cases) == 1:
        grid, _, cost = _curve(problem, problem.needed_actors, slowest_s, points, WorkBudget())
        return found, grid, cost
    effort = WorkBudget(time_limit_s, problem.stop_after(time.perf_counter(), time_limit_s))
    curves = []
    for s, case in enumerate(cases):
        part = WorkBudget(effort.left_s / (len(cases) - s), effort.stop_at)
        single = replace(problem, workload=case)
        # plans are made for the predicted lengths, in which less may have anything to generate
        least = min(problem.needed_actors, single.needed_actors)
        curves.append(_curve(single, least, slowest_s, min(points, POINTS), part))
        effort.spend(part.spent_s)
    makespans, begins, costs = (np.array(x) for x in zip(*curves, strict=True))
    grid = np.geomspace(makespans[:, 0].mean(), makespans[:, -1].mean(), points)
    return found, grid, mean_curve(begins, costs, grid)


def _curve(
    problem: MixedProblem, min_actors: int, slowest_s: float, points: int, effort: WorkBudget
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return makespans, and of the interval that ends at each its start and the least cost of any plan in it.

    The makespans range from the fastest possible one to that of everything on one actor, dense up to a little beyond
    ``slowest_s``. Costs are coarser once the budget of work is used up.
    """
    work = MixedWork.of(problem)
    sequences = Sequences(
        work, min_actors=min_actors, max_actors=problem.max_actors, release=problem.release,
        after_s=problem.phases.seconds, effort=effort,
    )  # fmt: skip
    fastest_s = max(work.shortest_makespan_s, 1e-12)
    last_s = max(work.longest_makespan_s, fastest_s)
    grid = np.append(np.geomspace(fastest_s, min(last_s, max(fastest_s, 1.2 * slowest_s)), max(points - 1, 1)), last_s)
    begins = np.concatenate([[work.shortest_makespan_s], grid[:-1]])
    least = [sequences.at(high, low_s=low).cost for low, high in zip(begins.tolist(), grid.tolist(), strict=True)]
    return grid, begins, np.array(least)
