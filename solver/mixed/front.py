"""The time-cost front on several offers: plans for many weights, and the bound curve of whole actors below them.

Knows ``solver.mixed.planner`` and its bound over sequences; ``solver.front`` says what a front is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.assemble import timed
from solver.mixed.planner import search_mixed
from solver.mixed.problem import MixedProblem
from solver.mixed.sequences import Sequences
from solver.mixed.work import MixedWork
from solver.objective import Objective
from solver.plan import Plan
from solver.workload import FloatArray

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def mixed_front(problem: MixedProblem, points: int, time_limit_s: float) -> tuple[list[Plan], FloatArray, FloatArray]:
    """All plans found for the weights 0 to 1 of time (dominated ones too), and the bound curve: makespans and costs.

    Args:
        problem: of its objective only what cost is counted in matters. points: of the curve.
        time_limit_s: of all weights together; the curve comes on top.
    """
    found: list[Plan] = []
    share = time_limit_s / len(WEIGHTS)
    for weight in WEIGHTS:
        weighted = replace(problem, objective=Objective(weight, cost=problem.objective.cost))
        outcome = search_mixed(weighted, share)
        found += [outcome.plan, *outcome.candidates]
    if problem.workload.scenarios is not None:
        found = [timed(p, problem.workload, problem.latencies, problem.rest, admission=problem.admission) for p in found]
    work = MixedWork.of(problem)
    sequences = Sequences(
        work, least_actors=problem.needed_actors, most_actors=problem.most_actors, release=problem.release,
        after_s=problem.rest.seconds,
    )  # fmt: skip
    fastest = max(work.shortest_makespan_s, 1e-12)
    grid = np.geomspace(fastest, max(fastest, 1.2 * max(plan.makespan_s for plan in found)), points)
    least = [sequences.at(float(high), low_s=float(low)) for low, high in zip([fastest, *grid[:-1]], grid, strict=True)]
    return found, grid, np.array([s.cost for s in least])
