"""What the torch engine knows of a response that is with it, and of an iteration that is not committed yet.

Knows requests and tokens so far; what is wrong with a request stands in torch_check.py. Nothing of models or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.torch_check import Room, check

if TYPE_CHECKING:
    from rlhfless.engine.torch_queue import NextBatch
    from rlhfless.engine.torch_step import Drawn
    from rlhfless.engine.torch_stretch import Stretch

NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(eq=False)
class ActiveResponse:
    """A response that is with this engine.

    Attributes:
        count: its tokens so far (those of iterations that are not settled are still with the stretch).
        ids, logprobs: (stop_tokens,) of which the first ``count`` are known.
        stop_tokens: the most tokens that it can get; most_tokens: the same with its prompt, by its limit.
        forced: whether its length is given, so that it never ends by itself.
        signals: of the tokens so far.
        kv: KV state of its whole context that came with it, until it joins the batch.
        queued_s: its place in the queue: when it became available; evicted ones are first.
        there_tokens, shares: of its prompt, as in its request; nothing once it was evicted.
    """

    request: Request
    count: int
    ids: np.ndarray
    logprobs: np.ndarray
    stop_tokens: int
    most_tokens: int
    forced: bool
    kv: Any
    queued_s: float
    start_s: float | None
    first_token_s: float | None
    prefill_tokens: int
    there_tokens: int
    shares: bool
    signals: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, clock_s: float, room: Room) -> ActiveResponse:
        """A checked request.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """
        target, limit, count = request.target_tokens, request.limit_tokens, request.generated_tokens
        stop = limit if target is None else min(target, limit)
        check(request, stop, room)
        one = cls(
            request, count, np.empty(stop, np.int64), np.empty(stop, np.float32), stop, request.prompt_tokens + limit,
            target is not None, request.kv, max(request.available_s, clock_s), request.start_s, request.first_token_s,
            request.prefill_tokens_computed, request.there_tokens, request.shares_prompt,
            {name: list(values) for name, values in (request.signals or {}).items()},
        )  # fmt: skip
        if count:
            one.ids[:count], one.logprobs[:count] = request.generated_ids, request.logprobs
        return one

    def forget_prefix(self) -> None:
        """Nothing of its prompt is there for it any more, except that it may share it."""
        self.there_tokens = 0
        self.request = replace(self.request, there_tokens=0, prefix_kv=None, kv=None)

    @property
    def context_tokens(self) -> int:
        """KV tokens that it holds at its next iteration."""
        return self.request.prompt_tokens + self.count

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Ids of its context (prompt, then response) from ``start`` to ``stop``."""
        assert self.request.prompt_ids is not None
        ids = np.concatenate([self.request.prompt_ids, self.ids[: self.count]])[start:stop]
        return np.asarray(ids, dtype=np.int64)

    def extend(self, ids: np.ndarray, logprobs: np.ndarray) -> None:
        """Its next tokens."""
        end = self.count + len(ids)
        self.ids[self.count : end], self.logprobs[self.count : end] = ids, logprobs
        self.count = end

    @property
    def last_token(self) -> int:
        """The token that its next iteration feeds."""
        assert self.request.prompt_ids is not None
        return int(self.ids[self.count - 1]) if self.count else int(self.request.prompt_ids[-1])

    def finish_reason(self, eos_id: int) -> str:
        """Why it ends with its last token, or has none to get."""
        request, length = self.request, self.count
        if request.target_tokens is not None and length >= request.target_tokens:
            return request.target_finish
        return "stop" if not self.forced and self.ids[length - 1] == eos_id else "length"

    def completion(self, time_s: float, reason: str) -> Completion:
        """It ended at ``time_s``; one of no tokens never joined a batch."""
        ids, logprobs = self.ids[: self.count].copy(), self.logprobs[: self.count].copy()
        first_s, start_s = (time_s if at_s is None else at_s for at_s in (self.first_token_s, self.start_s))
        return Completion(
            self.request.response, time_s, self.count, reason, first_s, start_s, self.prefill_tokens, ids, logprobs,
            self._signals(),
        )  # fmt: skip

    def export(self, clock_s: float, kv: Any) -> Request:
        """What another engine needs to go on, or this one later. What was there of its prompt stays behind."""
        return replace(
            self.request,
            available_s=max(clock_s, self.request.available_s),
            generated_tokens=self.count,
            generated_ids=self.ids[: self.count].copy(),
            logprobs=self.logprobs[: self.count].copy(),
            signals=self._signals(),
            kv=kv,
            there_tokens=0,
            shares_prompt=False,
            prefix_kv=None,
            start_s=self.start_s,
            first_token_s=self.first_token_s,
            prefill_tokens_computed=self.prefill_tokens,
        )

    def _signals(self) -> Mapping[str, np.ndarray] | None:
        return {name: np.array(values, dtype=np.float32) for name, values in self.signals.items()} or None


@dataclass(eq=False)
class Iteration:
    """A decode iteration, with the prefill before it: planned, perhaps run, not committed.

    Attributes:
        batch: in admission order, newcomers last; evicted: youngest first.
        kv_tokens: that the batch holds at its start.
        there: tokens of each newcomer's context that need not be computed.
        computed_tokens: tokens of newcomers' contexts that its prefill computes (the last of each is decoded: it is counted
            all the same); computing: newcomers for which something is computed.
        rows: the batch in order of cache rows, once run; drawn, stretch: once run.
        shared: KV state of whole prompts, computed here, for others that will need it.
    """

    start_s: float
    batch: list[ActiveResponse]
    kv_tokens: int
    newcomers: Sequence[ActiveResponse] = ()
    evicted: Sequence[ActiveResponse] = ()
    there: Mapping[ActiveResponse, int] = field(default_factory=lambda: NOTHING)
    computed_tokens: int = 0
    computing: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    rows: list[ActiveResponse] | None = None
    drawn: Drawn | None = None
    stretch: Stretch | None = None
    shared: Mapping[int, Any] = field(default_factory=lambda: NOTHING)

    @classmethod
    def of(cls, next_batch: NextBatch, there: Mapping[ActiveResponse, int]) -> Iteration:
        """That of another batch; every response's tokens are settled."""
        start_s, batch, newcomers, evicted = next_batch
        missing = [s.context_tokens - known for s, known in there.items()]
        kv_tokens = sum([s.context_tokens for s in batch])
        return cls(start_s, batch, kv_tokens, newcomers, evicted, there, sum(missing), sum(tokens > 0 for tokens in missing))

    @property
    def decode_start_s(self) -> float:
        """When its prefill is done."""
        return self.start_s + self.prefill_s

    @property
    def end_s(self) -> float:
        """The boundary that it leads to."""
        return self.decode_start_s + self.decode_s
