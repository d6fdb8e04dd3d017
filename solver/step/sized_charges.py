"""Learner costs by number of servers, where each number has a layout of its own.

``LearnerCharges`` states a formula. Here each size has its numbers, such as those of the best layout by measured operators. A
size at which the models fit into no layout cannot be chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solver.model.errors import PlanningError, as_given, is_number

NEEDED = "finite numbers of 0 or more, or infinity where the size is impossible, one per number of servers from 1,"


@dataclass(frozen=True)
class SizedCharges:
    """Charges of learners of 1, 2, ... servers.

    Args:
        slower_by_size: how many times as long an item of learning takes on one of so many servers as at full speed; infinity
            where so many servers cannot learn.
        finish_s_by_size: seconds that every server works at the end of the step: gradients, the optimizer, and weights that
            are sent to the actors.
        loading_s_by_size: seconds to load models on a server before its first item, while its GPUs are held.

    Raises:
        PlanningError: a number is out of its range, the sizes differ, or no size is possible.

    Example:
        >>> import math
        >>> from solver.step.sized_charges import SizedCharges
        >>> charges = SizedCharges((math.inf, 1.0, 1.1), (0.0, 0.5, 0.6), (0.0, 3.0, 2.0))
        >>> charges.fits(1), charges.slower(3), charges.finish_s(2)
        (False, 1.1, 0.5)
    """

    slower_by_size: tuple[float, ...]
    finish_s_by_size: tuple[float, ...]
    loading_s_by_size: tuple[float, ...]

    def __post_init__(self) -> None:
        names = ("slower_by_size", "finish_s_by_size", "loading_s_by_size")
        for name in names:
            given = getattr(self, name)
            if not isinstance(given, tuple | list) or not all(one == math.inf or is_number(one, 0) for one in given):
                raise PlanningError(f"{name} is {as_given(given)}; {NEEDED} are needed")
            object.__setattr__(self, name, tuple(map(float, given)))
        sizes = [len(getattr(self, name)) for name in names]
        if len(set(sizes)) != 1:
            raise PlanningError(f"{', '.join(names)} have {', '.join(map(str, sizes))} sizes; the same number is needed")
        if not any(self.fits(servers) for servers in range(1, len(self.slower_by_size) + 1)):
            raise PlanningError("no number of servers is possible; finite charges of one at least are needed")

    def fits(self, servers: int) -> bool:
        """Return whether a learner of so many servers is possible."""
        if not 1 <= servers <= len(self.slower_by_size):
            return False
        return math.isfinite(self.slower(servers) + self.finish_s(servers) + self.loading_s(servers))

    def of_part(self, ratio: float) -> SizedCharges:
        """Return the charges in a part of the cluster that is contained in it so many times: those of as large a share."""
        most = len(self.slower_by_size)
        sizes = [min(most, max(1, round(servers * ratio))) for servers in range(1, max(1, round(most / ratio)) + 1)]
        sizes[-1] = most
        names = ("slower_by_size", "finish_s_by_size", "loading_s_by_size")
        return SizedCharges(*(tuple(getattr(self, name)[size - 1] for size in sizes) for name in names))

    def slower(self, servers: int) -> float:
        """Return how many times as long an item of learning takes on one of so many servers as at full speed."""
        return self.slower_by_size[servers - 1]

    def loading_s(self, servers: int) -> float:
        """Return the seconds to load models on each of so many servers."""
        return self.loading_s_by_size[servers - 1]

    def finish_s(self, servers: int) -> float:
        """Return the seconds that each of so many servers works at the end of the step."""
        return self.finish_s_by_size[servers - 1]
