"""Simulated engine with chunked prefill: no iteration computes more tokens than a budget.

Inputs: true lengths and the latency model. Each decoding response of the batch takes one token of the budget. The rest of the
budget goes to responses that still prefill, in order of admission; further responses join while some is left. A response
decodes from the iteration on in which the last chunk of its context is computed. With a budget that is never reached this
equals ``SimulatedEngine``, computed iteration by iteration instead of a whole schedule at once, so it is slower to simulate.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.common.span_accumulator import SpanAccumulator
from rlhfless.engine.protocol import Completion, Progress, Request
from rlhfless.engine.simulated.engine import MOVED_KV
from rlhfless.engine.simulated.requests import changed, refusal
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray


@dataclass(eq=False)
class _ChunkedSequence:
    """A response of this engine."""

    request: Request
    tokens: int
    to_compute: int  # of its context, once it has joined
    has_kv: bool
    start_s: float | None
    first_token_s: float | None
    computed: int

    @classmethod
    def of(cls, r: Request) -> _ChunkedSequence:
        return cls(r, r.generated_tokens, 0, r.kv is not None, r.start_s, r.first_token_s, r.prefill_tokens_computed)

    @property
    def context(self) -> int:
        return self.request.prompt_tokens + self.tokens

    @property
    def most(self) -> int:
        return self.request.prompt_tokens + self.request.limit_tokens

    @property
    def left(self) -> int:
        assert self.request.target_tokens is not None
        return self.request.target_tokens - self.tokens


class _Iteration(NamedTuple):
    """The next iteration: admitted responses, chunks by position in the batch (admitted responses last), decoding responses,
    and seconds.
    """

    joining: list[_ChunkedSequence]
    chunks: list[tuple[_ChunkedSequence, int]]
    decoding: list[_ChunkedSequence]
    kv_tokens: int
    prefill_s: float
    decode_s: float


class ChunkedEngine:
    """An engine of ``rlhfless.engine.protocol`` that prefills in chunks.

    Args:
        latency: charged with its measured table where it has one. admission: slots, KV memory and rule.
        clock_s: when it is ready. chunk_tokens: maximum number of tokens of an iteration.
        attention: as of ``PrefillInterference``.
    """

    reuses_prefixes = False  # a prompt that is shared may be half computed

    def __init__(
        self, latency: LatencyModel, admission: Admission, clock_s: float, chunk_tokens: int, attention: float = 0.0
    ) -> None:
        self.slots, self.clock_s = admission.max_batch, clock_s
        self._latency, self._admission, self._budget, self._attention = latency, admission, chunk_tokens, attention
        self._batch: list[_ChunkedSequence] = []
        self._queue: list[_ChunkedSequence] = []
        self._arriving: list[_ChunkedSequence] = []
        self._next: _Iteration | None = None  # worked out, and not committed
        self._spans = SpanAccumulator(self.slots)

    # --- protocol -------------------------------------------------------------------------------------------------------

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol. Every request needs ``target_tokens``."""
        for r in requests:
            if (why := refusal(r)) is not None:
                raise ValueError(why)
            bisect.insort(self._arriving, _ChunkedSequence.of(r), key=_available_s)
        self._take_in()

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol: the end of the next iteration."""
        if any(row.left <= 0 for row in self._queue):
            return self.clock_s
        if self._batch or self._queue:
            one = self._iteration()
            return self.clock_s + one.prefill_s + one.decode_s
        return max(self.clock_s, self._arriving[0].request.available_s) if self._arriving else math.inf

    def next_completions_s(self, count: int) -> FloatArray:
        """See the protocol. It predicts only one iteration, in which any number may complete."""
        next_s = self.peek_next_event_s()
        return np.full(count if next_s < math.inf else 0, next_s)

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        done: list[Completion] = []
        while self.clock_s <= to_s:
            self._take_in()
            for row in [row for row in self._queue if row.left <= 0]:
                self._queue.remove(row)
                done.append(self._completion(row))
            if not self._batch and not self._queue:
                if not self._arriving or self._arriving[0].request.available_s > to_s:
                    break
                self.clock_s = self._arriving[0].request.available_s
            elif not self._iterate(to_s, done):
                break
        return Progress(done, self._spans.drain())

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol. A context that is half computed is recomputed elsewhere."""
        before = self.advance(at_s)
        done = list(before.completions)
        if self.clock_s < at_s and (self._batch or self._queue):
            self._iterate(math.inf, done)
        taken, self._next = [], None
        for place in (self._batch, self._queue, self._arriving):
            for row in [row for row in place if responses is None or row.request.response in responses]:
                place.remove(row)
                taken.append(self._export(row))
        return taken, Progress(done, [*before.spans, *self._spans.drain()])

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        return {row.request.response: row.tokens for row in self._everyone()}

    def generated_arrays(self) -> tuple[IntArray, IntArray]:
        """Return ``generated_tokens`` as arrays."""
        table = np.array([(row.request.response, row.tokens) for row in self._everyone()], dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(row.request.response for row in self._batch)

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(row.request.response for row in (*self._queue, *self._arriving))

    def sync(self, weights: Any, weights_version: int) -> None:
        """Do nothing: lengths come from the log."""

    def close(self) -> None:
        """Do nothing: there is no memory to free."""

    # --- iterations -----------------------------------------------------------------------------------------------------

    def _everyone(self) -> Iterable[_ChunkedSequence]:
        return (*self._batch, *self._queue, *self._arriving)

    def _take_in(self) -> None:
        while self._arriving and self._arriving[0].request.available_s <= self.clock_s:
            self._queue.append(self._arriving.pop(0))
            self._next = None

    def _held(self, rows: Iterable[_ChunkedSequence]) -> int:
        return sum(self._admission.held_tokens(row.context, row.most) for row in rows)

    def _iteration(self) -> _Iteration:
        """Return the next iteration for the current batch and queue."""
        if self._next is not None:
            return self._next
        budget = self._budget - sum(not row.to_compute for row in self._batch)
        held = self._held(self._batch)
        joining: list[_ChunkedSequence] = []
        chunks: list[tuple[_ChunkedSequence, int]] = []
        decoding = [row for row in self._batch if not row.to_compute]

        def give(row: _ChunkedSequence, needed: int) -> None:
            nonlocal budget
            took = min(needed, budget)
            budget -= max(1, took)
            if needed:
                chunks.append((row, took))
            if took == needed:
                decoding.append(row)

        for row in self._batch:
            if row.to_compute and budget > 0:
                give(row, row.to_compute)
        for row in self._queue:
            count, own = len(self._batch) + len(joining), self._admission.held_tokens(row.context, row.most)
            if count and (budget <= 0 or not self._admission.admits(count, held, own)):
                break
            give(row, 0 if row.has_kv else row.context)
            joining.append(row)
            held += own
        computed = sum(took for _, took in chunks)
        prefill_s = float(self._latency.prefill_s(computed)) if computed else 0.0
        kv_tokens = sum(row.context for row in decoding)
        charged = kv_tokens * (1 + self._attention) if chunks else kv_tokens
        decode_s = float(self._latency.step_s(len(decoding), charged)) + self._latency.join_s * len(joining)
        self._next = _Iteration(joining, chunks, decoding, kv_tokens, prefill_s, decode_s)
        return self._next

    def _iterate(self, to_s: float, done: list[Completion]) -> bool:
        """Run one iteration if it ends by ``to_s``; evictions belong to the boundary at its end."""
        one, began_s = self._iteration(), self.clock_s
        if began_s + one.prefill_s + one.decode_s > to_s:
            return False
        self._next = None
        del self._queue[: len(one.joining)]
        for row in one.joining:
            row.to_compute = 0 if row.has_kv else row.context
            row.has_kv = not row.to_compute
            row.start_s = began_s if row.start_s is None else row.start_s
        self._batch += one.joining
        told = []
        for row, took in one.chunks:
            row.to_compute -= took
            row.has_kv = not row.to_compute
            new = took - row.has_kv  # the last one is decoded
            row.computed += new
            told.append((row.request.response, new))
        self.clock_s = began_s + one.prefill_s + one.decode_s
        self._note(one, began_s, told)
        for row in one.decoding:
            row.tokens += 1
            row.first_token_s = self.clock_s if row.first_token_s is None else row.first_token_s
        done += [self._completion(row) for row in self._batch if row.left <= 0 and not row.to_compute]
        self._batch = [row for row in self._batch if row.left > 0 or row.to_compute]
        while self._admission.overflows(len(self._batch), self._held(self._batch)):
            row = self._batch.pop()
            row.has_kv, row.to_compute = False, 0
            self._queue.insert(0, row)
        return True

    def _note(self, one: _Iteration, began_s: float, computed: list[tuple[int, int]]) -> None:
        """Add the spans of an iteration; where no response decodes, all of it is prefill."""
        ready_s = began_s + one.prefill_s if one.decoding else self.clock_s
        if one.chunks:
            tokens = sum(new for _, new in computed)
            self._spans.prefill(began_s, ready_s, tokens, float(len(computed)), float(tokens), computed)
        if one.decoding:
            batch, seconds = len(one.decoding), self.clock_s - ready_s
            self._spans.decode(ready_s, self.clock_s, batch, batch * seconds, one.kv_tokens * seconds)

    def _completion(self, row: _ChunkedSequence) -> Completion:
        start_s, first_s = (self.clock_s if at is None else at for at in (row.start_s, row.first_token_s))
        r = row.request
        return Completion(r.response, self.clock_s, row.tokens, r.target_finish, first_s, start_s, row.computed)

    def _export(self, row: _ChunkedSequence) -> Request:
        """Return a sequence as a request from which another engine can continue."""
        return changed(
            row.request,
            generated_tokens=row.tokens,
            kv=MOVED_KV if row.has_kv else None,
            cached_tokens=0,
            shares_prompt=False,
            start_s=row.start_s,
            first_token_s=row.first_token_s,
            prefill_tokens_computed=row.computed,
        )


def _available_s(row: _ChunkedSequence) -> float:
    return row.request.available_s
