"""The protocol of a scheduling policy: it turns a workload into a plan, with or without a runtime rule.

The types are those of the solver (workload, cluster, latency, plan); engines, logs and results are not used here.
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
    """Raised where a policy is unknown or its parameters are wrong; the message says what would be right."""


@dataclass(frozen=True)
class PlanningInput:
    """Everything a policy plans with.

    Attributes:
        workload: predictions, or true lengths for clairvoyant policies.
        remaining: the predictor's own forecast of remaining lengths; None where the predictor has none and scenarios are used.
        deterministic: see ``solver.plan_generation``.
    """

    workload: Workload
    cluster: Cluster
    latency: LatencyModel
    objective: Objective = field(default_factory=Objective)
    phases: NonGenerationPhases = field(default_factory=NonGenerationPhases)
    time_limit_s: float = 1.0
    admission: str = "reserve"
    seed: int = 0
    remaining: RemainingLengths | None = None
    deterministic: bool = False


class SchedulingPolicy(Protocol):
    """Turns a planning input into a plan."""

    @property
    def name(self) -> str:
        """The policy's name on the command line."""
        ...

    @property
    def clairvoyant(self) -> bool:
        """Whether the policy plans with true lengths."""
        ...

    def plan(self, given: PlanningInput) -> Plan:
        """Return the plan of one step."""
        ...
