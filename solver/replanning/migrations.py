"""Decides in one re-planning round which actor is released and which responses migrate, best first.

Inputs: unfinished responses (``UnfinishedResponses``) and a forecast of their lengths. ``look`` computes a round once. As links
become free, ``MigrationRound.send`` sends the next responses of its lists and tests each of them again first.
``solver.replanning.replan`` decides when a round takes place.

A move costs, in the unit of solver.replanning.marginal_value (actor-seconds):

- the migrating response makes no progress for ``delay_s``, as responses of one sender follow one another over its link;
- the receiver's whole batch makes no progress for ``stall_s``, while the response joins and, where that is cheaper than the
transfer, its KV cache is recomputed. This costs what the batch earns in that time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.lengths.remaining import RemainingLengths
from solver.model.runtime_rules import Move
from solver.model.workload import FloatArray, IntArray
from solver.replanning.receivers import MigrationCandidate, ReceiverState, candidates_of
from solver.replanning.running_responses import UnfinishedResponses

FOLD_CANDIDATES = 2  # actors with the least to lose that are tried
LEAST_RISE = 0.03  # actors by which a fold must raise the value per second: less is within the errors of the forecast
LATE_SHARE = 0.3  # of a delay that later moves do not make up for (the best of 0.1, 0.3, 0.5, 1 and 2 on two public logs)
HYSTERESIS = 1.5  # times its cost that a move between actors that go on must gain
TRIES = 3  # responses of a sender that find no place, the most promising first, before it waits for the next look
OFFERS = 24  # responses of a sender that a look lists


class Migration(NamedTuple):
    """A move together with the actor that the response leaves."""

    from_actor: int
    move: Move


@dataclass
class LinkSchedule:
    """State kept between re-planning rounds: the actors being drained, and the time at which each actor's link is free."""

    leaving: set[int] = field(default_factory=set)
    free_s: dict[int, float] = field(default_factory=dict)


@dataclass(eq=False)
class MigrationRound:
    """The responses that one re-planning round found worth sending and that are not sent yet.

    Attributes:
        places: the receivers as at the round, updated with every response sent since.
        lists: migration candidates by position of their sender, in the order in which they are tried.
    """

    places: ReceiverState
    lists: dict[int, list[MigrationCandidate]]

    def send(
        self, now_s: float, links: LinkSchedule, complete: Sequence[bool] | NDArray[np.bool_] | None = None
    ) -> list[Migration]:
        """Return the next migrations of all senders whose link is free, and enter them in ``places`` and ``links``."""
        places, moves = self.places, list[Migration]()
        for k in [k for k in self.lists if links.free_s.get(places.ids[k], -math.inf) <= now_s + 1e-9]:
            waiting, drains = self.lists[k], not places.stays[k]
            missed: list[MigrationCandidate] = []
            at = 0
            while at < len(waiting) and len(missed) < TRIES and (drains or places.count[k] > 1):
                offer = waiting[at]
                at += 1
                if complete is not None and complete[offer.response]:
                    continue
                to, gain = places.best(offer, k)
                if to < 0 or (not drains and gain <= offer.least_gain[places.kind[to]]):
                    missed.append(offer)
                    continue
                moves.append(Migration(places.ids[k], Move(offer.response, places.ids[to])))
                places.move(offer, k, to)
                if offer.kv_tokens > 0:
                    links.free_s[places.ids[k]] = now_s + offer.pass_s[places.kind[to]]
                    break
            if drains:
                waiting[:at] = missed  # their turn comes again when there is room
            elif len(missed) < TRIES:
                del waiting[:at]
            else:
                waiting.clear()
            if not waiting:
                del self.lists[k]
        return moves

    def next_s(self, now_s: float, links: LinkSchedule) -> float:
        """Return the time at which the first link with more to send is free; infinite when nothing is left to send."""
        times = [links.free_s.get(self.places.ids[k], now_s) for k in self.lists]
        return min(times, default=math.inf)


def look(s: UnfinishedResponses, remaining: RemainingLengths, price: float, links: LinkSchedule) -> MigrationRound:
    """Compute one re-planning round: decide whether an actor is released, and list the responses that should move.

    A released actor is entered in ``links.leaving``. Every sender lists at most ``OFFERS`` responses.
    """
    links.leaving &= set(s.ids)
    stays = np.array([k not in links.leaving for k in s.ids])
    step = s.step_s
    takes, stall = s.fleet.moves_s(s.kv_tokens, s.kind[s.owner])
    delay = takes + (step[s.owner] / 2)[:, None]  # until it is admitted
    loses = (s.worth / step[s.owner])[:, None] * delay
    folded = _fold(s, stays, remaining, price, delay, stall, loses)
    if folded is not None:
        stays[folded] = False
        links.leaving.add(s.ids[folded])
    time_s = np.maximum(s.left_tokens * step[s.owner], 1e-12)
    listed: dict[int, IntArray] = {}
    for k in np.flatnonzero(~stays & (s.count > 0)).tolist():
        mine = np.flatnonzero((s.owner == k) & s.movable)
        listed[k] = mine[np.argsort(-s.left_tokens[mine], kind="stable")[:OFFERS]]
    chosen = np.flatnonzero(s.movable & (stays & (s.count > 1))[s.owner])
    if len(chosen) and np.count_nonzero(stays) > 1:
        gain = s.gains(chosen, stays) * time_s[chosen, None]
        gain -= HYSTERESIS * stall[chosen][:, s.kind] * (s.actor_worth / step)
        gain -= HYSTERESIS * loses[chosen][:, s.kind]
        net = gain.max(axis=1)
        pays = chosen[net > 0][np.argsort(-net[net > 0], kind="stable")]
        for k in np.unique(s.owner[pays]).tolist():
            listed[k] = pays[s.owner[pays] == k][:OFFERS]
    everyone = np.concatenate([np.zeros(0, np.int64), *listed.values()])
    waiting = iter(
        candidates_of(s, everyone, HYSTERESIS * stall / time_s[:, None], HYSTERESIS * loses / time_s[:, None], takes)
    )
    return MigrationRound(
        ReceiverState(s, stays), {k: list(itertools.islice(waiting, len(own))) for k, own in listed.items() if len(own)}
    )


def _fold(
    s: UnfinishedResponses, stays: NDArray[np.bool_], remaining: RemainingLengths, price: float, delay: FloatArray,
    stall: FloatArray, loses: FloatArray,
) -> int | None:  # fmt: skip
    """Return the position of the actor to release now, or None. Responses still being drained count as spread over the other
    actors."""
    open_actors = np.flatnonzero(stays & (s.count > 0))
    if len(open_actors) < 2 or not np.isfinite(s.left_s):
        return None
    expected_s = float((s.left_tokens * s.step_s[s.owner]).max())
    s = _as_if_drained(s, stays)
    rate = s.actor_worth / s.step_s
    best, chosen = LEAST_RISE * float(s.price[open_actors].mean()), None
    for k in open_actors[np.argsort((rate - s.price)[open_actors], kind="stable")][:FOLD_CANDIDATES].tolist():
        if s.price[k] - rate[k] + _places_worth(s, k, stays) <= best:
            continue
        rise = s.fold_gain(k, stays)
        if rise <= best:
            continue
        mine = np.flatnonzero(s.owner == k)
        others = open_actors[open_actors != k]
        lasts = remaining.survival(s.response[mine], s.tokens[mine], remaining.max_response_tokens - 1.0)
        kinds = np.unique(s.kind[others])  # each response goes to the kind that it reaches soonest
        late = (
            price
            * float(delay[mine][:, kinds].min(axis=1).max(initial=0.0))
            * (1.0 - float(np.prod(1.0 - np.clip(lasts, 0.0, 1.0))))
        )
        held_up = float(stall[mine][:, kinds].min(axis=1).sum()) * float(rate[others].mean())
        cost = LATE_SHARE * (late + float(loses[mine][:, kinds].min(axis=1).sum())) + held_up
        rise -= cost / max(min(s.left_s, expected_s) / 2, 1e-9)
        if rise > best:
            best, chosen = rise, k
    return chosen


def _as_if_drained(s: UnfinishedResponses, stays: NDArray[np.bool_]) -> UnfinishedResponses:
    """Return the running responses with those of leaving actors assigned to the actors that stay, the least loaded first."""
    pending = np.flatnonzero(~stays[s.owner])
    if not len(pending):
        return s
    staying = np.flatnonzero(stays)
    owner = s.owner.copy()
    owner[pending] = staying[np.argsort(s.actor_load[staying], kind="stable")][np.arange(len(pending)) % len(staying)]

    load = s.load_on[np.arange(len(owner)), s.kind[owner]]

    def per_actor(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(owner, weights=values, minlength=len(stays)), dtype=float)

    came = np.bincount(owner[pending], minlength=len(stays))
    return replace(
        s, owner=owner, actor_load=per_actor(load), actor_worth=per_actor(s.worth),
        count=np.bincount(owner, minlength=len(stays)), slots=s.slots - came,
        memory=s.memory - np.bincount(owner[pending], weights=s.reserved[pending], minlength=len(stays)),
    )  # fmt: skip


def _places_worth(s: UnfinishedResponses, k: int, stays: NDArray[np.bool_]) -> float:
    """Return an estimate from above of what the other actors gain from the responses of ``k``.

    Each response counts at its best receiver as if it came alone. Losses count half, as they shrink with the responses that
    came before.
    """
    step = s.step_s
    rate = s.actor_worth / step
    others = np.flatnonzero(stays & (np.arange(len(step)) != k))
    mine = np.flatnonzero(s.owner == k)
    gain = ((s.worth[mine][:, None] - s.load_on[mine][:, s.kind[others]] * rate[others]) / step[others]).max(axis=1)
    return float(np.maximum(gain, gain / 2).sum())
