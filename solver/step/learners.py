"""Learners that a plan may have beside its actors: on which GPUs, from when, and what of their work overlaps with decoding.

A server is the GPUs of one actor. There are hundreds of learners for every number of actors, so they are arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from solver.model.step_levers import LEARNER, OVERLAP, PREWARMING, STREAMING, lever_bits
from solver.model.workload import FloatArray, IntArray
from solver.step.charges import Charges
from solver.step.work import Learner

BoolArray = NDArray[np.bool_]
STEPS = 16  # counts of servers that are tried, at most
STARTS = tuple(share / 13 for share in range(13))  # of a learner that streams, as shares of the generation time
LOADED = math.nan  # in place of a share: allocated so that its models are loaded when generation is over


def servers_per_block(servers: int) -> int:
    """Return how many servers of a cluster form one block, so that there are at most ``STEPS`` blocks."""
    return max(1, math.ceil(servers / STEPS))


def server_counts(most: int, *also: int) -> list[int]:
    """Return counts of servers that are tried, up to ``most``: all of them, or equal steps and the counts that are named."""
    return sorted({*range(servers_per_block(most), most + 1, servers_per_block(most)), most, *also} & set(range(1, most + 1)))


@dataclass(frozen=True, eq=False)
class Learners:
    """W learners, each beside the actors of a plan.

    Attributes:
        own: (W,) servers of its own, beside the actors. from_s: (W,) when they are allocated.
        grows: (W,) whether servers that actors release join it. A learner without servers of its own has only those.
        streams: (W,) whether learning runs while others decode. overlaps: (W,) whether preparation does.
        servers: (W,) of the learner in all.
        slower, load_s, finish_s: (W,) what so many servers pay (``Charges``).
    """

    own: IntArray
    from_s: FloatArray
    grows: BoolArray
    streams: BoolArray
    overlaps: BoolArray
    servers: IntArray
    slower: FloatArray
    load_s: FloatArray
    finish_s: FloatArray

    def __len__(self) -> int:
        """Return the number of learners."""
        return len(self.own)

    def chosen(self, numbers: IntArray) -> Learners:
        """Return the learners of these numbers, which may repeat."""
        return Learners(*(getattr(self, one.name)[numbers] for one in fields(self)))

    @classmethod
    def joined(cls, several: list[Learners]) -> Learners:
        """Return the learners of several in one."""
        return cls(*(np.concatenate([getattr(one, of.name) for one in several]) for of in fields(cls)))

    def one(self, number: int) -> Learner:
        """Return one learner."""
        return Learner(
            int(self.own[number]), float(self.from_s[number]), bool(self.grows[number]), bool(self.streams[number]),
            bool(self.overlaps[number]),
        )  # fmt: skip

    def levers(self, all_servers: int, generation_s: FloatArray) -> IntArray:
        """Return the (W,) levers that they use (``lever_bits``).

        Args:
            all_servers: of the cluster. generation_s: (W,) expected seconds of the generation that each is beside.
        """
        prewarms = (self.own > 0) & (self.from_s < generation_s * (1 - 1e-9))
        used = {LEARNER: self.servers != all_servers, OVERLAP: self.overlaps, STREAMING: self.streams, PREWARMING: prewarms}
        return reduce(np.bitwise_or, [np.where(is_used, lever_bits([lever]), 0) for lever, is_used in used.items()])


def charged(
    own: IntArray, from_s: FloatArray, grows: BoolArray, streams: BoolArray, overlaps: BoolArray, actors: IntArray,
    charges: Charges,
) -> Learners:  # fmt: skip
    """Return learners with what they pay.

    Args:
        own, from_s, grows, streams, overlaps: (W,) see ``Learners``. actors: (W,) of the plan that each is beside.
    """
    servers = own + np.where(grows | (own == 0), actors, 0)
    sizes, of = np.unique(servers, return_inverse=True)
    pays = [[one(size) for size in sizes.tolist()] for one in (charges.slower, charges.loading_s, charges.finish_s)]
    return Learners(own, from_s, grows, streams, overlaps, servers, *(np.array(column, dtype=float)[of] for column in pays))


def learners_beside(actors: int, all_servers: int, generation_s: FloatArray, charges: Charges) -> Learners:
    """Return the learners that are tried beside each of G plans with so many actors, those of the first plan first.

    The first learner of every plan has all servers from the end of generation, which no lever changes.

    Args:
        all_servers: of the cluster. generation_s: (G,) expected seconds of generation.
    """
    left = all_servers - actors
    rows: list[tuple[int, float, bool, bool, bool]] = [(left, 1.0 if left else 0.0, True, False, False)]
    for own in (0, *server_counts(left)):
        growths = [grows for grows, servers in ((True, own + actors), (False, own)) if charges.fits(servers)]
        if True in growths:
            for share in (1.0, LOADED) if own else (0.0,):
                rows += [(own, share, True, False, False), (own, share, True, False, True)]
        rows += [(own, share, grows, True, True) for share in ((*STARTS, LOADED) if own else (0.0,)) for grows in growths]
    servers, shares, grows, streams, overlaps = (
        np.tile(column, len(generation_s)) for column in map(np.array, zip(*rows, strict=True))
    )
    until_s = np.repeat(generation_s, len(rows))
    found = charged(servers, until_s, grows, streams, overlaps, np.full(len(servers), actors), charges)
    return replace(found, from_s=np.where(np.isnan(shares), np.maximum(0.0, until_s - found.load_s), shares * until_s))
