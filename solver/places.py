"""The actors of a look as they fill while responses are sent: which place is best for the next response.

Knows sums of load and worth, slots and memory; nothing of links, costs or time. Plain numbers, not arrays: thousands of
places are looked for in a step, one response at a time among a handful of actors, where an array call costs more than the sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.survivors import Survivors
from solver.workload import FloatArray, IntArray


class Offer(NamedTuple):
    """A response that waits to be sent.

    Attributes:
        response: its index. load, worth, reserved, kv_tokens: as in ``Survivors``.
        stall: share of the time in which the move pays for which the receiver's batch stands still.
        least_gain: rise of the value per second that the move must exceed (unless its actor is drained).
        pass_s: seconds for which it occupies its sender's link, which one without a KV cache does not.
    """

    response: int
    load: float
    worth: float
    reserved: float
    kv_tokens: float
    stall: float
    least_gain: float
    pass_s: float


class Places:
    """K actors, by their positions in ``Survivors``."""

    def __init__(self, s: Survivors, stays: NDArray[np.bool_]) -> None:
        self.base_s = float(s.base_s)
        self.ids = list(s.ids)
        self.step_s: list[float] = s.step_s.tolist()
        self.worth: list[float] = s.actor_worth.tolist()
        self.rate: list[float] = (s.actor_worth / s.step_s).tolist()
        self.count: list[int] = s.count.tolist()
        self.slots: list[int] = s.slots.tolist()
        self.memory: list[float] = s.memory.tolist()
        self.stays: list[bool] = stays.tolist()
        self.open = np.flatnonzero(stays).tolist()

    def best(self, offer: Offer, sender: int) -> tuple[int, float]:
        """The position at which a response of ``sender`` gains most, and the rise of the grouping's value per second (as in
        ``Survivors.gains``, less what a stall costs); minus infinity when there is no place."""
        _, load, worth, reserved, _, stall, _, _ = offer
        to, most = -1, -math.inf
        step, rates, slots, memory = self.step_s, self.rate, self.slots, self.memory
        for k in self.open:
            if slots[k] > 0 and k != sender and memory[k] >= reserved:
                rate = rates[k]
                gain = (worth - load * rate) / (step[k] + load) - stall * rate
                if gain > most:
                    to, most = k, gain
        if to < 0:
            return to, most
        without = max(step[sender] - load, self.base_s, 1e-300)
        return to, most + (self.worth[sender] - worth) / without - rates[sender]

    def move(self, offer: Offer, sender: int, to: int) -> None:
        """Enter that a response of ``sender`` goes to ``to``."""
        for k, sign in ((sender, -1), (to, 1)):
            self.step_s[k] += sign * offer.load
            self.worth[k] += sign * offer.worth
            self.rate[k] = self.worth[k] / max(self.step_s[k], self.base_s, 1e-300)
            self.count[k] += sign
            self.slots[k] -= sign
            self.memory[k] -= sign * offer.reserved

    def close(self, position: int) -> None:
        """Nothing goes to this actor any more."""
        if position in self.open:
            self.open.remove(position)


def offers(s: Survivors, chosen: IntArray, stall: FloatArray, least_gain: FloatArray, pass_s: FloatArray) -> list[Offer]:
    """The chosen positions of ``s`` as offers; the other arrays are over all of ``s``."""
    of = (s.response, s.load, s.worth, s.reserved, s.kv_tokens, stall, least_gain, pass_s)
    return [*map(Offer._make, zip(*(x[chosen].tolist() for x in of), strict=True))]
