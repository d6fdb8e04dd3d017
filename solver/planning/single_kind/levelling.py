"""Moves responses from actors that are done last to actors that are done earlier, where responses wait for slots.

Waves (``slot_waves``) are assigned by estimates, and each is as long as its longest response. So a few of many actors end
later than the others, and all of them make the makespan. Here these actors give their shortest responses to actors that have
time left. A response counts with its load and its share of a slot; the caller times the result exactly.
"""

from __future__ import annotations

import numpy as np

from solver.model.workload import FloatArray
from solver.timing.group_times import Split

LATER = 1e-4  # relative to the level, of actors that give responses away
MOST_CHANGED = 0.5  # share of the actors: where more would change, no few actors are late


def levelled(split: Split, busy_s: FloatArray, each_s: FloatArray, slots: int) -> Split | None:
    """Return the split with the late actors levelled; None where none is late, or too many are.

    The level is the mean of the actors that refill their slots, or the latest of the others if that is more.

    Args:
        busy_s: (N,) exact seconds of the groups. each_s: (R,) about what each response adds to an actor that refills.
        slots: of an actor.
    """
    groups, refills = split.groups(), np.diff(split.edges) > slots
    if refills.sum() < 2:
        return None
    level_s = max(float(busy_s[refills].mean()), float(busy_s[~refills].max(initial=0.0)))
    late = np.flatnonzero(refills & (busy_s > level_s * (1 + LATER)))
    early = np.flatnonzero(refills & (busy_s < level_s))
    early = early[np.argsort(busy_s[early], kind="stable")]
    if not len(late) or not len(early) or len(late) > MOST_CHANGED * len(groups):
        return None
    given = []
    for g in late.tolist():
        group = groups[g]
        shortest = np.argsort(each_s[group], kind="stable")
        count = int(np.cumsum(each_s[group[shortest]]).searchsorted(busy_s[g] - level_s)) + 1
        leaves = np.zeros(len(group), dtype=bool)
        leaves[shortest[: min(count, len(group) - slots)]] = True
        given.append(group[leaves])
        groups[g] = group[~leaves]
    moved = np.concatenate(given)
    moved = moved[np.argsort(-each_s[moved], kind="stable")]
    room_s, needed_s = np.cumsum(level_s - busy_s[early]), np.cumsum(each_s[moved])
    receiver = np.minimum(room_s.searchsorted(needed_s), len(early) - 1)
    for k in np.unique(receiver).tolist():
        groups[early[k]] = np.concatenate([moved[receiver == k], groups[early[k]]])
    return Split(np.concatenate(groups), np.cumsum([0, *map(len, groups)]))
