"""Bandwidth of the links between nodes, shared by all transfers that are sent over them at the same time.

Inputs: nodes, start times and the seconds that a transfer takes alone. Output: the delay of each transfer.

Every node has a link out and a link in. Each of them sends ``carries`` transfers at once as fast as a single one. Bandwidth is
assigned in the order in which transfers are ordered. Each takes what earlier ones leave on both of its links, up to its own
speed, until all of it is sent. So a later transfer never changes the promised end of an earlier one, and no bandwidth that a
transfer could use is left unused. No link exceeds its capacity. With one bottleneck, links with fair sharing have sent as many
bytes by any moment. The last transfer of a busy period arrives at the same time. Here earlier transfers arrive sooner. Within a
node nothing is shared.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import NamedTuple

MIN_RATE = 1e-12  # less is what rounding leaves of a link that is full, or of a transfer that is complete

Link = tuple[str, int]


class BandwidthShare(NamedTuple):
    """Assigned bandwidth of a link, in transfers at full speed."""

    start_s: float
    end_s: float
    rate: float


class NodeLinks:
    """The links of the nodes during one step.

    Attributes:
        shares: by link (``out`` or ``in``, and the node), the bandwidth already assigned.
    """

    def __init__(self, carries: float) -> None:
        self.carries = carries
        self.shares: dict[Link, list[BandwidthShare]] = defaultdict(list)

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
        shared = {link: [share for share in self.shares[link] if share.end_s > start_s] for link in links}
        changes = {t for shares in shared.values() for share in shares for t in (share.start_s, share.end_s) if t > start_s}
        left_s, end_s, slowed = alone_s, start_s, False
        for begin_s, until_s in itertools.pairwise([start_s, *sorted(changes), math.inf]):
            used = (sum(share.rate for share in shared[link] if share.start_s <= begin_s < share.end_s) for link in links)
            rate = min(1.0, self.carries - max(used))
            slowed |= rate < 1
            if rate < MIN_RATE:
                continue
            end_s = min(until_s, begin_s + left_s / rate)
            for link in links:
                self.shares[link].append(BandwidthShare(begin_s, end_s, rate))
            left_s -= (end_s - begin_s) * rate
            if left_s <= MIN_RATE * alone_s:
                break
        return max(0.0, end_s - start_s - alone_s) if slowed else 0.0
