"""What a learner pays beside the work itself, by its number of servers: lost speed, loading, and the end of its learning.

A server is the GPUs of one actor. All numbers are assumptions or measurements that the caller names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solver.model.errors import PlanningError, as_given, is_number, is_whole

LOSS_PER_DOUBLING = 0.1
NEEDED = "finite numbers of 0 or more, or infinity where the size is impossible, one per number of servers from 1,"
TABLES = ("slower_by_size", "finish_s_by_size", "loading_s_by_size")


@dataclass(frozen=True)
class Charges:
    """Charges of learners of 1, 2, ... servers. Without numbers nothing is charged, whatever the size.

    Args:
        slower_by_size: how many times as long an item of learning takes on one of so many servers as at full speed; infinity
            where so many servers cannot learn.
        finish_s_by_size: seconds that every server works when all responses are learned from: the reduction of gradients, the
            optimizer, and weights that are sent to the actors.
        loading_s_by_size: seconds to load models on a server before its first item, while its GPUs are held.

    Raises:
        PlanningError: a number is out of its range, the sizes differ, or no size is possible.

    Example:
        >>> import math
        >>> from solver.step.charges import Charges
        >>> charges = Charges((math.inf, 1.0, 1.1), (0.0, 0.5, 0.6), (0.0, 3.0, 2.0))
        >>> charges.fits(1), charges.slower(3), charges.finish_s(2)
        (False, 1.1, 0.5)
    """

    slower_by_size: tuple[float, ...] = ()
    finish_s_by_size: tuple[float, ...] = ()
    loading_s_by_size: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in TABLES:
            given = getattr(self, name)
            if not isinstance(given, tuple | list) or not all(one == math.inf or is_number(one, 0) for one in given):
                raise PlanningError(f"{name} is {as_given(given)}; {NEEDED} are needed")
            object.__setattr__(self, name, tuple(map(float, given)))
        sizes = [len(getattr(self, name)) for name in TABLES]
        if len(set(sizes)) != 1:
            raise PlanningError(f"{', '.join(TABLES)} have {', '.join(map(str, sizes))} sizes; the same number is needed")
        if sizes[0] and not any(self.fits(servers) for servers in range(1, sizes[0] + 1)):
            raise PlanningError("no number of servers is possible; finite charges of one at least are needed")

    @classmethod
    def by_formula(
        cls,
        servers: int,
        full_speed_servers: int = 1,
        loss_per_doubling: float = LOSS_PER_DOUBLING,
        load_s: float = 0.0,
        gradient_s: float = 0.0,
    ) -> Charges:
        """Return the charges of learners of up to so many servers that lose speed with every doubling.

        Args:
            full_speed_servers: a learner of up to so many servers loses no speed.
            loss_per_doubling: share of each server's speed that is lost with every doubling of servers beyond those.
            load_s: seconds to load models on a server, the same for every size.
            gradient_s: seconds in which a server sends its gradients once. A ring all-reduce between S servers takes
                ``2 (S - 1) / S`` times as long, and all servers take part.

        Raises:
            PlanningError: a number is out of its range.

        Example:
            >>> from solver.step.charges import Charges
            >>> charges = Charges.by_formula(4, full_speed_servers=2, loss_per_doubling=0.1, gradient_s=0.4)
            >>> round(charges.slower(4), 3), round(charges.finish_s(4), 3), charges.finish_s(1)
            (1.111, 0.6, 0.0)
        """
        for name, number in (("servers", servers), ("full_speed_servers", full_speed_servers)):
            if not is_whole(number, 1):
                raise PlanningError(f"{name} is {as_given(number)}; a whole number of 1 or more is needed")
        if not (is_number(loss_per_doubling, 0) and loss_per_doubling < 1):
            given = as_given(loss_per_doubling)
            raise PlanningError(f"loss_per_doubling is {given}; a share of 0 or more and below 1 is needed")
        for name, seconds in (("load_s", load_s), ("gradient_s", gradient_s)):
            if not is_number(seconds, 0):
                raise PlanningError(f"{name} is {as_given(seconds)}; a finite number of seconds of 0 or more is needed")
        sizes = range(1, servers + 1)
        return cls(
            tuple(slowdown(max(1.0, size / full_speed_servers), loss_per_doubling) for size in sizes),
            tuple(2.0 * (size - 1) / size * gradient_s for size in sizes),
            (float(load_s),) * servers,
        )

    def fits(self, servers: int) -> bool:
        """Return whether a learner of so many servers is possible."""
        if not self.slower_by_size:
            return servers >= 1
        if not 1 <= servers <= len(self.slower_by_size):
            return False
        return math.isfinite(self.slower(servers) + self.finish_s(servers) + self.loading_s(servers))

    def of_part(self, ratio: float) -> Charges:
        """Return the charges in a part of the cluster: a learner there pays what one with the same share of the cluster does.

        Args:
            ratio: how many times as many servers the whole cluster has as the part.
        """
        most = len(self.slower_by_size)
        if not most:
            return self
        sizes = [min(most, max(1, round(servers * ratio))) for servers in range(1, max(1, round(most / ratio)) + 1)]
        sizes[-1] = most
        return Charges(*(tuple(getattr(self, name)[size - 1] for size in sizes) for name in TABLES))

    def of_size(self, servers: int) -> tuple[float, float, float]:
        """Return ``slower``, ``finish_s`` and ``loading_s`` of a learner of so many servers.

        Raises:
            PlanningError: a learner of this size is not possible.
        """
        if self.slower_by_size and not self.fits(servers):
            possible = [size for size in range(1, len(self.slower_by_size) + 1) if self.fits(size)]
            raise PlanningError(
                f"the charges of the work do not allow a learner of {servers} servers; choose one of {as_given(possible)}"
            )
        return self.slower(servers), self.finish_s(servers), self.loading_s(servers)

    def slower(self, servers: int) -> float:
        """Return how many times as long an item of learning takes on one of so many servers as at full speed."""
        return self._of_size(self.slower_by_size, servers, 1.0)

    def finish_s(self, servers: int) -> float:
        """Return the seconds that each of so many servers works at the end of learning."""
        return self._of_size(self.finish_s_by_size, servers, 0.0)

    def loading_s(self, servers: int) -> float:
        """Return the seconds to load models on each of so many servers."""
        return self._of_size(self.loading_s_by_size, servers, 0.0)

    def _of_size(self, table: tuple[float, ...], servers: int, without: float) -> float:
        if not table:
            return without
        if not 1 <= servers <= len(table):
            raise PlanningError(
                f"the charges have no entry for a learner of {servers} servers, only for 1 to {len(table)}; add one"
            )
        return table[servers - 1]


def slowdown(times: float, loss_per_doubling: float) -> float:
    """Return how many times as long an item takes on a server of a learner that is so many times as large.

    Example:
        >>> from solver.step.charges import slowdown
        >>> round(4 / slowdown(4, 0.1), 2)  # the speed of four servers over that of one
        3.24
    """
    return float((1.0 - loss_per_doubling) ** -math.log2(times))
