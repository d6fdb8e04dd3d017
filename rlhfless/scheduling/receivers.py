"""Spreads the unfinished responses of an actor over others with free slots and KV memory, for every cut and fold.

Inputs are a rule's view of the running step (``StepState``); times are not used.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from solver.model.runtime_rules import ActorView, Cut, Move, StepState


class ReceiverRoom:
    """Free slots and KV memory of the actors while the decisions of one moment fill them.

    Attributes:
        slots: free slots by actor; received: responses assigned to each actor so far.
    """

    def __init__(self, state: StepState) -> None:
        self._state, counts = state, state.counts
        self._kv_tokens: dict[int, float] = {}
        self.slots: dict[int, int] = dict(zip(counts.actor.tolist(), counts.free_slots.tolist(), strict=True))
        self.received: dict[int, int] = {}

    def free_slots(self) -> int:
        """Return the free slots of all actors together."""
        return sum(free for free in self.slots.values() if free > 0)

    def kv_tokens(self, actor: int) -> float:
        """Free KV memory of the actor (tokens)."""
        if actor not in self._kv_tokens:
            self._kv_tokens[actor] = self._state.view_of(actor).free_kv_tokens
        return self._kv_tokens[actor]

    def needs(self, responses: Sequence[int]) -> list[int]:
        """KV tokens that each response takes on any receiver."""
        kv_tokens: list[int] = self._state.held_tokens[np.array(responses, dtype=np.int64)].tolist()
        return kv_tokens

    def give(self, actor: int, kv_tokens: float) -> None:
        """Assign a response of ``kv_tokens`` to the actor: it takes one slot and that much memory."""
        self.slots[actor] -= 1
        self._kv_tokens[actor] = self.kv_tokens(actor) - kv_tokens
        self.received[actor] = self.received.get(actor, 0) + 1

    def completions_short(self, leaving: ActorView, receivers: Iterable[int]) -> int:
        """Lower bound on the completions, on any actor, before ``receivers`` have enough memory for all unfinished responses
        of ``leaving``; 0 where they may have enough. Under ``preempt`` the memory that a completion frees is unknown: the
        bound is 1."""
        lacks = sum(self.needs(leaving.unfinished)) - sum(max(0.0, self.kv_tokens(a)) for a in receivers)
        if lacks <= 0:
            return 0
        if self._state.reserved_tokens is None:
            return 1
        unfinished = np.flatnonzero(~np.asarray(self._state.complete))
        return math.ceil(lacks / float(self._state.reserved_tokens[unfinished].max()))


def hand_over(leaving: ActorView, receivers: Sequence[ActorView], room: ReceiverRoom) -> Cut | None:
    """Cut ``leaving``. Each of its unfinished responses goes to the receiver with the fewest responses so far that has a free
    slot and memory for it.

    Args:
        room: free slots and memory at this moment, shared by all decisions of the moment; this call enters what it takes.

    Returns:
        None when a response finds no room, or is still on its way to ``leaving``. Then nothing is entered.
    """
    slots = {a.actor: room.slots[a.actor] for a in receivers}
    if leaving.arriving_count or sum(max(0, f) for f in slots.values()) < leaving.unfinished_count:
        return None
    kv_tokens: dict[int, float] = {}  # of those that were looked at: counting it takes long
    open_to = [
        (a.unfinished_count + a.arriving_count + room.received.get(a.actor, 0), a.actor)
        for a in receivers
        if slots[a.actor] > 0
    ]
    heapq.heapify(open_to)
    moves, needs = [], room.needs(leaving.unfinished)
    for response, tokens in zip(leaving.unfinished, needs, strict=True):
        too_small = []
        while open_to:
            first = open_to[0][1]
            if first not in kv_tokens:
                kv_tokens[first] = room.kv_tokens(first)
            if kv_tokens[first] >= tokens:
                break
            too_small.append(heapq.heappop(open_to))  # for this response: it may hold a smaller one
        if not open_to:
            return None
        fewest, receiver = heapq.heappop(open_to)
        slots[receiver] -= 1
        kv_tokens[receiver] -= tokens
        if slots[receiver]:
            heapq.heappush(open_to, (fewest + 1, receiver))
        for entry in too_small:
            heapq.heappush(open_to, entry)
        moves.append(Move(response, receiver))
    for move, tokens in zip(moves, needs, strict=True):
        room.give(move.to_actor, tokens)
    return Cut(leaving.actor, tuple(moves))
