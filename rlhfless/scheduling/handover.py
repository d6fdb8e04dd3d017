"""Spreading the unfinished responses of an actor over others with free slots: what every cut and fold needs.

Knows what a rule may see (``StepState``); nothing of time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from solver.rules import ActorView, Cut, Move


def hand_over(leaving: ActorView, receivers: Sequence[ActorView], taken: dict[int, int]) -> Cut | None:
    """Cut ``leaving``, each of its unfinished responses going to the receiver with the fewest responses so far.

    Args:
        taken: slots already given out by earlier decisions of the same moment, by actor; updated.

    Returns:
        None when the receivers have too few free slots, or a response is still on its way to ``leaving``.
    """
    free = {a.actor: a.free_slots - taken.get(a.actor, 0) for a in receivers}
    if leaving.arriving or sum(max(0, f) for f in free.values()) < len(leaving.unfinished):
        return None
    load = {a.actor: len(a.unfinished) + len(a.arriving) + taken.get(a.actor, 0) for a in receivers}
    open_to = [(load[a], a) for a, f in free.items() if f > 0]
    heapq.heapify(open_to)
    moves = []
    for response in leaving.unfinished:
        fewest, receiver = open_to[0]
        free[receiver] -= 1
        if free[receiver]:
            heapq.heapreplace(open_to, (fewest + 1, receiver))
        else:
            heapq.heappop(open_to)
        taken[receiver] = taken.get(receiver, 0) + 1
        moves.append(Move(response, receiver))
    return Cut(leaving.actor, tuple(moves))
