"""Responses that a simulated engine decodes with drafts: one by one while they wait, as arrays while they decode together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.simulated.accepted_runs import DraftedRuns
from rlhfless.engine.simulated.requests import changed
from solver.model.workload import IntArray

MOVED_KV = "kv"  # stands for the KV state of a simulated response: only its presence matters


@dataclass(eq=False)
class DraftedResponse:
    """A response in the queue or the batch of a simulated engine.

    Attributes:
        target: its true length. count: tokens so far.
        queued_s: its position in the queue: when it became available; evicted responses are first.
        has_kv: the KV cache of its whole context is here. cached_tokens: else the tokens of its context that were received.
        shares: whether its prompt is computed once for all that share it.
    """

    request: Request
    runs: DraftedRuns
    target: int
    count: int
    queued_s: float
    has_kv: bool
    cached_tokens: int
    shares: bool
    start_s: float | None
    first_token_s: float | None
    prefill_tokens: int
    passes: int
    drafted_tokens: int
    accepted_tokens: int

    @classmethod
    def of(cls, request: Request, runs: DraftedRuns, queued_s: float) -> DraftedResponse:
        """Return a response as it arrives."""
        r = request
        assert r.target_tokens is not None, "the request was validated"
        return cls(
            r, runs, r.target_tokens, r.generated_tokens, queued_s, r.kv is not None, r.cached_tokens, r.shares_prompt,
            r.start_s, r.first_token_s, r.prefill_tokens_computed, r.passes, r.drafted_tokens, r.accepted_tokens,
        )  # fmt: skip

    @property
    def context_tokens(self) -> int:
        """Return the KV tokens that it takes at its next iteration."""
        return self.request.prompt_tokens + self.count

    @property
    def stop_tokens(self) -> int:
        """Return the tokens that it lacks; a response that lacks none needs no slot."""
        return max(self.target - self.count, 0)

    @property
    def max_kv_tokens(self) -> int:
        """Return the most KV tokens that it can take."""
        return self.request.prompt_tokens + self.request.max_tokens

    def lose_kv(self) -> None:
        """Drop its KV cache, so that it computes its whole context when it joins again."""
        self.has_kv, self.cached_tokens, self.shares = False, 0, False

    def completion(self, time_s: float) -> Completion:
        """Return its completion at ``time_s``; a response of no tokens never joined a batch."""
        first_s, start_s = (time_s if at_s is None else at_s for at_s in (self.first_token_s, self.start_s))
        return Completion(
            self.request.response, time_s, self.target, self.request.target_finish, first_s, start_s, self.prefill_tokens,
            passes=self.passes, drafted_tokens=self.drafted_tokens, accepted_tokens=self.accepted_tokens,
        )  # fmt: skip

    def export(self) -> Request:
        """Return the request from which another engine can continue."""
        return changed(
            self.request,
            generated_tokens=self.count,
            kv=MOVED_KV if self.has_kv else None,
            cached_tokens=0,
            shares_prompt=False,
            start_s=self.start_s,
            first_token_s=self.first_token_s,
            prefill_tokens_computed=self.prefill_tokens,
            passes=self.passes,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )


class DraftedBatch:
    """Responses that decode together, as arrays; they get their counts back with ``settle``.

    Attributes:
        responses: (B,) in admission order; names: their indices.
        left: (B,) tokens that each lacks. context: (B,) KV tokens of each.
        room: (B,) tokens that may be drafted for each before its limit.
    """

    def __init__(self, responses: Sequence[DraftedResponse]) -> None:
        self.responses = list(responses)
        self.names = [s.request.response for s in responses]
        self._count = np.array([s.count for s in responses], dtype=np.int64)
        self.left = np.array([s.target for s in responses], dtype=np.int64) - self._count
        self.context = np.array([s.request.prompt_tokens for s in responses], dtype=np.int64) + self._count
        self.room = np.array([s.request.max_tokens for s in responses], dtype=np.int64) - self._count - 1
        lengths = self.left.clip(min=0)
        self._at = lengths.cumsum() - lengths
        self._available, self._accepted = (
            np.concatenate([np.zeros(0, np.int64), *(s.runs[k][s.count : s.target] for s in responses)]) for k in (0, 1)
        )
        self._passes, self._sums = 0, np.zeros((2, len(self.responses)), np.int64)  # drafted and accepted tokens

    def __len__(self) -> int:
        return len(self.responses)

    def drafted(self, asked: Sequence[int]) -> IntArray:
        """Return (B,) the tokens that the drafter offers of those that were asked for."""
        return np.asarray(np.minimum(asked, self._available[self._at]))

    def verify(self, drafted: IntArray) -> IntArray:
        """Run one pass; returns (B,) the accepted tokens. Each response gets them and one more."""
        accepted: IntArray = np.minimum(np.minimum(self._accepted[self._at], drafted), self.left - 1)
        tokens = accepted + 1
        self._at = self._at + tokens
        self._count = self._count + tokens
        self.left = self.left - tokens
        self.context = self.context + tokens
        self.room = self.room - tokens
        self._passes += 1
        self._sums[0] += drafted
        self._sums[1] += accepted
        return accepted

    def counts(self) -> dict[int, int]:
        """Return the tokens of its responses."""
        return dict(zip(self.names, self._count.tolist(), strict=True))

    def settle(self) -> None:
        """Write the counts to the responses."""
        columns = (self._count.tolist(), *self._sums.tolist())
        for s, count, drafted, accepted in zip(self.responses, *columns, strict=True):
            s.count = count
            s.passes += self._passes
            s.drafted_tokens += drafted
            s.accepted_tokens += accepted
        self._passes = 0
        self._sums[:] = 0
