"""Bandwidth of the links between nodes, shared by all transfers that are sent over them at the same time.

Inputs: nodes, start times and the seconds that a transfer takes alone. Output: the delay of each transfer.

Every node has a link out and a link in. Each of them sends ``carries`` transfers at once as fast as a single one. Bandwidth is
assigned in the order in which transfers are ordered: each takes what earlier ones leave on both of its links, up to its own
speed, until all of it is sent. So a later transfer never changes the promised end of an earlier one, no bandwidth that a
transfer could use is left unused, and no link exceeds its capacity. With one bottleneck, links with fair sharing have sent as
many bytes by any moment, and the last transfer of a busy period arrives at the same time; here earlier transfers arrive sooner.
Within a node nothing is shared.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import NamedTuple

LEAST_RATE = 1e-12  # less is what rounding leaves of a link that is full, or of a transfer that is complete

Link = tuple[str, int]


class Taken(NamedTuple):
    """Assigned bandwidth of a link, in transfers at full speed."""

    start_s: float
    end_s: float
    rate: float


class NodeLinks:
    """The links of the nodes during one step.

    Attributes:
        taken: by link (``out`` or ``in``, and the node), the bandwidth already assigned.
    """

    def __init__(self, carries: float) -> None:
        self.carries = carries
        self.taken: dict[Link, list[Taken]] = defaultdict(list)

    def delay_s(self, from_node: int | None, to_node: int, start_s: float, alone_s: float) -> float:
        """Assign bandwidth to a transfer; returns by how many seconds it ends later than alone, 0 if it gets all that it can
        use.

        Args:
            from_node: None for a sender outside of the cluster.
            start_s: when it starts; alone_s: seconds that it takes where nothing else is sent.
        """
        links: list[Link] = [("in", to_node)] if from_node is None else [("out", from_node), ("in", to_node)]
        if from_node == to_node or alone_s <= 0:
            return 0.0
        shared = {link: [one for one in self.taken[link] if one.end_s > start_s] for link in links}
        changes = {t for taken in shared.values() for one in taken for t in (one.start_s, one.end_s) if t > start_s}
        left_s, end_s, slowed = alone_s, start_s, False
        for begin_s, until_s in itertools.pairwise([start_s, *sorted(changes), math.inf]):
            used = (sum(one.rate for one in shared[link] if one.start_s <= begin_s < one.end_s) for link in links)
            rate = min(1.0, self.carries - max(used))
            slowed |= rate < 1
            if rate < LEAST_RATE:
                continue
            end_s = min(until_s, begin_s + left_s / rate)
            for link in links:
                self.taken[link].append(Taken(begin_s, end_s, rate))
            left_s -= (end_s - begin_s) * rate
            if left_s <= LEAST_RATE * alone_s:
                break
        return max(0.0, end_s - start_s - alone_s) if slowed else 0.0
