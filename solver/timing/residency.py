"""Residency: in which iterations each response is in an actor's batch, and which of them feed its prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from solver.model.workload import FloatArray, IntArray

NO_PIECES: IntArray = np.zeros((3, 0), np.int64)


@dataclass(frozen=True, eq=False)
class Residency:
    """Intervals in which responses are in the batch; one per response, and one more for each time that it was evicted and came
    back.

    Attributes:
        response: (V,) index of the response in the arrays given to ``schedule``.
        first: (V,) iteration in which it joins. last: (V,) iteration at whose start it has left (half-open).
        context: (V,) KV tokens of its context at ``ready``.
        prefill: (V,) prompt and generated tokens that it has to compute when it joins: its context less the cached tokens.
        ready: (V,) iteration in which the last of them is fed, and which gives it a token, as all later ones do: ``first``
            where the whole context is computed at once, ``last`` where it is evicted before.
        pieces: (3, Q) chunks but the last one of each interval: iteration, index of the interval, tokens.
    """

    response: IntArray
    first: IntArray
    last: IntArray
    context: IntArray
    prefill: IntArray
    ready: IntArray
    pieces: IntArray = field(default_factory=lambda: NO_PIECES)

    @classmethod
    def at_once(cls, response: IntArray, first: IntArray, last: IntArray, context: IntArray, prefill: IntArray) -> Residency:
        """Return intervals in which every context is computed in the iteration in which the response joins."""
        return cls(response, first, last, context, prefill, first)

    def ordered(self, order: IntArray) -> Residency:
        """Return the same intervals in another order."""
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        pieces = np.stack([self.pieces[0], position[self.pieces[1]], self.pieces[2]])
        return Residency(
            self.response[order], self.first[order], self.last[order], self.context[order], self.prefill[order],
            self.ready[order], pieces,
        )  # fmt: skip

    @cached_property
    def last_chunks(self) -> IntArray:
        """Return the (V,) tokens that are fed in iteration ``ready``, the one that is decoded included; 0 where the interval
        ends before or nothing is missing."""
        tokens = self.prefill * (self.ready < self.last)
        if self.pieces.shape[1]:
            np.subtract.at(tokens, self.pieces[1], self.pieces[2])
            np.maximum(tokens, 0, out=tokens)
        return tokens

    @property
    def chunks(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return all (C,) chunks: iterations, indices of their intervals, tokens. Those of an iteration are in order of
        admission."""
        rows = np.flatnonzero(self.last_chunks)
        last = self.ready[rows], rows, self.last_chunks[rows]
        iteration, interval, tokens = (np.concatenate(parts) for parts in zip(self.pieces, last, strict=True))
        order = np.lexsort((self.response[interval], self.first[interval], iteration))
        return iteration[order], interval[order], tokens[order]

    def computed(self, until: int | None = None) -> IntArray:
        """Return the (V,) tokens that prefill computes, before iteration ``until`` if it is given. An interval that is ready by
        then has computed all that were missing but the last one, which is decoded. Any other interval has computed its chunks
        so far."""
        pieces = self.pieces if until is None else self.pieces[:, self.pieces[0] < until]
        is_computed = (self.ready < self.last) & (True if until is None else self.ready < until)
        chunks = np.bincount(pieces[1], pieces[2], len(self.response)).astype(np.int64)
        return np.where(is_computed, self.prefill - (self.prefill > 0), chunks)

    def per_iteration(self, growth: FloatArray | None = None) -> tuple[IntArray, IntArray, IntArray]:
        """Return per iteration, (I,) each: responses that get a token, KV tokens that these hold, and further prompt tokens
        that are fed.

        Args:
            growth: (n,) tokens that each response grows by per iteration, 1 when None. Then KV tokens are rounded.
        """
        horizon = int(self.last.max(initial=0))
        batch, offset, prompts = (np.zeros(horizon + 1, np.int64) for _ in range(3))
        np.add.at(batch, self.ready, 1)
        np.add.at(batch, self.last, -1)
        batch = batch.cumsum()[:horizon]
        np.add.at(prompts, self.pieces[0], self.pieces[2])
        np.add.at(prompts, self.ready, self.last_chunks - (self.last_chunks > 0))  # the last one of a context is decoded
        if growth is None:
            start = self.context - self.ready
            np.add.at(offset, self.ready, start)
            np.add.at(offset, self.last, -start)
            return batch, offset.cumsum()[:horizon] + np.arange(horizon) * batch, prompts[:horizon]
        grows = growth[self.response]
        held = self.sum_per_iteration(self.context - grows * self.ready) + np.arange(horizon) * self.sum_per_iteration(grows)
        return batch, np.rint(held).astype(np.int64), prompts[:horizon]

    def sum_per_iteration(self, values: FloatArray) -> FloatArray:
        """Return (I,) sums of (V,) ``values`` over the intervals whose responses get a token in each iteration."""
        horizon = int(self.last.max(initial=0))
        changes = np.bincount(self.ready, values, horizon + 1) - np.bincount(self.last, values, horizon + 1)
        return np.asarray(changes.cumsum()[:horizon])
