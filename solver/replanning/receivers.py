"""Tracks free slots, KV memory and load of the actors while migrations are chosen one by one. Returns the best receiver for the
next response.

State is kept in plain numbers instead of arrays. A step looks for a receiver thousands of times, for one response among a
handful of actors. There an array call costs more than the sum itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import FloatArray, IntArray
from solver.replanning.running_responses import UnfinishedResponses


class MigrationCandidate(NamedTuple):
    """A response that waits to be sent.

    Attributes:
        response: its index. token_value, reserved, kv_tokens: as in ``UnfinishedResponses``.
        load: its load on an actor of each of M classes.
        stall: for a receiver of each class, the time that its batch stands still as a share of the time in which the move pays.
        min_gain: for each class, the rise of the value per second that the move must exceed (unless its actor is drained).
        pass_s: for each class, the seconds for which it occupies its sender's link. A response without KV cache does not.
    """

    response: int
    token_value: float
    reserved: float
    kv_tokens: float
    load: list[float]
    stall: list[float]
    min_gain: list[float]
    pass_s: list[float]


class ReceiverState:
    """Free slots, KV memory, load and token value of K actors, addressed by their positions in ``UnfinishedResponses``."""

    def __init__(self, s: UnfinishedResponses, stays: NDArray[np.bool_]) -> None:
        self.base_s: list[float] = s.base_s.tolist()
        self.class_of: list[int] = s.class_of.tolist()
        self.ids = list(s.ids)
        self.iteration_s: list[float] = s.iteration_s.tolist()
        self.token_value: list[float] = s.actor_token_value.tolist()
        self.rate: list[float] = (s.actor_token_value / s.iteration_s).tolist()
        self.count: list[int] = s.count.tolist()
        self.slots: list[int] = s.slots.tolist()
        self.memory: list[float] = s.memory.tolist()
        self.stays: list[bool] = stays.tolist()
        self.open = [np.flatnonzero(stays & (s.class_of == m)).tolist() for m in range(len(s.actor_classes))]  # by class

    def best(self, candidate: MigrationCandidate, sender: int) -> tuple[int, float]:
        """Return the position of the best receiver for a response of ``sender``, and the rise of the grouping's value per
        second there.

        The rise is that of ``UnfinishedResponses.gains`` less the cost of the stall. It is minus infinity when no actor has
        room.
        """
        _, value, reserved, _, loads, stalls, _, _ = candidate
        receiver, best_gain = -1, -math.inf
        step, rates, slots, memory = self.iteration_s, self.rate, self.slots, self.memory
        for load, stall, open_actors in zip(loads, stalls, self.open, strict=True):
            for k in open_actors:
                if slots[k] > 0 and k != sender and memory[k] >= reserved:
                    rate = rates[k]
                    gain = (value - load * rate) / (step[k] + load) - stall * rate
                    if gain > best_gain:
                        receiver, best_gain = k, gain
        if receiver < 0:
            return receiver, best_gain
        step_without = max(step[sender] - loads[self.class_of[sender]], self.base_s[sender], 1e-300)
        return receiver, best_gain + (self.token_value[sender] - value) / step_without - rates[sender]

    def move(self, candidate: MigrationCandidate, sender: int, receiver: int) -> None:
        """Record that a response of ``sender`` moves to ``to``."""
        for k, sign in ((sender, -1), (receiver, 1)):
            self.iteration_s[k] += sign * candidate.load[self.class_of[k]]
            self.token_value[k] += sign * candidate.token_value
            self.rate[k] = self.token_value[k] / max(self.iteration_s[k], self.base_s[k], 1e-300)
            self.count[k] += sign
            self.slots[k] -= sign
            self.memory[k] -= sign * candidate.reserved

    def close(self, position: int) -> None:
        """Exclude this actor as a receiver from now on."""
        for open_actors in self.open:
            if position in open_actors:
                open_actors.remove(position)


def candidates_of(
    s: UnfinishedResponses, chosen: IntArray, stall: FloatArray, min_gain: FloatArray, pass_s: FloatArray
) -> list[MigrationCandidate]:
    """Return the chosen positions of ``s`` as migration candidates; the other arrays, (n, M), are over all of ``s``."""
    columns = (s.response, s.token_value, s.reserved, s.kv_tokens, s.load_on, stall, min_gain, pass_s)
    return [*map(MigrationCandidate._make, zip(*(x[chosen].tolist() for x in columns), strict=True))]
