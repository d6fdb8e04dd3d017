"""Responses in groups of similar length, for the clairvoyant bound's way to share base time by load, then by response.

``solver.bounds.clairvoyant`` states the bound and its letters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.model.workload import FloatArray

GROUPS = 48  # of responses that share one lam
GROUP_PARTS = 8  # of a response's tokens
REFERENCES_PER_DOUBLING = 3  # values of h between one and its double
MIN_REFERENCE = 1 / 32  # least h, relative to the largest load of a token, unless the least load is more
MULTIPLIERS = (1.0, 0.6, 0.3, 0.1, 0.0)  # lam, as multiples of what it is where slots do not bind


@dataclass(frozen=True, eq=False)
class ResponseGroups:
    """The responses in at most ``GROUPS`` groups of similar length, for the way by load up to s h, then by response. No token
    counts with more context than it has.

    A group shares one lam, and counts its responses with their least length and context. Tokens beyond the least length have at
    least the context of the last one within it.

    Attributes:
        count, length: (G,) responses of each group, and the sum of their lengths.
        tokens, contexts: (G, 2 ``GROUP_PARTS``) tokens that have at least each context.
    """

    count: FloatArray
    length: FloatArray
    tokens: FloatArray
    contexts: FloatArray

    @classmethod
    def of(cls, length: FloatArray, context: FloatArray) -> ResponseGroups:
        """Return the groups of (R,) lengths and contexts."""
        order = np.lexsort((context, length))
        weight = np.cumsum(length[order] ** 2 + 1e-9)  # long responses differ most in what they pay: smaller groups for them
        starts = np.unique(np.searchsorted(weight, weight[-1] * np.arange(GROUPS) / GROUPS, side="right"))
        count = np.diff(np.append(starts, len(order))).astype(float)
        min_length, total = length[order][starts], np.add.reduceat(length[order], starts)
        edges = np.floor(min_length[:, None] * np.arange(GROUP_PARTS + 1) / GROUP_PARTS)
        first, last = edges[:, :-1], np.maximum(edges[:, 1:] - 1, edges[:, :-1])
        half = count[:, None] * np.diff(edges) / 2
        tokens = np.concatenate([half, half], axis=1)
        tokens[:, -1] += total - count * min_length
        contexts = np.minimum.reduceat(context[order], starts)[:, None] + np.concatenate([first, last], axis=1)
        return cls(count, total, tokens, contexts)

    def base_time_shares(self, b: float, c: float, slots: int, references: FloatArray, room: FloatArray) -> float:
        """Return the shares of a over all tokens, by load up to ``slots * reference`` and by response beyond, for the
        best reference.

        Args:
            b, c: a token with context k has the load b + c k. references: (H,) of h.
            room: (G,) the sum of X - a L over each group.
        """
        load, max_load = b + c * self.contexts, (slots * references)[:, None, None]
        unbound_lam = ((self.tokens * np.sqrt(load)).sum(axis=1) / room) ** 2  # lam where slots do not bind
        lam = np.array(MULTIPLIERS)[:, None] * unbound_lam
        lam_of_group = lam[:, None, :, None]  # axes from here on: multiplier, reference, group, tokens
        most = lam_of_group * max_load
        share = np.where(load <= lam_of_group * max_load**2, 2 * np.sqrt(lam_of_group * load), load / max_load + most)
        np.minimum(share, 1 / slots + most, out=share)
        best = (np.einsum("gt,mhgt->mhg", self.tokens, share) - (lam * room)[:, None]).max(axis=0)
        return float(np.maximum(best, 0.0).sum(axis=1).max(initial=0.0))


def references(min_load: float, max_load: float, slots: int) -> FloatArray:
    """Return the values of h for loads from ``least`` to ``most``; ``slots`` times h is on one grid for all numbers
    of slots."""
    low, high = slots * max(min_load / max_load, MIN_REFERENCE), slots
    steps = np.arange(
        math.ceil(REFERENCES_PER_DOUBLING * math.log2(low)), math.ceil(REFERENCES_PER_DOUBLING * math.log2(high)) + 1
    )
    return np.asarray(max_load * 2.0 ** (steps / REFERENCES_PER_DOUBLING) / slots)
