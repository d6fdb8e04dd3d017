"""Square-root folding that never stops an actor: nearly empty actors hand over one response at a time, and loads are balanced.

The rule uses what ``SquareRootFold`` uses: counts of unfinished responses, no prediction. A cut makes all responses of an
actor wait for one another's transfers. Here one response at a time leaves over an actor's link while the others keep decoding.
The step ends with its slowest actor, so a random split also loses time where actors happen to get unequal numbers of long
responses. To the rule all responses are alike, so the fullest actors send some of theirs to the thinnest.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlhfless.scheduling.fold import SquareRoot
from rlhfless.scheduling.receivers import ReceiverRoom
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import ActorCounts, ActorView, Decision, Move, StepState, Trigger, Triggers, trigger_of
from solver.model.workload import FloatArray, IntArray

UNEVEN = 0.05  # share of its responses by which an actor must exceed the thinnest before it gives one away
MIN_DECISIONS = 40  # decisions while the unfinished responses become none, at least


@dataclass
class DrainingFold:
    """Keep ``sqrt(nu * b * n / a)`` actors for n unfinished responses, drain the thinnest, and even out the others."""

    nu: float
    latency: LatencyModel
    total: int
    actors: int
    name: str = "draining fold"
    _root: SquareRoot = field(init=False, repr=False)
    _wait: int = field(init=False, repr=False)
    _stays: NDArray[np.bool_] = field(init=False, repr=False)  # whether it is not being drained, by actor
    _free_s: FloatArray = field(init=False, repr=False)  # when each actor's link is free, by actor
    _next_s: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._root = SquareRoot(self.nu, self.latency)
        self._wait = self._root.completions_until_fewer(self.total, self.actors, self.latency.per_response_s)
        self._stays, self._free_s = np.ones(self.actors, dtype=bool), np.full(self.actors, -np.inf)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger as ``SquareRootFold`` does, but more often, and whenever a link with more to send becomes free."""
        if self.actors < 2:
            return Triggers()
        return Triggers(counts.completed + max(1, math.ceil(self._wait / self.actors)), self._next_s)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Choose surplus actors to drain, then send the next response of every drained or too full actor whose link is free."""
        counts, unfinished, share_s = state.counts, state.unfinished_count, self._root.share_s(state)
        ids, load = counts.actor, counts.unfinished + counts.arriving
        if (missing := int(np.maximum.reduce(ids, initial=-1)) + 1 - len(self._stays)) > 0:
            self._stays = np.append(self._stays, np.ones(missing, dtype=bool))
            self._free_s = np.append(self._free_s, np.full(missing, -np.inf))
        staying = self._fold(counts, load, self._root.squared(unfinished, share_s))
        free_s = self._free_s[ids]
        sends = (free_s <= now_s + 1e-9) & (counts.unfinished > 0)
        leaving, full = (~staying).nonzero()[0], (staying & sends).nonzero()[0]
        senders = leaving[sends[leaving]]
        moves: list[Move] = []
        sent: list[int] = []
        if len(senders) or (len(full) and _may_even_out(counts, load, staying, int(load[full].max()))):
            full = full[np.lexsort((ids[full], -load[full]))]
            moves, sent = self._send(now_s, state, load, staying, [*senders.tolist(), *full.tolist()])
            free_s = self._free_s[ids]
        self.actors = int(np.count_nonzero(staying))
        until_fold = self._root.completions_until_fewer(unfinished, self.actors, share_s)
        self._wait = min(until_fold, max(1, unfinished // MIN_DECISIONS))
        busy = [at_s for at_s in free_s[[*sent, *leaving.tolist()]].tolist() if at_s > now_s]
        self._next_s = max(now_s + self.latency.base_s, min(busy)) if busy else None
        if any(at_s <= now_s for k, at_s in zip(leaving.tolist(), free_s[leaving].tolist(), strict=True) if k not in sent):
            self._wait = 1  # nobody has room for its responses: not before something is complete
        return [*moves]

    def _fold(self, counts: ActorCounts, load: IntArray, wanted_squared: float) -> NDArray[np.bool_]:
        """Mark the thinnest surplus actors as leaving, while the others have slots; returns (K,) which actors stay.

        Memory is not checked: a response that finds none on any receiver waits where it is, and decodes there.
        """
        staying = self._stays[counts.actor]
        left = int(np.count_nonzero(staying))
        if left < 2 or (left - 1) ** 2 < wanted_squared - 1e-9:
            return staying
        pending, slots = int(load[~staying].sum()), int(counts.free_slots[staying].sum())
        ranked = np.flatnonzero(staying)
        for k in ranked[np.lexsort((counts.actor[ranked], load[ranked]))].tolist():
            if left < 2 or (left - 1) ** 2 < wanted_squared - 1e-9:
                break
            pending += int(load[k])
            slots -= int(counts.free_slots[k])
            if slots < pending:
                break
            self._stays[counts.actor[k]] = staying[k] = False
            left -= 1
        return staying

    def _send(
        self, now_s: float, state: StepState, load: IntArray, staying: NDArray[np.bool_], senders: list[int]
    ) -> tuple[list[Move], list[int]]:
        """Return moves of these actors' next responses, each to the thinnest actor with a free slot and memory for it, and the
        actors that send. ``senders``: those that leave, then the others, the fullest first.
        """
        room, ids, stays, loads = ReceiverRoom(state), state.counts.actor.tolist(), staying.tolist(), load.tolist()
        thinnest = sorted((loads[k], ids[k], k) for k in np.flatnonzero(staying).tolist())
        moves: list[Move] = []
        sent, received, even = [], set(), False  # even: who has not received since gives nothing away
        for k in senders:
            if even and k not in received:
                continue
            receiver, first = -1, True
            for there, actor, to in thinnest:  # memory last, as counting it looks at all responses of an actor
                if to == k or room.slots[actor] <= 0:
                    continue
                if stays[k] and loads[k] - there < max(2.0, UNEVEN * loads[k]):
                    even = even or first
                    break
                view = state.view_of(ids[k])
                response = (view.running or view.waiting)[0]
                (needs,) = room.needs([response])
                if room.kv_tokens(actor) >= needs:
                    receiver = to
                    break
                first = False
            if receiver < 0:
                continue
            moves.append(Move(response, ids[receiver]))
            room.give(ids[receiver], needs)
            for at, change in ((receiver, 1), (k, -1)):
                if stays[at]:
                    thinnest.remove((loads[at], ids[at], at))
                    bisect.insort(thinnest, (loads[at] + change, ids[at], at))
                loads[at] += change
            self._free_s[ids[k]] = now_s + self.latency.transfer_s(float(state.context_of(response)))
            sent.append(k)
            received.add(receiver)
        return moves, sent


def _may_even_out(counts: ActorCounts, load: IntArray, staying: NDArray[np.bool_], fullest: int) -> bool:
    """Return whether an actor of the load ``fullest`` may give a response to one with a free slot."""
    receivers = load[staying & (counts.free_slots > 0)]
    return len(receivers) > 0 and fullest - int(receivers.min()) >= max(2.0, UNEVEN * fullest)
