"""Policies that plan with the OR-Tools solver: on predictions, or on true lengths (the oracle).

Knows only ``solver.plan_generation``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhfless.scheduling.policy import PlanningInput
from solver.plan import Plan
from solver.planner import plan_generation


@dataclass(frozen=True)
class Solver:
    """``plan_generation`` on whatever lengths it is given; as ``oracle`` it asks for the true ones."""

    name: str = "solver"
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        plan = plan_generation(
            given.workload, given.cluster, given.latency, given.objective, given.rest, given.time_limit_s,
            admission=given.admission, seed=given.seed,
        )  # fmt: skip
        return replace(plan, policy=self.name)
