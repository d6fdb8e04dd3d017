"""What a scheduling policy is: it turns a workload into a plan, with or without a runtime rule.

Knows the solver's vocabulary; nothing of logs, engines or results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from solver.lengths.remaining import RemainingLengths
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import Plan
from solver.model.workload import Workload


class PolicyError(ValueError):
    """A policy is unknown, or its parameters are wrong; one sentence says what would be right."""


@dataclass(frozen=True)
class PlanningInput:
    """Everything a policy plans with.

    Attributes:
        workload: predictions, or true lengths for clairvoyant policies.
        remaining: the forecast of remaining lengths of a predictor that has one of its own; None where scenarios stand for it.
        deterministic: that of ``solver.plan_generation``.
    """

    workload: Workload
    cluster: Cluster
    latency: LatencyModel
    objective: Objective = field(default_factory=Objective)
    rest: NonGenerationPhases = field(default_factory=NonGenerationPhases)
    time_limit_s: float = 1.0
    admission: str = "reserve"
    seed: int = 0
    remaining: RemainingLengths | None = None
    deterministic: bool = False


class SchedulingPolicy(Protocol):
    """Turns a planning input into a plan."""

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    @property
    def clairvoyant(self) -> bool:
        """Whether it is given true lengths."""
        ...

    def plan(self, given: PlanningInput) -> Plan:
        """The plan of one step."""
        ...
