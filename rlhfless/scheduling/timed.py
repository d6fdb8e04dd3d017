"""A wrapper that records the CPU seconds of each ``plan`` call of another policy."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rlhfless.scheduling.policy import PlanningOptions, SchedulingPolicy
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem


@dataclass
class TimedPolicy:
    """Records the CPU seconds that a policy's plans take; a busy machine changes them less than elapsed seconds.

    Attributes:
        cpu_s: one entry per plan.
    """

    base: SchedulingPolicy
    cpu_s: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the wrapped policy."""
        return self.base.name

    @property
    def clairvoyant(self) -> bool:
        """Whether the wrapped policy plans with true lengths."""
        return self.base.clairvoyant

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        began = time.process_time()
        plan = self.base.plan(problem, options)
        self.cpu_s.append(time.process_time() - began)
        return plan
