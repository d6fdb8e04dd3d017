"""Assigns whole items to a list of actors within a makespan; each actor opens at a given position of the sorted items.

Inputs: ``MixedWork`` and a function that values time and cost. Items (responses, or whole prompts that stay together) are taken
longest first. Each goes to the open actor where it adds least cost and still ends within the makespan. Where prompts are shared
it adds less next to its siblings. An actor opens at its position, or earlier if no other actor has room. If memory instead of
slots makes responses wait, times are estimates; in the end ``solver.evaluate`` times the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.workload import IntArray
from solver.planning.mixed_kinds.actor_fill import ActorUnderFill, Items, iterations_and_calls
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.work_budget import WorkBudget

# what filling takes, a response of it, and every open actor that is tried for an item, or a whole prompt (see
# ``work_budget``)
FILL_S, RESPONSE_S, TRY_S, PROMPT_TRY_S = 1e-4, 1.3e-6, 4e-7, 1.2e-6

Actors = tuple[tuple[int, int], ...]
"""(offer, sorted position of the item at which the actor opens), sorted by position."""

Tilts = tuple[tuple[float, int], ...]
"""For every actor a factor on its costs, which leaves it to the items that would cost more elsewhere when above 1, and a sorted
position before which it takes nothing but the item that opens it."""


@dataclass(frozen=True, eq=False)
class FilledPlan:
    """Groups of responses with their offers, makespan, cost and value.

    Attributes:
        actors, tilts: as given, without actors that stayed empty. groups: responses of each, in admission order.
        warm: which of them are prewarmed. makespan_s, cost: of generation. value: of the objective.
        within_s: a makespan for which filling the same actors and tilts gives this plan.
    """

    actors: Actors
    tilts: Tilts
    groups: tuple[tuple[int, ...], ...]
    warm: tuple[bool, ...]
    makespan_s: float
    cost: float
    value: float
    within_s: float


class GreedyFiller:
    """Assigns the items of ``work`` to actors greedily, longest first.

    Args:
        value_of: value of makespan in seconds and cost of generation.
        held_after_s: None if actors release their GPUs once done, else seconds for which they hold them after the makespan.
    """

    def __init__(
        self,
        work: MixedWork,
        value_of: Callable[[float, float], float],
        held_after_s: float | None = None,
        work_budget: WorkBudget | None = None,
    ) -> None:
        self.work_budget = work_budget or WorkBudget()
        self.work, self.value_of, self.held_after_s = work, value_of, held_after_s
        self.items = Items(work)
        self.working = int(work.works.sum())

    def prewarm(self, actors: Actors, used_s: Sequence[float] = ()) -> list[bool]:
        """Return which actors get the prewarmed containers.

        In every pool these are the actors whose start would cost most; of equal ones, those that take longest (``used_s``, if
        known).
        """
        work = self.work
        warm = [False] * len(actors)
        for i, pool in enumerate(work.pools):
            of_pool = [j for j, (r, _) in enumerate(actors) if work.pool[r] == i]
            cost = [float(work.start_s[r] * work.rate[r]) for r, _ in actors]
            of_pool.sort(key=lambda j: (-cost[j], -used_s[j] if used_s else 0.0))
            for j in of_pool[: pool.prewarmed]:
                warm[j] = True
        return warm

    def _ready_s(self, actors: Actors, warm: Sequence[bool]) -> list[float]:
        """Return the seconds from allocating each actor's GPUs until it can decode."""
        work = self.work
        return [float(work.sync_s[r]) + (0.0 if w else float(work.start_s[r])) for (r, _), w in zip(actors, warm, strict=True)]

    def fill(self, actors: Actors, makespan_s: float, tilts: Tilts | None = None) -> FilledPlan | None:
        """Return the items assigned to these actors within ``makespan_s``, or None if they do not fit this way."""
        self.work_budget.spend(FILL_S)
        work = self.work
        tilts = tilts or ((1.0, 0),) * len(actors)
        filling = [
            ActorUnderFill(work, self.items, r, makespan_s - ready_s + 1e-9 * max(1.0, makespan_s), tilt)
            for (r, _), tilt, ready_s in zip(actors, tilts, self._ready_s(actors, self.prewarm(actors)), strict=True)
        ]
        opened: list[ActorUnderFill] = []
        actors_tried = 0
        together = self.items.together
        for i, (length, _, held, prompt, computes, recomputes) in enumerate(self.items.rows[: self.working]):
            best, best_s, best_cost = None, 0.0, float("inf")
            waiting = len(opened)  # the actors that have not opened are those from here on
            candidates = opened if waiting == len(actors) or actors[waiting][1] > i else []
            while True:
                # this loop is where the time goes
                for actor in candidates:
                    if (i < actor.closed_until and actor.group) or (actor.allowed is not None and not actor.allowed[i]):
                        continue
                    extra_s = actor.uncached_load[i]
                    if together:
                        last, number = actor.refilled(i)
                        extra_s += actor.base_s * (last - actor.busy) + actor.call_s * (number - actor.calls)
                    else:
                        calls = computes
                        if actor.repeated is not None and prompt in actor.cached_prompts:
                            extra_s, calls = extra_s - actor.repeated[i], recomputes
                        ends, begin = actor.ends, 0
                        if ends and (len(ends) == actor.slots or actor.kv + held > actor.memory):
                            begin = ends[0]
                        if begin + length > actor.busy:
                            extra_s += actor.base_s * (begin + length - actor.busy)
                        if calls and begin not in actor.joins:
                            extra_s += actor.call_s
                    if actor.used_s + extra_s <= actor.free_s and actor.rate * extra_s < best_cost:
                        best, best_s, best_cost = actor, extra_s, actor.rate * extra_s
                if best is not None:
                    break
                if len(opened) == len(actors):
                    self._spend(i, actors_tried - len(opened) * (self.working - i))
                    return None
                candidates = [filling[len(opened)]]
                opened.append(candidates[0])
                actors_tried += self.working - i
            best.take(i, best_s)
        self._spend(self.working, actors_tried)
        return self._price(actors, tilts, filling)

    def _spend(self, items: int, actors_tried: int) -> None:
        """Count the work of assigning this many items, for which ``actors_tried`` open actors were tried."""
        try_s = PROMPT_TRY_S if self.items.together else TRY_S
        self.work_budget.spend(RESPONSE_S * float(self.work.edge[items]) + try_s * actors_tried)

    def _price(self, actors: Actors, tilts: Tilts, filled: list[ActorUnderFill]) -> FilledPlan | None:
        """Return time, cost and value of filled actors; items of length 0 go where they are allowed."""
        work = self.work
        for i in range(self.working, len(work)):
            hosts = [actor for actor in filled if work.allowed[actor.offer, i]]
            hosts = [actor for actor in hosts if actor.group or not self.working] or hosts
            if not hosts:
                return None
            hosts[0].group.append(i)
        kept = [j for j, actor in enumerate(filled) if actor.group]
        kept_actors = tuple((actors[j][0], filled[j].group[0]) for j in kept)
        within_s = max(
            ready_s + filled[j].used_s
            for j, ready_s in zip(kept, self._ready_s(kept_actors, self.prewarm(kept_actors)), strict=True)
        )
        groups = [self._responses(filled[j].group) for j in kept]
        used_s = [filled[j].used_s for j in kept]
        if self.items.together:
            used_s = [self._together_s(filled[j], group) for j, group in zip(kept, groups, strict=True)]
        warm, makespan, cost = self.timed(kept_actors, used_s)
        chosen = tuple(tuple(work.order[group].tolist()) for group in groups)
        kept_tilts = tuple(tilts[j] for j in kept)
        value = self.value_of(makespan, cost)
        return FilledPlan(kept_actors, kept_tilts, chosen, tuple(warm), makespan, cost, value, within_s)

    def timed(
        self, actors: Actors, used_s: Sequence[float], warm: Sequence[bool] | None = None
    ) -> tuple[list[bool], float, float]:
        """Return which actors are prewarmed, by default those of ``prewarm``, and the makespan and the cost of actors that
        decode for these seconds."""
        warm = self.prewarm(actors, used_s) if warm is None else list(warm)
        done = [ready_s + used for ready_s, used in zip(self._ready_s(actors, warm), used_s, strict=True)]
        makespan_s, rates = max(done), [float(self.work.rate[r]) for r, _ in actors]
        if self.held_after_s is None:
            return warm, makespan_s, sum(rate * t for rate, t in zip(rates, done, strict=True))
        return warm, makespan_s, sum(rates) * (makespan_s + self.held_after_s)

    def _together_s(self, actor: ActorUnderFill, responses: IntArray) -> float:
        """Return the seconds for which an actor of whole prompts decodes and prefills their responses in this order."""
        work, r = self.work, actor.offer
        iterations, calls = iterations_and_calls(work, responses, work.at_once(r, responses))
        return float(work.uncached_load[r, actor.group].sum()) + actor.base_s * iterations + actor.call_s * calls

    def _responses(self, items: list[int]) -> IntArray:
        """Return the responses of items, the longest first, as positions in ``MixedWork.order``."""
        work, chosen = self.work, np.array(items, dtype=np.int64)
        if not self.items.together:
            return chosen
        responses = np.concatenate([np.arange(work.edge[i], work.edge[i + 1]) for i in items])
        return responses[np.argsort(-work.iterations[responses], kind="stable")]


def openings(actors: list[list[float]], edges: list[int], late: float = 0.5) -> Actors:
    """Return whole actors from fractional numbers by offer and class.

    The j-th actor of an offer opens at the class where the running sum of its numbers passes j - ``late``.
    """
    chosen: list[tuple[int, int]] = []
    for r, numbers in enumerate(actors):
        total, whole = 0.0, 0
        for k, number in enumerate(numbers):
            total += number
            while whole < total - late:
                chosen.append((r, edges[k]))
                whole += 1
    return tuple(sorted(chosen, key=lambda actor: (actor[1], actor[0])))
