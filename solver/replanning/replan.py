"""Re-plans a running step: decides which responses migrate, which actors are released early, and which responses get a small
fast batch.

Inputs: the observable state (``StepState``), a forecast of remaining lengths and the actors' latency model. True lengths are
never used. The value of a token (q) and the value of a grouping per second are derived in solver.replanning.marginal_value.
solver.replanning.migrations computes a re-planning round.

A round compares three changes with doing nothing:

- **fold**: the actor of the smallest value is released when the value per second rises by more than the fold costs. That cost
  is spread over the time for which it pays. That time is half of what is left, as the other actors will be folded later. A fold
  costs the progress that its responses lose while they move, ``sum q d / (a + W)``. It also costs ``price * d`` with the
  probability that one of them lasts to the response limit, because a delay of the longest response delays the step. Later moves
  make up for a part of both, as delayed responses are worth more and move to faster batches. The stall of the receivers is lost
  for good.
- **move**: a response moves to the actor where the value rises most, if the move pays. It pays when the gain exceeds the loss.
  The gain is the rise times the response's expected time. The loss is the value of its progress during the move plus that of
  the receiver's batch during the stall. So responses that are likely long gather in small fast batches and those that are
  likely short in large slow ones.
- **drain**: an actor that is being folded sends its responses one after another over its link while the others keep decoding.
The response that is expected to be longest leaves first (short ones may complete before their turn). Folding it at once would
make all of them wait.

Every sender has one link and sends one response at a time. All actors are of one kind and size.

The published rules are baselines with the same interface (rlhfless.scheduling), not settings of this rule. RLHFless cuts an
actor at a fixed share of its completions. RLHFuse cuts all but m actors below a global count, whatever their responses are
still worth. Square-root folding is optimal for equal responses where actors can be divided (see
solver.replanning.marginal_value). Here actors are whole and moves cost time, so the set of folded actors and the times differ
from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from solver.lengths.remaining import RemainingLengths
from solver.model.errors import PlanningError, as_given
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import ActorCounts, ActorView, Decision, Move, StepState, Trigger, Triggers, trigger_of
from solver.replanning.migrations import LinkSchedule, Migration, MigrationRound, plan_round
from solver.replanning.running_responses import survivors_of

ROUNDS_IN_TIME_LEFT = 12  # in the time that is left: 40 are no better on three public logs, and take twice as long
MIN_PAUSE_ITERATIONS = 8  # of an empty batch between rounds, at least
ROUND_S, ROUND_RESPONSE_S = 4e-4, 6e-7  # counted seconds of a round, and of every unfinished response in it
MAX_ROUND_SHARE = 0.0125  # of the time between rounds that a round may take


def replan(
    state: StepState,
    remaining: RemainingLengths,
    latency: LatencyModel,
    price: float,
    links: LinkSchedule | None = None,
) -> list[Decision]:
    """Return the decisions for now; an empty list when doing nothing is best.

    Args:
        remaining: forecast for every response of the step.
        latency: of every actor; its affine fit is used.
        price: actor-seconds that one second of makespan is worth.
        links: drains and transfers under way; updated in place. None when there are none.

    Returns:
        At most one move per sender whose link is free (responses without KV cache need no link). The receivers' slots and KV
            memory (counted as under ``reserve``) are never exceeded. An actor whose last response moves away is released.

    Raises:
        PlanningError: ``latency`` is not one latency model, as on a mixed cluster.
    """
    links, model = LinkSchedule() if links is None else links, _affine(latency)
    if len(state.counts.actor) < 2:
        return []
    survivors = survivors_of(state, remaining, model, price)
    return [move for _, move in plan_round(survivors, remaining, price, links).send(state.now_s, links)]


@dataclass
class Replan:
    """Runtime rule that re-plans the step in rounds and returns the decisions of ``replan``.

    The first round is at the first completion. Later rounds are a twelfth of the remaining time apart. They are never so
    frequent that their own computing time does not pay. That time is counted by work, as a clock would make decisions depend on
    the machine. Between rounds, as links become free, the rule sends the next responses that the last round listed. This takes
    microseconds.

    Args:
        remaining: forecast for every response of the step. Replace it to plug in a predictor that updates while decoding; its
            ``observe`` is called at every round.
        latency: of every actor; its affine fit is used.
        price: actor-seconds that one second of makespan is worth.

    Raises:
        PlanningError: ``latency`` is not one latency model, as on a mixed cluster.
    """

    remaining: RemainingLengths
    latency: LatencyModel
    price: float
    name: str = "replan"
    _model: LatencyModel = field(init=False, repr=False)
    _links: LinkSchedule = field(default_factory=LinkSchedule, repr=False)
    _round: MigrationRound | None = field(default=None, repr=False)
    _next_round_s: float = field(default=-math.inf, repr=False)  # when the next round is due
    _next_s: float | None = field(default=None, repr=False)  # when it wants to be asked next
    _started: bool = field(default=False, repr=False)
    _last_actors: int = field(default=0, repr=False)  # when links were last served

    def __post_init__(self) -> None:
        self._model = _affine(self.latency)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger at the time of the next round or free link; before the first round, at each actor's next completion."""
        return Triggers(time_s=self._next_s) if self._started else Triggers(counts.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Return the decisions of ``replan``; an empty list before the time of the next round or link, or when one actor is
        left."""
        if self._started and (self._next_s is None or now_s < self._next_s - 1e-9):
            return []
        self._started, actors = True, len(state.counts.actor)
        if actors < 2 or self.price <= 0:
            self._next_s = None
            return []
        if now_s >= self._next_round_s - 1e-9 or self._round is None:
            self.remaining = self.remaining.observe(state.generated_tokens, state.complete)
            survivors = survivors_of(state, self.remaining, self._model, self.price)
            self._round = plan_round(survivors, self.remaining, self.price, self._links)
            round_s = ROUND_S + (ROUND_RESPONSE_S + self.remaining.observe_response_s) * len(survivors.response)
            pause = max(
                MIN_PAUSE_ITERATIONS * self._model.base_s, survivors.left_s / ROUNDS_IN_TIME_LEFT, round_s / MAX_ROUND_SHARE
            )
            self._next_round_s = now_s + pause
        elif actors < self._last_actors:
            self._close_released(state)
        self._last_actors = actors
        sent = self._round.send(now_s, self._links, state.complete)
        moves = _with_room(sent, state)
        if len(moves) < len(sent):  # room that the last round counted on is taken: next round soon
            self._next_round_s = now_s + self._model.base_s
        link_s = max(self._round.next_s(now_s, self._links), now_s + self._model.base_s)
        next_s = min(self._next_round_s, link_s)
        self._next_s = next_s if math.isfinite(next_s) else None
        return [*moves]

    def _close_released(self, state: StepState) -> None:
        """Exclude actors that have been released since the last round as receivers."""
        assert self._round is not None
        live = set(state.counts.actor.tolist())
        for k, actor in enumerate(self._round.receivers.ids):
            if actor not in live:
                self._round.receivers.close(k)
                self._round.candidates.pop(k, None)


def _affine(latency: LatencyModel) -> LatencyModel:
    """Return the affine fit of the one latency model that all actors have."""
    if not isinstance(latency, LatencyModel):
        raise PlanningError(
            f"re-planning needs one latency model for all actors, not {as_given(latency)}; plan mixed clusters without it"
        )
    return latency.affine


def _with_room(sent: Sequence[Migration], state: StepState) -> list[Move]:
    """Return the moves whose receivers have a free slot and memory now, or get them through the other moves."""
    if not sent:
        return []
    counts = state.counts
    slots, memory = (
        dict(zip(counts.actor.tolist(), free.tolist(), strict=True)) for free in (counts.free_slots, counts.free_kv_tokens)
    )
    reserved = state.held_tokens
    feasible = []
    for sender, move in sent:
        tokens = int(reserved[move.response])
        if sender in slots and slots.get(move.to_actor, 0) > 0 and memory[move.to_actor] >= tokens:
            for actor, sign in ((move.to_actor, -1), (sender, 1)):
                slots[actor] += sign
                memory[actor] += sign * tokens
            feasible.append(move)
    return feasible
