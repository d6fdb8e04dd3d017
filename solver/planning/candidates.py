"""Prices candidate plans over scenarios of lengths, and keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from solver.model.objective import Objective
from solver.model.workload import FloatArray
from solver.planning.actor_count import sizing_key
from solver.planning.work_budget import WorkBudget


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan (one kind of actors: a ``Split``) with its value over the scenarios.

    Attributes:
        time_s, cost: (S,) of the step. key: its rank where no candidate meets the limit (``sizing_key``).
    """

    plan: Any
    value: float
    time_s: FloatArray
    cost: FloatArray
    key: tuple[float, float]


@dataclass
class Candidates:
    """Prices plans over the scenarios (or the single lengths), and keeps the candidates found.

    Args:
        norms: T_ref and C_ref.
        priced: the plan, with its times if it shows any, and its (S,) times and costs of the step.
        work_budget: plans that it leaves no time or work for are skipped.
        each_s: estimated seconds of pricing a plan, until one has been priced.
        allowed: whether a plan has enough actors; a plan without has an infinite value.
    """

    objective: Objective
    norms: tuple[float, float]
    priced: Callable[[Any], tuple[Any, FloatArray, FloatArray]]
    work_budget: WorkBudget
    each_s: float = 0.0
    allowed: Callable[[Any], bool] = lambda plan: True
    evaluated: list[Candidate] = field(default_factory=list)
    _longest_s: float = 0.0

    def note(self, plan: Any, time_s: FloatArray, cost: FloatArray) -> Candidate:
        """Return the candidate for a plan with (S,) times and costs of the step, and keep it."""
        value = self.objective.value_over(time_s, cost, self.norms) if self.allowed(plan) else float("inf")
        self.evaluated.append(Candidate(plan, value, time_s, cost, sizing_key(time_s, cost, self.objective)))
        return self.evaluated[-1]

    def evaluate(self, plan: Any, required: bool = False) -> Candidate | None:
        """Price the plan, keep it and return it with its value.

        None if no time or work is left for it, unless it is ``required`` or no candidate is known yet.
        """
        budget, each_s = self.work_budget, self._longest_s or self.each_s
        if self.evaluated and not required and (budget.left_s <= 0 or budget.late_after(each_s)):
            return None
        began = time.perf_counter()
        candidate = self.note(*self.priced(plan))
        self._longest_s = max(self._longest_s, time.perf_counter() - began)
        return candidate

    def best_of(self, plans: Iterable[Any]) -> Candidate | None:
        """Evaluate the plans and return the first with the least value; None without plans or without time."""
        candidates = (self.evaluate(plan) for plan in plans)
        return min((c for c in candidates if c is not None), key=lambda c: c.value, default=None)

    @property
    def best(self) -> Candidate:
        """Return the first candidate of least value."""
        return min(self.evaluated, key=lambda c: c.value)
