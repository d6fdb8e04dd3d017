"""What a learner of several servers pays beside the work itself: lost speed, loading, and the reduction of gradients.

A server is the GPUs of one actor. All numbers are assumptions that the caller names; nothing here is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from solver.model.errors import PlanningError, as_given, is_number, is_whole


@dataclass(frozen=True)
class LearnerCharges:
    """Charges of a learner by its number of servers.

    Args:
        full_speed_servers: a learner of up to so many servers loses no speed.
        loss_per_doubling: share of each server's speed that is lost with every doubling of servers beyond those.
        load_s: seconds to load models on a server before its first item, while its GPUs are held.
        gradient_s: seconds in which a server sends its gradients once. A ring all-reduce between S servers takes
            ``2 (S - 1) / S`` times as long, and all servers take part.

    Raises:
        PlanningError: a number is out of its range.

    Example:
        >>> from solver.step.learner_charges import LearnerCharges
        >>> charges = LearnerCharges(full_speed_servers=2, loss_per_doubling=0.1, gradient_s=0.4)
        >>> round(charges.slower(4), 3), round(charges.finish_s(4), 3), charges.finish_s(1)
        (1.111, 0.6, 0.0)
    """

    full_speed_servers: int = 1
    loss_per_doubling: float = 0.1
    load_s: float = 0.0
    gradient_s: float = 0.0

    def __post_init__(self) -> None:
        if not is_whole(self.full_speed_servers, 1):
            given = as_given(self.full_speed_servers)
            raise PlanningError(f"full_speed_servers is {given}; a whole number of 1 or more is needed")
        if not (is_number(self.loss_per_doubling, 0) and self.loss_per_doubling < 1):
            given = as_given(self.loss_per_doubling)
            raise PlanningError(f"loss_per_doubling is {given}; a share of 0 or more and below 1 is needed")
        for name in ("load_s", "gradient_s"):
            if not is_number(getattr(self, name), 0):
                given = as_given(getattr(self, name))
                raise PlanningError(f"{name} is {given}; a finite number of seconds of 0 or more is needed")

    def fits(self, servers: int) -> bool:
        """Return whether a learner of so many servers is possible: any is."""
        return servers >= 1

    def of_part(self, ratio: float) -> LearnerCharges:
        """Return the charges in a part of the cluster that is contained in it so many times."""
        return replace(self, full_speed_servers=max(1, round(self.full_speed_servers / ratio)))

    def slower(self, servers: int) -> float:
        """Return how many times as long an item of learning takes on one of so many servers as at full speed."""
        doublings = max(0.0, math.log2(servers / self.full_speed_servers))
        return float((1.0 - self.loss_per_doubling) ** -doublings)

    def loading_s(self, servers: int) -> float:
        """Return the seconds to load models on each of so many servers: the same for every number."""
        return self.load_s

    def finish_s(self, servers: int) -> float:
        """Return the seconds in which so many servers add up their gradients."""
        return 2.0 * (servers - 1) / servers * self.gradient_s
