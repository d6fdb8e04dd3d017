"""Defines ``WeighedPlan``: a step plan that was chosen by period and cost, with the lower bound on what was minimised."""

from __future__ import annotations

from dataclasses import dataclass

from solver.layouts.plan import StepPlan
from solver.layouts.plan_objective import StepPlanObjective
from solver.model.errors import shown


@dataclass(frozen=True)
class WeighedPlan:
    """The best plan for a ``StepPlanObjective``.

    Attributes:
        plan: the step plan; its own bound is that on the period. shortest: the plan of the shortest period that was found.
        asked: what was minimised. usd_per_gpu_hour: of the cluster.
        value: of the plan: ``T^w C^(1-w)`` relative to ``shortest``, the cost under a deadline, the period under a budget.
        lower_bound: no plan has a lower value. status: as of ``StepPlan``, for this value.
        evaluated, bounded: plans whose times were computed, and partial plans that were bounded, besides those of ``shortest``.
    """

    plan: StepPlan
    shortest: StepPlan
    asked: StepPlanObjective
    usd_per_gpu_hour: float
    value: float
    lower_bound: float
    status: str
    evaluated: int
    bounded: int

    @property
    def period_s(self) -> float:
        """Seconds per step."""
        return self.plan.period_s

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds per step that are paid for."""
        return self._gpu_s(self.plan)

    @property
    def cost_usd(self) -> float:
        """Dollars per step."""
        return self.gpu_seconds * self.usd_per_gpu_hour / 3600.0

    @property
    def gap(self) -> float:
        """Share of the value that a better plan could save at most."""
        return 1 - self.lower_bound / self.value if self.value else 0.0

    def to_dict(self) -> dict[str, float | str | None]:
        """Return its numbers: the objective, what the plan takes, and what is proven."""
        objective = self.asked.objective
        limits = {name: getattr(objective, name) for name in ("deadline_s", "budget_gpu_s", "budget_usd")}
        weight = None if objective.limited else objective.time_weight
        counted = {"time_weight": weight, **limits, "cost": objective.cost, "held": self.asked.held}
        took = {"period_s": self.period_s, "gpu_seconds": self.gpu_seconds, "cost_usd": self.cost_usd}
        proven = {"value": self.value, "lower_bound": self.lower_bound, "gap": self.gap, "status": self.status}
        least = {"shortest_period_s": self.shortest.period_s, "shortest_gpu_seconds": self._gpu_s(self.shortest)}
        return {**counted, **took, **proven, **least}

    def _gpu_s(self, plan: StepPlan) -> float:
        return plan.gpu_seconds if self.asked.held == "calls" else plan.gpus * plan.period_s

    def __repr__(self) -> str:
        return f"{self._summary()}\n{self.plan!r}"

    def _repr_html_(self) -> str:
        return f"<p>{self._summary()}</p>{self.plan._repr_html_()}"

    def _summary(self) -> str:
        price = f" ({shown(self.cost_usd)} USD)" if self.usd_per_gpu_hour else ""
        took = f"{shown(self.period_s)} s and {shown(self.gpu_seconds)} GPU-seconds{price} per step"
        least_s, least_gpu_s = shown(self.shortest.period_s), shown(self._gpu_s(self.shortest))
        beside = f"the shortest plan takes {least_s} s and {least_gpu_s} GPU-seconds"
        proof = f"at most {self.gap:.1%} of it to save ({self.status}, bound {shown(self.lower_bound)})"
        return f"Plan for {self._aim()}: {took}; {beside}; value {shown(self.value)}, {proof}"

    def _aim(self) -> str:
        objective, unit = self.asked.objective, self.asked.objective.cost_unit
        if objective.deadline_s is not None:
            return f"least {unit} within {shown(objective.deadline_s)} s"
        if objective.budget is not None:
            return f"least time within {shown(objective.budget)} {unit}"
        w = objective.time_weight
        return f"least T^{w:g} C^{1 - w:.3g} of period and {unit}"
