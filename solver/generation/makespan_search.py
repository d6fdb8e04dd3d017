"""Searches makespans: a grid, then between the best and its neighbours; near a limit, makespans around it.

At each makespan the column model gives the cheapest choice. Values are those of the prices of columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.generation.column_model import ColumnModel
from solver.model.workload import IntArray

ROUNDS = 3  # of looking between the best makespan and its neighbours
SLACK = 1.12  # by which estimates may miss a deadline; filling item by item makes a plan faster
BUDGET_SLACK = 1.02
WORSE = 1.1  # a linear programme whose value is so much above the best is not made whole
CLOSE = 1e-3  # relative, of makespans that are not distinguished
AROUND = (0.96, 0.98, 0.99, 1.0, 1.005, 1.01, 1.02, 1.03, 1.05, 1.08)  # of the makespan at a limit


@dataclass(frozen=True, eq=False)
class Choice:
    """Chosen columns at a makespan; ``rank`` is least for the best."""

    rank: float
    makespan_s: float
    columns: IntArray


def searched(model: ColumnModel, low_s: float, high_s: float, grid: int) -> list[Choice]:
    """Return the choices at the makespans tried, best first, each set of columns once."""
    goal = model.goal
    objective = goal.objective
    soft = goal.objective.with_slack(SLACK if goal.objective.deadline_s is not None else BUDGET_SLACK)
    tried: dict[float, tuple[float, IntArray | None]] = {}

    def attempt(makespan_s: float) -> None:
        if makespan_s in tried:
            return
        tried[makespan_s] = math.inf, None
        relaxed = model.at(makespan_s)
        if relaxed is None:
            return
        if not objective.limited:
            least, best = goal.value(makespan_s, relaxed.cost), min(value for value, _ in tried.values())
            if least > WORSE * best:
                tried[makespan_s] = least, None
                return
        chosen = model.whole(makespan_s, relaxed)
        if chosen is not None:
            tried[makespan_s] = model.value(chosen, soft), chosen

    high_s = max(low_s, high_s)
    # with nothing to generate, all may take no time
    spaced = np.geomspace(low_s, high_s, grid) if low_s > 0 else np.linspace(low_s, high_s, grid)
    for makespan_s in sorted({*spaced.tolist(), high_s}):
        attempt(makespan_s)
    for _ in range(ROUNDS):
        made = sorted(tried)
        k = min(range(len(made)), key=lambda i: (tried[made[i]][0], made[i]))
        for i in (k - 1, k + 1):
            if 0 <= i < len(made) and abs(made[i] - made[k]) > CLOSE * made[k]:
                attempt((made[i] + made[k]) / 2)
    rank: dict[float, float] = {makespan_s: value for makespan_s, (value, _) in tried.items()}
    if objective.limited:  # estimates in cells do not decide there: makespans around the limit, the nearest first
        kept = [m for m, (value, chosen) in tried.items() if chosen is not None and math.isfinite(value)]
        if objective.budget is not None:
            exact = [m for m in kept if (chosen := tried[m][1]) is not None and math.isfinite(model.value(chosen))]
            kept = exact or kept
        if not kept:
            return []
        at = objective.generation_within_s(goal.phases) if objective.deadline_s is not None else min(kept)
        for factor in AROUND:
            attempt(factor * at)
        rank = {m: abs(m - at) for m in tried}
    choices = [Choice(rank[m], m, chosen) for m, (_, chosen) in tried.items() if chosen is not None and math.isfinite(rank[m])]
    unique: dict[bytes, Choice] = {}
    for choice in sorted(choices, key=lambda one: (one.rank, one.makespan_s)):
        unique.setdefault(choice.columns.tobytes(), choice)
    return list(unique.values())
