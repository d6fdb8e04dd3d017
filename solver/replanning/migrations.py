"""Decides in one re-planning round which actor is released and which responses migrate, best first.

Inputs: unfinished responses (``UnfinishedResponses``) and a forecast of their lengths. ``plan_round`` computes a round once. As
links become free, ``MigrationRound.send`` sends the next responses of its lists and tests each of them again first.
``solver.replanning.replan`` decides when a round takes place.

A move costs, in the unit of solver.replanning.marginal_value (actor-seconds):

- the migrating response makes no progress for ``delay_s``, as responses of one sender follow one another over its link;
- the receiver's whole batch makes no progress for ``stall_s``. In that time the response joins and its KV cache is recomputed,
  where that is cheaper than the transfer. This costs what the batch earns in that time.
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
from solver.replanning.marginal_value import delay_s, stall_s
from solver.replanning.receivers import MigrationCandidate, ReceiverState, candidates_of
from solver.replanning.running_responses import UnfinishedResponses

FOLD_CANDIDATES = 2  # actors of the smallest value that are tried
MIN_FOLD_RISE = 0.03  # actors by which a fold must raise the value per second: less is within the errors of the forecast
UNRECOVERED_SHARE = 0.3  # of a delay, in spite of later moves (the best of 0.1, 0.3, 0.5, 1 and 2 on two public logs)
HYSTERESIS = 1.5  # a move between actors that are not released must gain so many times its cost
MAX_TRIES = 3  # responses of a sender without a receiver, the most promising first, before it waits for the next round
MAX_CANDIDATES = 24  # responses of a sender that a round lists


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
    """The responses that one re-planning round chose to send and that are not sent yet.

    Attributes:
        receivers: the actors as at the round, updated with every response sent since.
        candidates: by position of their sender, in the order in which they are tried.
    """

    receivers: ReceiverState
    candidates: dict[int, list[MigrationCandidate]]

    def send(
        self, now_s: float, links: LinkSchedule, complete: Sequence[bool] | NDArray[np.bool_] | None = None
    ) -> list[Migration]:
        """Return the next migrations of all senders whose link is free, and enter them in ``receivers`` and ``links``."""
        receivers, moves = self.receivers, list[Migration]()
        for k in [k for k in self.candidates if links.free_s.get(receivers.ids[k], -math.inf) <= now_s + 1e-9]:
            waiting, drains = self.candidates[k], not receivers.stays[k]
            without_receiver: list[MigrationCandidate] = []
            position = 0
            while position < len(waiting) and len(without_receiver) < MAX_TRIES and (drains or receivers.count[k] > 1):
                candidate = waiting[position]
                position += 1
                if complete is not None and complete[candidate.response]:
                    continue
                receiver, gain = receivers.best(candidate, k)
                if receiver < 0 or (not drains and gain <= candidate.min_gain):
                    without_receiver.append(candidate)
                    continue
                moves.append(Migration(receivers.ids[k], Move(candidate.response, receivers.ids[receiver])))
                receivers.move(candidate, k, receiver)
                if candidate.kv_tokens > 0:
                    links.free_s[receivers.ids[k]] = now_s + candidate.pass_s
                    break
            if drains:
                waiting[:position] = without_receiver  # tried again when there is room
            elif len(without_receiver) < MAX_TRIES:
                del waiting[:position]
            else:
                waiting.clear()
            if not waiting:
                del self.candidates[k]
        return moves

    def next_s(self, now_s: float, links: LinkSchedule) -> float:
        """Return the time at which the first link with more to send is free; infinite when nothing is left to send."""
        times = [links.free_s.get(self.receivers.ids[k], now_s) for k in self.candidates]
        return min(times, default=math.inf)


def plan_round(s: UnfinishedResponses, remaining: RemainingLengths, price: float, links: LinkSchedule) -> MigrationRound:
    """Compute one re-planning round: decide whether an actor is released, and list the responses that should move.

    A released actor is entered in ``links.leaving``. Every sender lists at most ``MAX_CANDIDATES`` responses.
    """
    links.leaving &= set(s.ids)
    stays = np.array([k not in links.leaving for k in s.ids])
    step = s.iteration_s
    move_s, stall = delay_s(s.latency, s.kv_tokens, 0.0), stall_s(s.latency, s.kv_tokens)
    delay = move_s + step[s.owner] / 2  # until it is admitted
    lost_progress = s.token_value / step[s.owner] * delay
    released = _fold(s, stays, remaining, price, delay, stall, lost_progress)
    if released is not None:
        stays[released] = False
        links.leaving.add(s.ids[released])
    time_s = np.maximum(s.left_tokens * step[s.owner], 1e-12)
    listed: dict[int, IntArray] = {}
    for k in np.flatnonzero(~stays & (s.count > 0)).tolist():
        leaving = np.flatnonzero((s.owner == k) & s.movable)
        listed[k] = leaving[np.argsort(-s.left_tokens[leaving], kind="stable")[:MAX_CANDIDATES]]
    chosen = np.flatnonzero(s.movable & (stays & (s.count > 1))[s.owner])
    if len(chosen) and np.count_nonzero(stays) > 1:
        gain = s.gains(chosen, stays) * time_s[chosen, None]
        gain -= HYSTERESIS * stall[chosen, None] * (s.actor_token_value / step)
        gain -= HYSTERESIS * lost_progress[chosen, None]
        net = gain.max(axis=1)
        pays = chosen[net > 0][np.argsort(-net[net > 0], kind="stable")]
        for k in np.unique(s.owner[pays]).tolist():
            listed[k] = pays[s.owner[pays] == k][:MAX_CANDIDATES]
    all_listed = np.concatenate([np.zeros(0, np.int64), *listed.values()])
    waiting = iter(candidates_of(s, all_listed, HYSTERESIS * stall / time_s, HYSTERESIS * lost_progress / time_s, move_s))
    return MigrationRound(
        ReceiverState(s, stays),
        {k: list(itertools.islice(waiting, len(responses))) for k, responses in listed.items() if len(responses)},
    )


def _fold(
    s: UnfinishedResponses, stays: NDArray[np.bool_], remaining: RemainingLengths, price: float, delay: FloatArray,
    stall: FloatArray, lost_progress: FloatArray,
) -> int | None:  # fmt: skip
    """Return the position of the actor to release now, or None. Responses still being drained count as spread over the other
    actors."""
    open_actors = np.flatnonzero(stays & (s.count > 0))
    if len(open_actors) < 2 or not np.isfinite(s.left_s):
        return None
    expected_s = float((s.left_tokens * s.iteration_s[s.owner]).max())
    s = _as_if_drained(s, stays)
    rate = s.actor_token_value / s.iteration_s
    best, released = MIN_FOLD_RISE, None
    for k in open_actors[np.argsort(rate[open_actors], kind="stable")][:FOLD_CANDIDATES].tolist():
        if 1.0 - rate[k] + _max_receiver_gain(s, k, stays) <= best:
            continue
        rise = s.fold_gain(k, stays)
        if rise <= best:
            continue
        leaving = np.flatnonzero(s.owner == k)
        receivers = open_actors[open_actors != k]
        reaches_limit = remaining.survival(s.response[leaving], s.tokens[leaving], remaining.max_response_tokens - 1.0)
        late_cost = (
            price * float(delay[leaving].max(initial=0.0)) * (1.0 - float(np.prod(1.0 - np.clip(reaches_limit, 0.0, 1.0))))
        )
        stall_cost = float(stall[leaving].sum()) * float(rate[receivers].mean())
        cost = UNRECOVERED_SHARE * (late_cost + float(lost_progress[leaving].sum())) + stall_cost
        rise -= cost / max(min(s.left_s, expected_s) / 2, 1e-9)
        if rise > best:
            best, released = rise, k
    return released


def _as_if_drained(s: UnfinishedResponses, stays: NDArray[np.bool_]) -> UnfinishedResponses:
    """Return the running responses with those of leaving actors assigned to the actors that stay, the least loaded first."""
    pending = np.flatnonzero(~stays[s.owner])
    if not len(pending):
        return s
    staying = np.flatnonzero(stays)
    owner = s.owner.copy()
    owner[pending] = staying[np.argsort(s.actor_load[staying], kind="stable")][np.arange(len(pending)) % len(staying)]

    def per_actor(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(owner, weights=values, minlength=len(stays)), dtype=float)

    arrivals = np.bincount(owner[pending], minlength=len(stays))
    return replace(
        s, owner=owner, actor_load=per_actor(s.load), actor_token_value=per_actor(s.token_value),
        count=np.bincount(owner, minlength=len(stays)), slots=s.slots - arrivals,
        memory=s.memory - np.bincount(owner[pending], weights=s.reserved[pending], minlength=len(stays)),
    )  # fmt: skip


def _max_receiver_gain(s: UnfinishedResponses, k: int, stays: NDArray[np.bool_]) -> float:
    """Return an upper estimate of what the other actors gain from the responses of ``k``.

    Each response counts at its best receiver as if it came alone. Losses count half, as they shrink with the responses that
    came before.
    """
    step = s.iteration_s
    rate = s.actor_token_value / step
    receivers = np.flatnonzero(stays & (np.arange(len(step)) != k))
    leaving = np.flatnonzero(s.owner == k)
    gain = ((s.token_value[leaving][:, None] - s.load[leaving][:, None] * rate[receivers]) / step[receivers]).max(axis=1)
    return float(np.maximum(gain, gain / 2).sum())
