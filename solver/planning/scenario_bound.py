"""Computes a lower bound on the value of every plan over scenarios of lengths, from bounds of single scenarios.

**Bound.** A plan is one and the same in all scenarios. So in scenario s its value v_s is at least l_s, the least value of any
plan for the lengths of s. That is what could be done if s were known. Mean and conditional value at risk never fall when their
arguments rise, so the value over the scenarios is at least that of (l_s). For a deadline D on the risk of the time T, the risk
of the cost C of any plan that keeps it is, for every lam >= 0, at least

    risk(C + lam T) - lam risk(T)  >=  risk(least of C + lam T) - lam D ,

because the risk of a sum is at most the sum of the risks; for a budget with the parts exchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from solver.model.objective import Objective
from solver.model.workload import FloatArray
from solver.planning.bound import Bound
from solver.planning.bound_search import lower_bound_of
from solver.planning.work_budget import WorkBudget
from solver.timing.step_cost import StepObjective


class ScenarioBound:
    """The bound, which rises as single scenarios are bounded more tightly.

    Args:
        weights: of time (of cost under a budget) with which a limited objective is bounded; the first is usually 0.

    Attributes:
        goals: unlimited objectives, one for each weight. least: (S, len(goals)) bounds of the values in every scenario.
    """

    def __init__(self, goal: StepObjective, scenarios: int, weights: Sequence[float]) -> None:
        self.goal, self.goals, objective = goal, [goal], goal.objective
        if objective.limited:
            at = [w if objective.deadline_s is not None else 1.0 - w for w in weights]
            self.goals = [replace(goal, objective=Objective(w, cost=objective.cost)) for w in at]
        self.least = np.zeros((scenarios, len(self.goals)))

    def raise_to(self, makespan_s: FloatArray, cost: FloatArray) -> None:
        """Take account of (S,) lower bounds on makespan and cost of generation, 0 where nothing is known."""
        for i, goal in enumerate(self.goals):
            values = [goal.value(*pair) for pair in zip(makespan_s.tolist(), cost.tolist(), strict=True)]
            self.least[:, i] = np.maximum(self.least[:, i], np.array(values) * (1 - 1e-9))

    def tighten(
        self, bound_of: Callable[[int, WorkBudget], Bound], taken: tuple[FloatArray, FloatArray], work_budget: WorkBudget,
        most_halvings: float,
    ) -> Iterator[float]:  # fmt: skip
        """Bound one scenario after the other, each with an equal share of the work and time left; yield the bound so far.

        Args:
            bound_of: the bound of one scenario within a work budget.
            taken: (S,) times and costs of the step under a known plan; no bound needs to be tighter than that.
            most_halvings: of intervals of makespans, for every scenario and goal.
        """
        began = time.perf_counter()
        for s, row in enumerate(self.least):
            now, left = time.perf_counter(), len(self.least) - s
            if work_budget.over or (s and work_budget.late_after((now - began) / s)):
                break
            share = WorkBudget(work_budget.left_s / left, now + (work_budget.stop_at - now) / left)
            bound = bound_of(s, share)
            for i, goal in enumerate(self.goals):
                known = goal.objective.value(float(taken[0][s]), float(taken[1][s]), goal.norms)
                row[i] = max(row[i], lower_bound_of(bound, goal, known, most_halvings))
            work_budget.spend(share.spent_s)
            work_budget.late |= share.late
            yield self.value

    @property
    def value(self) -> float:
        """Return the lower bound on the value over the scenarios."""
        objective, (time_ref, cost_ref) = self.goal.objective, self.goal.norms
        risks = [objective.risk(column) for column in self.least.T]
        if not objective.limited:
            return risks[0]
        bounds = [0.0]
        for goal, risk in zip(self.goals, risks, strict=True):
            w = goal.objective.time_weight
            if objective.deadline_s is not None:
                bounds.append(cost_ref / (1 - w) * (risk - w / time_ref * objective.deadline_s))
            else:
                assert objective.budget is not None
                bounds.append(time_ref / w * (risk - (1 - w) / cost_ref * objective.budget))
        return max(bounds)
