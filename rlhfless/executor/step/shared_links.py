"""The links of nodes to other nodes, shared by all that is sent over them at the same time.

Knows nodes, seconds and rates; nothing of actors, of what is sent or of who decides it.

Every node has a link out and a link in, and each carries ``carries`` transfers at once as fast as one goes alone. Bandwidth is
given out in the order in which transfers are ordered: each takes what those before it leave on both of its links, up to its own
speed, until all of it is sent. So what is ordered later never changes what was promised before (a decision that is carried out
stays as it is), no bandwidth that a transfer could use is left unused, and no link carries more than it can. Where one link is
the bottleneck, links that serve all equally have sent as much by any moment, and the last transfer of a busy time is there at
the same time; here those that were ordered first are there sooner. Within a node nothing is shared.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import NamedTuple

LEAST_RATE = 1e-12  # less is what rounding leaves of a link that is full, or of a transfer that is complete

Link = tuple[str, int]


class Taken(NamedTuple):
    """Bandwidth of a link that is given out, in transfers at full speed."""

    start_s: float
    end_s: float
    rate: float


class NodeLinks:
    """The links of one step.

    Attributes:
        taken: by link (``out`` or ``in``, and the node), what was given out.
    """

    def __init__(self, carries: float) -> None:
        self.carries = carries
        self.taken: dict[Link, list[Taken]] = defaultdict(list)

    def delay_s(self, from_node: int | None, to_node: int, start_s: float, alone_s: float) -> float:
        """Give a transfer its bandwidth; returns by how much it ends later than alone, 0 where it has all that it can use.

        Args:
            from_node: None for what comes from outside of the cluster.
            start_s: from when on it is sent; alone_s: how long that takes where nothing else is sent.
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
