"""Why there is no plan: which limit is to blame, and by how much it is missed.

Knows the relaxation, the rounding and the limits; the sentence is for people.
"""

from __future__ import annotations

import numpy as np

from solver.errors import shown, shown_above
from solver.one_kind.relaxation import least_makespan_s, relaxed
from solver.one_kind.rounding import next_fit
from solver.one_kind.sorted_work import SortedWork
from solver.pricing import Pricing


def limit_missed(works: list[SortedWork], pricing: Pricing, found: list[tuple[float, float]]) -> str:
    """The sentence for a deadline or budget that no plan was found for.

    Args:
        works: the sorted work of every scenario, or of the predicted lengths alone.
        found: time and cost of the plans known (over the scenarios).
    """
    rest, objective = pricing.rest, pricing.objective
    over = ""
    if len(works) > 1:
        share = "" if objective.tail == 1.0 else f" of the worst {objective.tail:.0%}"
        over = f" in the mean{share} over the scenarios of lengths"
    if objective.deadline_s is not None:
        least = objective.risk(np.array([rest.step_time_s(least_makespan_s(work)) for work in works]))
        best = min(time_s for time_s, _ in found)
        if len(works) == 1:
            best = min(best, rest.step_time_s(_shortest_next_fit_s(works[0])))
        limit, what, unit, where = objective.deadline_s, "deadline", "s", f" on {works[0].most_actors} actors"
        remedy = " or add GPUs"
    else:
        assert objective.budget is not None
        least = objective.risk(np.array([_least_cost(work, pricing) for work in works]))
        best = min(cost for _, cost in found)
        limit, what, unit, where, remedy = objective.budget, "budget", objective.cost_unit, "", ""
    return (
        f"no plan found for the {what} of {shown(limit)} {unit}{over}: the step needs at least {shown(least)} {unit}{where}, "
        f"and the best plan found takes {shown(best)}; raise the {what} by {shown_above(best - limit)} {unit}{remedy}"
    )


def _least_cost(work: SortedWork, pricing: Pricing) -> float:
    """No plan costs less: the relaxation with all the time there is, and the learner until the fastest plan is done."""
    cheapest = relaxed(work, work.longest_makespan_s)
    held = 0.0 if cheapest is None else cheapest.actor_s
    return pricing.actor_rate * held + pricing.learner_rate * pricing.rest.step_time_s(work.shortest_makespan_s)


def _shortest_next_fit_s(work: SortedWork) -> float:
    """The least makespan for which next-fit finds groups, by bisection."""
    low, high = work.shortest_makespan_s, work.longest_makespan_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if next_fit(work, middle) is not None else (middle, high)
    return high
