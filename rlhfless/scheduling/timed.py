"""A policy whose plans are timed. Knows policies; nothing of what they plan or of who compares the seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rlhfless.scheduling.policy import PlanningInput, SchedulingPolicy
from solver.model.plan import Plan


@dataclass
class TimedPolicy:
    """A policy with the seconds of CPU that its plans take, which a busy machine changes less than elapsed ones.

    Attributes:
        cpu_s: one entry for every plan that was made.
    """

    base: SchedulingPolicy
    cpu_s: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The policy's own."""
        return self.base.name

    @property
    def clairvoyant(self) -> bool:
        """The policy's own."""
        return self.base.clairvoyant

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        began = time.process_time()
        plan = self.base.plan(given)
        self.cpu_s.append(time.process_time() - began)
        return plan
