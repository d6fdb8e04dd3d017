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
        load: its load on an actor.
        stall: the time that the receiver's batch stands still as a share of the time in which the move pays.
        min_gain: the rise of the value per second that the move must exceed (unless its actor is drained).
        pass_s: the seconds for which it occupies its sender's link. A response without KV cache does not.
    """

    response: int
    token_value: float
    reserved: float
    kv_tokens: float
    load: float
    stall: float
    min_gain: float
    pass_s: float


class ReceiverState:
    """Free slots, KV memory, load and token value of K actors, addressed by their positions in ``UnfinishedResponses``."""

    def __init__(self, s: UnfinishedResponses, stays: NDArray[np.bool_]) -> None:
        self.base_s = s.latency.base_s
        self.ids = list(s.ids)
        self.iteration_s: list[float] = s.iteration_s.tolist()
        self.token_value: list[float] = s.actor_token_value.tolist()
        self.rate: list[float] = (s.actor_token_value / s.iteration_s).tolist()
        self.count: list[int] = s.count.tolist()
        self.slots: list[int] = s.slots.tolist()
        self.memory: list[float] = s.memory.tolist()
        self.stays: list[bool] = stays.tolist()
        self.open: list[int] = np.flatnonzero(stays).tolist()

    def best(self, candidate: MigrationCandidate, sender: int) -> tuple[int, float]:
        """Return the position of the best receiver for a response of ``sender``, and the rise of the grouping's value per
        second there.

        The rise is that of ``UnfinishedResponses.gains`` less the cost of the stall. It is minus infinity when no actor has
        room.
        """
        _, value, reserved, _, load, stall, _, _ = candidate
        receiver, best_gain = -1, -math.inf
        step, rates, slots, memory = self.iteration_s, self.rate, self.slots, self.memory
        for k in self.open:
            if slots[k] > 0 and k != sender and memory[k] >= reserved:
                rate = rates[k]
                gain = (value - load * rate) / (step[k] + load) - stall * rate
                if gain > best_gain:
                    receiver, best_gain = k, gain
        if receiver < 0:
            return receiver, best_gain
        step_without = max(step[sender] - load, self.base_s, 1e-300)
        return receiver, best_gain + (self.token_value[sender] - value) / step_without - rates[sender]

    def move(self, candidate: MigrationCandidate, sender: int, receiver: int) -> None:
        """Record that a response of ``sender`` moves to ``to``."""
        for k, sign in ((sender, -1), (receiver, 1)):
            self.iteration_s[k] += sign * candidate.load
            self.token_value[k] += sign * candidate.token_value
            self.rate[k] = self.token_value[k] / max(self.iteration_s[k], self.base_s, 1e-300)
            self.count[k] += sign
            self.slots[k] -= sign
            self.memory[k] -= sign * candidate.reserved

    def close(self, position: int) -> None:
        """Exclude this actor as a receiver from now on."""
        if position in self.open:
            self.open.remove(position)


def candidates_of(
    s: UnfinishedResponses, chosen: IntArray, stall: FloatArray, min_gain: FloatArray, pass_s: FloatArray
) -> list[MigrationCandidate]:
    """Return the chosen positions of ``s`` as migration candidates; the other arrays, (n,), are over all of ``s``."""
    columns = (s.response, s.token_value, s.reserved, s.kv_tokens, s.load, stall, min_gain, pass_s)
    return [*map(MigrationCandidate._make, zip(*(x[chosen].tolist() for x in columns), strict=True))]
