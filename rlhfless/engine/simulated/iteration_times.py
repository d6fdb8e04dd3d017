"""Iterations of a simulated actor as arrays: end times, batch sizes, KV tokens, and which of them begin with a prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray
from solver.timing.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Iterations:
    """I iterations of an actor back to back.

    Attributes:
        boundary_s: (I+1,) boundaries between iterations.
        batch, kv_tokens: (I,) responses that get a token, and their KV tokens.
        prefill_at: (P,) iterations with a prefill; prefill_s, computed_tokens, computing: (P,) seconds of these at the start of
            each, tokens that it computes besides those that are decoded, and responses of which it computes some.
    """

    boundary_s: FloatArray
    batch: IntArray
    kv_tokens: IntArray
    prefill_at: IntArray
    prefill_s: FloatArray
    computed_tokens: IntArray
    computing: IntArray

    @classmethod
    def of(cls, timeline: Timeline, latency: LatencyModel, base_s: float) -> Self:
        """Return the iterations of a timeline from ``base_s`` on."""
        prefill_at = np.flatnonzero(timeline.prefill_tokens)
        residency = timeline.residency
        begun = residency.ready[residency.last_chunks > latency.mixes]  # the last token of a mixed chunk is decoded
        if residency.pieces.shape[1]:
            begun = np.concatenate([residency.pieces[0], begun])
        computing = np.bincount(begun, minlength=len(timeline.batch))[prefill_at]
        charged = timeline.prefill_tokens[prefill_at]
        computed = charged if latency.mixes else charged - computing  # the last of each is decoded
        prefill_s, boundary_s = timeline.prefill_s[prefill_at], base_s + timeline.boundary_s
        return cls(boundary_s, timeline.batch, timeline.kv_tokens, prefill_at, prefill_s, computed, computing)

    @property
    def last(self) -> int:
        """Return the boundary at which nothing is left."""
        return len(self.batch)

    def part(self, first: int, until: int) -> Self:
        """Return a copy of the iterations from boundary ``first`` to boundary ``until``."""
        within = slice(*self.prefill_at.searchsorted([first, until]))
        return type(self)(
            self.boundary_s[first : until + 1].copy(), self.batch[first:until].copy(), self.kv_tokens[first:until].copy(),
            self.prefill_at[within] - first, self.prefill_s[within], self.computed_tokens[within], self.computing[within],
        )  # fmt: skip

    def end_s(self, index: int) -> float:
        """Return the time of a boundary."""
        return float(self.boundary_s[index])

    def first_from(self, at_s: float) -> int:
        """Return the first boundary at or after ``at_s``; the last one where all are before."""
        return min(int(self.boundary_s.searchsorted(at_s, side="left")), self.last)

    def last_by(self, at_s: float) -> int:
        """Return the last boundary at or before ``at_s``; -1 where all are later."""
        return int(self.boundary_s.searchsorted(at_s, side="right")) - 1
