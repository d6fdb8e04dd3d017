"""Tracks free slots, KV memory and load of the actors while migrations are chosen one by one, and returns the best receiver for
the next response.

State is kept in plain numbers instead of arrays. A step looks for a receiver thousands of times, for one response among a
handful of actors, where an array call costs more than the sum itself.
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
        response: its index. worth, reserved, kv_tokens: as in ``UnfinishedResponses``.
        load: its load on an actor of each of M classes.
        stall: for a receiver of each class, the time that its batch stands still as a share of the time in which the move pays.
        least_gain: for each class, the rise of the value per second that the move must exceed (unless its actor is drained).
        pass_s: for each class, the seconds for which it occupies its sender's link. A response without KV cache does not.
    """

    response: int
    worth: float
    reserved: float
    kv_tokens: float
    load: list[float]
    stall: list[float]
    least_gain: list[float]
    pass_s: list[float]


class ReceiverState:
    """Free slots, KV memory, load and worth of K actors, addressed by their positions in ``UnfinishedResponses``."""

    def __init__(self, s: UnfinishedResponses, stays: NDArray[np.bool_]) -> None:
        self.base_s: list[float] = s.base_s.tolist()
        self.kind: list[int] = s.kind.tolist()
        self.ids = list(s.ids)
        self.step_s: list[float] = s.step_s.tolist()
        self.worth: list[float] = s.actor_worth.tolist()
        self.rate: list[float] = (s.actor_worth / s.step_s).tolist()
        self.count: list[int] = s.count.tolist()
        self.slots: list[int] = s.slots.tolist()
        self.memory: list[float] = s.memory.tolist()
        self.stays: list[bool] = stays.tolist()
        self.open = [np.flatnonzero(stays & (s.kind == m)).tolist() for m in range(len(s.fleet))]  # by class

    def best(self, offer: MigrationCandidate, sender: int) -> tuple[int, float]:
        """Return the position of the best receiver for a response of ``sender``, and the rise of the grouping's value per
        second there.

        The rise is that of ``UnfinishedResponses.gains`` less the cost of the stall. It is minus infinity when no actor has
        room.
        """
        _, worth, reserved, _, loads, stalls, _, _ = offer
        to, most = -1, -math.inf
        step, rates, slots, memory = self.step_s, self.rate, self.slots, self.memory
        for load, stall, open_actors in zip(loads, stalls, self.open, strict=True):
            for k in open_actors:
                if slots[k] > 0 and k != sender and memory[k] >= reserved:
                    rate = rates[k]
                    gain = (worth - load * rate) / (step[k] + load) - stall * rate
                    if gain > most:
                        to, most = k, gain
        if to < 0:
            return to, most
        without = max(step[sender] - loads[self.kind[sender]], self.base_s[sender], 1e-300)
        return to, most + (self.worth[sender] - worth) / without - rates[sender]

    def move(self, offer: MigrationCandidate, sender: int, to: int) -> None:
        """Record that a response of ``sender`` moves to ``to``."""
        for k, sign in ((sender, -1), (to, 1)):
            self.step_s[k] += sign * offer.load[self.kind[k]]
            self.worth[k] += sign * offer.worth
            self.rate[k] = self.worth[k] / max(self.step_s[k], self.base_s[k], 1e-300)
            self.count[k] += sign
            self.slots[k] -= sign
            self.memory[k] -= sign * offer.reserved

    def close(self, position: int) -> None:
        """Exclude this actor as a receiver from now on."""
        for open_actors in self.open:
            if position in open_actors:
                open_actors.remove(position)


def candidates_of(
    s: UnfinishedResponses, chosen: IntArray, stall: FloatArray, least_gain: FloatArray, pass_s: FloatArray
) -> list[MigrationCandidate]:
    """Return the chosen positions of ``s`` as migration candidates; the other arrays, (n, M), are over all of ``s``."""
    of = (s.response, s.worth, s.reserved, s.kv_tokens, s.load_on, stall, least_gain, pass_s)
    return [*map(MigrationCandidate._make, zip(*(x[chosen].tolist() for x in of), strict=True))]
