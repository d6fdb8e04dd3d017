"""When something happens on the virtual clock: a heap of the engines' next completions, of which only changed ones are asked.

Engines that predict their completions (``SupportsNextCompletions``) need not be advanced, nor asked again, before the earliest
of these. Their bounds stay in heaps until the engine changes; outdated entries are dropped when they come to the top.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.virtual.actors import VirtualActor

AT_ONCE = 8  # completions that an engine is asked for together, at most: twice as many as before while nothing changes for it
FORESEEN = 4  # completions that an engine is asked for beyond twice its share
NEAR = 32  # completions of the step that are waited for one by one


class EventTimes:
    """Bounds on the times of completions of the ``live`` actors.

    Args:
        lazy: once all have begun, engines that predict their completions are left alone while none is due; else all engines go
            on together.
    """

    def __init__(self, live: Mapping[int, VirtualActor], lazy: bool) -> None:
        self._live, self._may_be_lazy, self._all_begun = live, lazy, False
        self._foreseen = all(actor.foreseeing is not None for actor in live.values())
        self._unknown = set(live)  # whose next completion was not asked for since the engine has changed
        self._next: list[tuple[float, int]] = []
        self._triggers: list[tuple[float, int]] = []

    def leaves_alone(self, actor: VirtualActor) -> bool:
        """Return whether the actor's engine is only advanced when something of it is due, or read."""
        return self._all_begun and actor.foreseeing is not None

    def changed(self, actor: VirtualActor) -> None:
        """Note that an engine was given, or lost, responses."""
        actor.next_s, actor.foreseen_s, actor.foresees = -math.inf, (), 1
        self._unknown.add(actor.index)

    def advanced(self, actor: VirtualActor, to_s: float, completions: int) -> None:
        """Note how many completions an advance has committed; where one was due and there is none, it was only a bound."""
        if completions or actor.next_s <= to_s:
            actor.foreseen_s = actor.foreseen_s[completions:] if completions else ()

    def reaching(self, horizon_s: float) -> Sequence[VirtualActor]:
        """Return the actors whose engines have to be advanced to the horizon, in order."""
        if horizon_s == math.inf or not self._all_begun:
            actors = list(self._live.values())
            self._all_begun = self._may_be_lazy and all(actor.engine.clock_s > actor.ready_s for actor in actors)
            return actors
        due = {i for i in self._unknown if i in self._live}
        while self._next and self._next[0][0] <= horizon_s:
            next_s, index = heapq.heappop(self._next)
            if index in self._live and self._live[index].next_s == next_s:
                due.add(index)
                self._unknown.add(index)
        if not self._foreseen:
            due.update(i for i, actor in self._live.items() if actor.foreseeing is None)
        return [self._live[i] for i in sorted(due)]

    def _ask(self) -> list[int]:
        """Ask engines that have changed for their next completions; return their actors."""
        asked = [i for i in self._unknown if i in self._live]
        for actor in map(self._live.__getitem__, asked):
            if not actor.foreseen_s:
                actor.foreseen_s = tuple(actor.next_completions_s(actor.foresees).tolist()) or (math.inf,)
                actor.foresees = min(2 * actor.foresees, AT_ONCE)
            actor.next_s = actor.foreseen_s[0]
            heapq.heappush(self._next, (actor.next_s, actor.index))
        self._unknown.clear()
        return asked

    def _next_s(self) -> float:
        """Return a lower bound on the next completion of all engines."""
        live, heap = self._live, self._next
        while heap and (heap[0][1] not in live or live[heap[0][1]].next_s != heap[0][0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def trigger_s(self, driver: RuleDriver[VirtualActor], now_s: float, pending: int) -> float:
        """Return a lower bound on the completion at which the rule wants to be asked; ``pending`` ones come in addition."""
        asked = self._ask() if self._all_begun else []
        bounds_s = [self._step_trigger_s(driver, pending)]
        if self._all_begun:
            bounds_s.append(self._actor_trigger_s(driver, now_s, asked))
        if not (self._all_begun and self._foreseen):
            for actor in self._live.values():
                if actor.trigger_completions is not None and not self.leaves_alone(actor):
                    bounds_s.append(actor.engine.peek_next_event_s(actor.missing_completions))
        return min(bounds_s)

    def _actor_trigger_s(self, driver: RuleDriver[VirtualActor], now_s: float, asked: list[int]) -> float:
        """Return a lower bound on the completion of an actor at which the rule wants to be asked.

        Bounds are first those of the actor's next completions, and made tight when they are the earliest. ``asked``: actors
        whose completions have changed.
        """
        live, heap = self._live, self._triggers
        for changed in [live[i] for i in driver.changed.union(asked) if i in live]:
            if changed.trigger_completions is not None:
                foreseen_s, missing = changed.foreseen_s, changed.missing_completions
                changed.trigger_is_tight = missing <= len(foreseen_s)
                changed.trigger_s = foreseen_s[missing - 1] if changed.trigger_is_tight else changed.next_s
                heapq.heappush(heap, (changed.trigger_s, changed.index))
        driver.changed.clear()
        while heap:
            bound_s, index = heap[0]
            actor = live.get(index)
            if actor is None or actor.trigger_s != bound_s or actor.trigger_completions is None or actor.foreseeing is None:
                heapq.heappop(heap)
            elif actor.trigger_is_tight and bound_s > now_s:
                return bound_s
            else:
                actor.trigger_s, actor.trigger_is_tight = actor.engine.peek_next_event_s(actor.missing_completions), True
                heapq.heapreplace(heap, (actor.trigger_s, index))
                if actor.trigger_s <= now_s:
                    return now_s
        return math.inf

    def _step_trigger_s(self, driver: RuleDriver[VirtualActor], pending: int) -> float:
        """Return a lower bound on the completion of the step at which the rule wants to be asked.

        Every engine predicts some of its next completions, more than its share. All completions before the latest predicted
        time are known, so that time is a valid bound where the wanted completion comes later.
        """
        if driver.trigger_completions is None:
            return math.inf
        count = driver.trigger_completions - driver.step.completed - pending
        if count < 1:
            return math.inf  # the last of the pending ones comes first
        if self._all_begun and self._foreseen and count <= NEAR:
            return self._next_s()
        actors = list(self._live.values())
        share = min(count, 2 * math.ceil(count / max(1, len(actors))) + FORESEEN)
        predicted = [actor.next_completions_s(share) for actor in actors]
        times_s = np.sort(np.concatenate([np.zeros(0), *predicted]))
        predicted_until_s = min((t[-1] for t in predicted if len(t) == share < count), default=math.inf)
        return float(min(predicted_until_s, times_s[count - 1] if len(times_s) >= count else math.inf))
