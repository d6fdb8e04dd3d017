"""Re-solving while the step runs: which responses migrate, which actors are folded, which survivors get a small fast batch.

Knows what a rule may see (``StepState``), a forecast of remaining lengths and the actors' latency models; no true lengths.
What a token is worth (q) and what a grouping is worth per second are derived in solver.replanning.marginal_value; a look is
worked out in solver.replanning.migrations.

A look at the step compares three things with doing nothing:

- **fold**: the actor with the least to lose is given back when the value per second rises by more than the fold costs,
  spread over the time that it pays (half of what is left, as the others will be folded in their turn). It costs the progress
  that its responses lose while they move, ``sum q d / (a + W)``, and ``price * d`` with the probability that one of them lasts
  to the response limit: a delay of the longest response delays the step. A part of both is made up for later, as responses
  that are behind are worth more and move to faster batches. What stands still at the receivers is not.
- **move**: a response goes to the actor where the value rises most, when the rise times the response's expected time
  exceeds what its progress is worth while it moves, and what the receiver's batch is worth while it stands still. So
  likely-long survivors gather in small fast batches and likely-short ones in large slow ones.
- an actor that is being folded is drained: its responses leave one after another over its link while the rest goes on
  decoding, the longest to go first (short ones may be complete before their turn). Folding it in one go would let all wait.

Every sender has one link: it sends one response at a time. Actors of several kinds, sizes and prices are looked up in a
``ActorClasses``: each has its own loads and its own price, and between two kinds KV caches are recomputed.

The published rules are baselines with the same interface (rlhfless.scheduling), not settings of this one: RLHFless cuts an
actor at a fixed share of its completions and RLHFuse all but m below a global count, whatever their responses are still worth.
Square-root folding is the course that equal responses take where actors can be divided (see solver.replanning.marginal_value);
here actors are whole and moves cost time, so what is folded, and when, differs from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from solver.lengths.remaining import RemainingLengths
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import ActorView, Decision, Move, StepState, Trigger
from solver.replanning.actor_classes import ActorClasses
from solver.replanning.migrations import LinkSchedule, Migration, MigrationRound, look
from solver.replanning.running_responses import survivors_of

LOOKS = 12  # looks in the time that is left, at most: 40 are no better on three public logs, and take twice as long
LEAST_PAUSE = 8  # iterations of an empty batch between looks, at least
LOOK_S, LOOK_RESPONSE_S = 4e-4, 6e-7  # what a look is taken to take, and for every unfinished response more
LOOKING_SHARE = 0.0125  # of the time between looks that a look may take


def replan(
    state: StepState,
    remaining: RemainingLengths,
    latency: LatencyModel | ActorClasses,
    price: float,
    links: LinkSchedule | None = None,
) -> list[Decision]:
    """What to do now; an empty list when doing nothing is best.

    Args:
        remaining: forecast for every response of the step.
        latency: its affine fit is used; a ``ActorClasses`` where actors differ.
        price: actor-seconds that one second of makespan is worth; GPU-seconds or dollars for a fleet that counts these.
        links: drains and transfers under way; updated. None when there are none.

    Returns:
        At most one move per sender whose link is free (responses without KV cache need no link). Slots and KV memory (as
        under ``reserve``) of the receivers are kept; an actor whose last response moves away is released.
    """
    links, fleet = LinkSchedule() if links is None else links, ActorClasses.of(latency)
    if len(state.actors) < 2:
        return []
    survivors = survivors_of(state, remaining, fleet, price)
    return [move for _, move in look(survivors, remaining, price, links).send(state.now_s, links)]


@dataclass
class Replan:
    """Looks at the running step again and again and does what ``replan`` says.

    It first looks at the first completion, then at times: a twelfth of what is left apart, and no more often than pays for
    the time that looking takes, counted by its work (a clock would make decisions depend on the machine). In between, as
    links get free, it only sends on what the last look has listed: that takes microseconds, as nothing is worked out anew.

    Args:
        remaining: forecast for every response of the step. Replace it to plug in a predictor that updates while decoding;
            its ``observe`` is called at every look.
        latency: of every actor; a ``ActorClasses`` where actors differ in kind, size or price.
        price: actor-seconds that one second of makespan is worth; GPU-seconds or dollars for a fleet that counts these.
    """

    remaining: RemainingLengths
    latency: LatencyModel | ActorClasses
    price: float
    name: str = "replan"
    _fleet: ActorClasses = field(init=False, repr=False)
    _links: LinkSchedule = field(default_factory=LinkSchedule, repr=False)
    _look: MigrationRound | None = field(default=None, repr=False)
    _look_s: float = field(default=-math.inf, repr=False)  # when the next look is due
    _trigger: Trigger | None = field(default=None, repr=False)
    _started: bool = field(default=False, repr=False)
    _open_actors: int = field(default=0, repr=False)  # when links were last served

    def __post_init__(self) -> None:
        self._fleet = ActorClasses.of(self.latency)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """The next look or free link; before the first look, this actor's first completion."""
        return self._trigger if self._started else Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """See ``replan``. Nothing is done before its time has come, nor when one actor is left."""
        if self._started and (self._trigger is None or now_s < (self._trigger.time_s or 0.0) - 1e-9):
            return []
        self._started = True
        if len(state.actors) < 2 or self.price <= 0:
            self._trigger = None
            return []
        if now_s >= self._look_s - 1e-9 or self._look is None:
            complete = np.asarray(state.complete, dtype=bool)
            self.remaining = self.remaining.observe(state.generated_tokens, complete, state.signals)
            survivors = survivors_of(state, self.remaining, self._fleet, self.price)
            self._look = look(survivors, self.remaining, self.price, self._links)
            look_s = LOOK_S + (LOOK_RESPONSE_S + self.remaining.observe_response_s) * len(survivors.response)
            pause = max(LEAST_PAUSE * self._fleet.base_s, survivors.left_s / LOOKS, look_s / LOOKING_SHARE)
            self._look_s = now_s + pause
        elif len(state.actors) < self._open_actors:
            self._forget(state)
        self._open_actors = len(state.actors)
        sent = self._look.send(now_s, self._links, state.complete)
        moves = _with_room(sent, state)
        if len(moves) < len(sent):  # room that the last look counted on is taken: look anew soon
            self._look_s = now_s + self._fleet.base_s
        link_s = max(self._look.next_s(now_s, self._links), now_s + self._fleet.base_s)
        next_s = min(self._look_s, link_s)
        self._trigger = Trigger(time_s=next_s) if math.isfinite(next_s) else None
        return [*moves]

    def _forget(self, state: StepState) -> None:
        """Actors that have been released since the last look receive nothing any more."""
        assert self._look is not None
        live = {view.actor for view in state.actors}
        for k, actor in enumerate(self._look.places.ids):
            if actor not in live:
                self._look.places.close(k)
                self._look.lists.pop(k, None)


def _with_room(sent: Sequence[Migration], state: StepState) -> list[Move]:
    """The moves whose receivers have a free slot and memory now, or such as others of the moves free. Only actors that send or
    receive are looked at: memory is counted over all responses of an actor."""
    if not sent:
        return []
    views = {view.actor: view for view in state.actors}
    taking_part = {actor for sender, move in sent for actor in (sender, move.to_actor) if actor in views}
    slots = {actor: views[actor].free_slots for actor in taking_part}
    memory = {actor: views[actor].free_kv_tokens for actor in taking_part}
    needs = state.held_tokens
    kept = []
    for sender, move in sent:
        tokens = int(needs[move.response])
        if sender in slots and slots.get(move.to_actor, 0) > 0 and memory[move.to_actor] >= tokens:
            for actor, sign in ((move.to_actor, -1), (sender, 1)):
                slots[actor] += sign
                memory[actor] += sign * tokens
            kept.append(move)
    return kept
