"""Computes a lower bound on the value of every plan over scenarios of lengths, from the intervals of single scenarios.

**Bound.** A plan is one and the same in all scenarios. So in scenario s its value v_s is at least l_s, the least value of any
plan for the lengths of s. That is what could be done if s were known. Mean and conditional value at risk never fall when their
arguments rise, so the value over the scenarios is at least that of (l_s).

**Limits.** Let a deadline D limit the risk of the time T. Time and cost of a plan in scenario s are those of one of its
intervals at least, t_si and c_si. So for every rate r >= 0 the risk of the cost C of a plan that keeps the deadline is at least

    risk(C + r T) - r risk(T)  >=  risk of min_i (c_si + r t_si)  -  r D ,

because the risk of a sum is at most the sum of the risks. The largest of these over many r is the bound. For a budget B the
parts are exchanged: the risk of the time is at least (risk of min_i (c_si + r t_si) - B) / r.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.bounds.plans.makespan_intervals import MakespanIntervals
from solver.model.workload import FloatArray
from solver.timing.step_cost import StepObjective

RATES = np.geomspace(0.05, 100.0, 64)  # values of r, in C_ref / T_ref of the objective


def value_bound(goal: StepObjective, scenarios: Sequence[MakespanIntervals], halvings: int) -> float:
    """Return the lower bound on the value over the scenarios of an objective without limits.

    Args:
        scenarios: the intervals of each, which are halved up to ``halvings`` times.
    """
    return goal.objective.risk(np.array([intervals.least_value(halvings) for intervals in scenarios]))


def limited_bound(goal: StepObjective, scenarios: Sequence[MakespanIntervals], halvings: int) -> float:
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
