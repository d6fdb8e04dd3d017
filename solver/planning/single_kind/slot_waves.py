"""Builds whole plans for a makespan where slots bind: waves of responses that fit into the batch at once, several to
an actor.

Input: ``SortedWork``. The sorted items are cut into contiguous waves; a wave alone takes a * longest + sum of loads. Waves that
follow one another on an actor take at most the sum of that. When the longest responses of all waves before have run one after
the other, every slot is free of them. (By induction: so it was for the wave before, whose responses all joined by then.)
Prefill calls are added: a wave joins as the one before it completes, in about as many calls as that has different lengths. So
the actor with the shortest wave first and the longest, most varied one last makes fewest. Near-equal lengths in a wave leave
few slots idle. Refilling longest first from one long contiguous group, as next-fit does, is worse: the last wave takes its full
length for a few responses.

Assigning waves to actors is bin packing. Where there are actors enough, best fit decreasing is used. Where not, every actor
starts with one of the longest waves and is filled up to the makespan as exactly as two waves can. This follows the minimum bin
slack heuristic of Gupta and Ho, 1999. If waves are left over, all actors get more room, beyond the makespan.
"""

from __future__ import annotations

import bisect

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.rounding import loads_in_groups, wave_edges

MOST_WAVES = 2000  # with more, sharing them out takes longer than a plan may
EXACTLY = 1e-3  # share of the makespan that a filled actor may leave open
ROUNDS, WIDER = 4, 1.5  # of filling all actors, each with so much more room as what was left over takes of each
NARROWED = 3  # halvings of the room between the last two of these rounds


def waves(work: SortedWork, makespan_s: float) -> tuple[list[IntArray], FloatArray] | None:
    """Return groups of items in order of admission, and about how many seconds each is busy.

    The makespan is a target and may be exceeded: prefill calls are estimates, and too few actors take longer. None if there are
    too many waves, or an item is late even alone.
    """
    edges = wave_edges(work, makespan_s, MOST_WAVES)
    if edges is None:
        return None
    first = edges[:-1]
    alone = work.base_s * work.length[first] + np.add.reduceat(loads_in_groups(work, edges), first)
    calls = work.call_s * (_different_lengths(work, edges) - 1.0)  # the first one is made by whatever comes first
    order = np.argsort(-alone, kind="stable")
    room = makespan_s - work.call_s - np.array([work.ready_of(j) for j in range(work.max_actors)])
    packed = _best_fit(alone[order], (alone + calls + work.call_s)[order], room)
    if packed is None:
        packed = _evenly(alone[order], (alone + calls + work.call_s)[order], room, EXACTLY * makespan_s)
    groups, busy = [], []
    for actor in packed:
        assigned = order[actor[::-1]]
        groups.append(np.concatenate([np.arange(edges[w], edges[w + 1]) for w in assigned.tolist()]))
        busy.append(work.call_s * len(assigned) + float(alone[assigned].sum() + calls[assigned[:-1]].sum()))
    return groups, np.array(busy)


def _different_lengths(work: SortedWork, edges: IntArray) -> IntArray:
    """Return (W,) how many different lengths the responses of each wave have."""
    wave = np.repeat(np.arange(len(edges) - 1), np.diff(work.edge[edges]))
    key = np.sort(wave * (int(work.length[0]) + 1) + (int(work.length[0]) - work.iterations), kind="stable")
    new = np.concatenate([[True], np.diff(key) != 0])
    return np.bincount(wave[new], minlength=len(edges) - 1)


def _best_fit(alone: FloatArray, joining: FloatArray, room: FloatArray) -> list[list[int]] | None:
    """Assign waves, in order of falling time, to the actor where they leave least room, else to a new one; None if there is
    none.

    Args:
        alone: (W,) seconds of a wave that is an actor's first; joining: of a wave that follows another.
        room: (N,) seconds that each actor has.
    """
    spare: list[float] = []  # seconds that each actor has left, rising
    actors: list[list[int]] = []
    opened = 0
    for wave, (begins, joins) in enumerate(zip(alone.tolist(), joining.tolist(), strict=True)):
        i = bisect.bisect_left(spare, joins)
        if i < len(spare):
            spare_s, assigned = spare.pop(i) - joins, actors.pop(i)
        elif opened < len(room):
            spare_s, assigned = float(room[opened]) - begins, []
            opened += 1
        else:
            return None
        assigned.append(wave)
        i = bisect.bisect_left(spare, spare_s)
        spare.insert(i, spare_s)
        actors.insert(i, assigned)
    return sorted(actors)


def _evenly(alone: FloatArray, joining: FloatArray, room: FloatArray, slack_s: float) -> list[list[int]]:
    """Assign all waves to the existing actors, with more room for each until nothing is left over or the tries run out.

    Then the room is halved back towards the last one that did not do.
    """
    added_s = lacking_s = 0.0
    for _ in range(ROUNDS):
        actors, left_s, over = _least_slack(alone, joining, room + added_s, slack_s)
        if not len(over):
            break
        lacking_s, added_s = added_s, added_s + WIDER * float(joining[over].sum()) / len(room)
    for _ in range(NARROWED if lacking_s < added_s and not len(over) else 0):
        middle_s = (lacking_s + added_s) / 2
        tried = _least_slack(alone, joining, room + middle_s, slack_s)
        if len(tried[2]):
            lacking_s = middle_s
        else:
            added_s, (actors, left_s, over) = middle_s, tried
    for wave in over.tolist():
        roomiest = int(np.argmax(left_s))
        actors[roomiest].append(wave)
        left_s[roomiest] -= joining[wave]
    return [sorted(actor) for actor in actors]


def _least_slack(
    alone: FloatArray, joining: FloatArray, room: FloatArray, slack_s: float
) -> tuple[list[list[int]], FloatArray, IntArray]:
    """Give every actor one of the longest waves and fill it up as exactly as possible; return also the room left and
    the waves left over."""
    actors = [[wave] for wave in range(len(room))]
    left_s = room - alone[: len(room)]
    waiting = np.argsort(-joining[len(room) :], kind="stable") + len(room)
    change_s = -joining[waiting]  # rises
    for actor, spare_s in enumerate(left_s.tolist()):
        while (at := int(change_s.searchsorted(-spare_s))) < len(waiting):
            take = [at]
            if spare_s + change_s[at] > slack_s:
                second = np.maximum(change_s.searchsorted(-spare_s - change_s[at:]), np.arange(at + 1, len(change_s) + 1))
                open_s = spare_s + change_s[at:] + change_s[np.minimum(second, len(change_s) - 1)]
                exact = np.flatnonzero((second < len(change_s)) & (open_s <= slack_s))
                if len(exact):
                    take = [at + int(exact[0]), int(second[exact[0]])]
            actors[actor] += waiting[take].tolist()
            spare_s += float(change_s[take].sum())
            kept = np.ones(len(waiting), dtype=bool)
            kept[take] = False
            waiting, change_s = waiting[kept], change_s[kept]
        left_s[actor] = spare_s
    return actors, left_s, waiting
