"""Square-root folding that never stops an actor: thin actors are drained one response at a time, and loads are evened out.

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

from rlhfless.scheduling.fold import SquareRootFold
from rlhfless.scheduling.receivers import ReceiverRoom
from solver.model.runtime_rules import ActorView, Decision, Move, StepState, Trigger

UNEVEN = 0.05  # share of its responses by which an actor must exceed the thinnest before it gives one away
MIN_DECISIONS = 40  # decisions while the unfinished responses become none, at least


@dataclass
class DrainingFold(SquareRootFold):
    """Keep ``sqrt(nu * b * n / a)`` actors for n unfinished responses, drain the thinnest, and even out the others."""

    name: str = "draining fold"
    _leaving: set[int] = field(default_factory=set, repr=False)
    _free_s: dict[int, float] = field(default_factory=dict, repr=False)  # when each actor's link is free
    _next_s: float | None = field(default=None, repr=False)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """Trigger as ``SquareRootFold`` does, but more often, and whenever a link with more to send becomes free."""
        if self.actors < 2:
            return None
        return Trigger(completions=view.completed + max(1, math.ceil(self._wait / self.actors)), time_s=self._next_s)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Choose surplus actors to drain, then send the next response of every drained or too full actor whose link is free."""
        load = {v.actor: v.unfinished_count + v.arriving_count for v in state.actors}
        room = ReceiverRoom(state)
        self._leaving &= load.keys()
        unfinished = np.flatnonzero(~np.asarray(state.complete))
        share = self._share(state, unfinished)
        staying = self._fold(state, load, room, self.nu * share * len(unfinished) / self.latency.base_s)
        receivers = {v.actor for v in staying}
        thinnest = sorted((load[a], a) for a in receivers)
        moves: list[Decision] = []

        def send(view: ActorView) -> bool:
            """Send a response to the thinnest actor with a free slot and memory for it, if there is one."""
            if not view.unfinished_count or self._free_s.get(view.actor, -math.inf) > now_s + 1e-9:
                return False
            for there, to in thinnest:  # memory last, as counting it looks at all responses of an actor
                if to == view.actor or room.slots[to] <= 0:
                    continue
                if view.actor not in self._leaving and load[view.actor] - there < max(2.0, UNEVEN * load[view.actor]):
                    return False
                response = view.unfinished[0]
                (needs,) = room.needs([response])
                if room.kv_tokens(to) >= needs:
                    break
            else:
                return False
            moves.append(Move(response, to))
            room.give(to, needs)
            for actor, change in ((to, 1), (view.actor, -1)):
                if actor in receivers:
                    thinnest.remove((load[actor], actor))
                    bisect.insort(thinnest, (load[actor] + change, actor))
                load[actor] += change
            context = float(state.prompt_tokens[response] + state.generated_tokens[response])
            self._free_s[view.actor] = now_s + self.latency.transfer_s(context)
            return True

        leaving = [v for v in state.actors if v.actor in self._leaving]
        sent = [v.actor for v in (*leaving, *sorted(staying, key=lambda v: -load[v.actor])) if send(v)]
        self.actors = len(staying)
        until_fold = self._completions_until_fold(len(unfinished), self.actors, share)
        self._wait = min(until_fold, max(1, len(unfinished) // MIN_DECISIONS))
        busy = [at_s for a in {*sent, *(v.actor for v in leaving)} if (at_s := self._free_s.get(a, now_s)) > now_s]
        self._next_s = max(now_s + self.latency.base_s, min(busy)) if busy else None
        if any(v.actor not in sent and self._free_s.get(v.actor, now_s) <= now_s for v in leaving):
            self._wait = 1  # nobody has room for its responses: not before something is complete
        return moves

    def _fold(self, state: StepState, load: dict[int, int], room: ReceiverRoom, wanted_squared: float) -> list[ActorView]:
        """Mark the thinnest surplus actors as leaving, while the others have slots; returns the actors that stay.

        Memory is not checked: a response that finds none on any receiver waits where it is, and decodes there.
        """
        staying = sorted((v for v in state.actors if v.actor not in self._leaving), key=lambda v: (load[v.actor], v.actor))
        pending = sum(load[a] for a in self._leaving)
        while len(staying) > 1 and (len(staying) - 1) ** 2 >= wanted_squared - 1e-9:
            pending += load[staying[0].actor]
            if sum(room.slots[v.actor] for v in staying[1:]) < pending:
                break
            self._leaving.add(staying.pop(0).actor)
        return staying
