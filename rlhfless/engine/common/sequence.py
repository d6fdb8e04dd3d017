"""State of one unfinished response in a real engine: its request, its tokens so far, and what its completion will say.

Checks of requests are in request_validation.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.common.request_validation import TokenRoom, check, stop_tokens
from rlhfless.engine.protocol import Completion, Request


class HostTokens(NamedTuple):
    """Tokens that iterations of one batch sampled, on the host: (rows, iterations) ids and log-probabilities. An engine that
    receives its tokens one response at a time has one row per response, which grows.
    """

    ids: np.ndarray | list[array[int]]
    logprobs: np.ndarray | list[array[float]]


@dataclass(eq=False)
class SequenceState:
    """A response that is in an engine's batch or queue.

    Attributes:
        prompt_tokens: number of tokens of its prompt.
        count: number of its tokens so far, as far as they are on the host.
        last_token: the token that its next iteration feeds.
        parts: arrays that contain its tokens, each with its row there. The tokens with which it arrived are an array of one
            row.
        stop_tokens: the maximum number of tokens that it can get; max_kv_tokens: the same with its prompt, by its limit.
        forced: whether its length is given, so that the end-of-text token never ends it.
        kv: KV state of its whole context that came with it, until it joins the batch.
        queued_s: its position in the queue: when it became available; evicted responses are first.
        cached_tokens, shares: of its prompt, as in its request; none once it was evicted.
        passes, drafted_tokens, accepted_tokens: of engines with drafts, those of earlier ones included.
    """

    request: Request
    prompt_tokens: int
    count: int
    last_token: int
    parts: list[tuple[HostTokens, int]]
    stop_tokens: int
    max_kv_tokens: int
    forced: bool
    kv: Any
    queued_s: float
    start_s: float | None
    first_token_s: float | None
    prefill_tokens: int
    cached_tokens: int
    shares: bool
    passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @classmethod
    def of(cls, request: Request, clock_s: float, room: TokenRoom, kv_wrong: Callable[[Request], str | None]) -> SequenceState:
        """Return the state of a request, after checking it.

        Args:
            kv_wrong: returns what is wrong with the KV states of an otherwise valid request; None: nothing.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """
        check(request, room, kv_wrong)
        count = request.generated_tokens
        assert request.prompt_ids is not None
        last, parts = request.prompt_ids[-1], []
        if count:
            assert request.generated_ids is not None and request.logprobs is not None  # noqa: PT018
            last = request.generated_ids[-1]
            parts = [(HostTokens(request.generated_ids[None], request.logprobs[None]), 0)]
        return cls(
            request, request.prompt_tokens, count, int(last), parts, stop_tokens(request),
            request.prompt_tokens + request.max_tokens, request.target_tokens is not None, request.kv,
            max(request.available_s, clock_s), request.start_s, request.first_token_s, request.prefill_tokens_computed,
            request.cached_tokens, request.shares_prompt, request.passes, request.drafted_tokens, request.accepted_tokens,
        )  # fmt: skip

    def forget_prefix(self) -> None:
        """Drop the received prefix; the response may still share its prompt."""
        self.cached_tokens = 0
        self.request = replace(self.request, cached_tokens=0, prefix_kv=None, kv=None)

    @property
    def context_tokens(self) -> int:
        """Return the KV tokens that it takes at its next iteration."""
        return self.prompt_tokens + self.count

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return the ids of its context (prompt, then response) from ``start`` to ``stop``."""
        assert self.request.prompt_ids is not None
        ids = (
            np.concatenate([self.request.prompt_ids, self.ids])[start:stop]
            if self.count
            else self.request.prompt_ids[start:stop]
        )
        return np.asarray(ids, dtype=np.int64)

    @property
    def ids(self) -> np.ndarray:
        """Return (count,) its tokens so far, a copy."""
        return _joined([part.ids[row] for part, row in self.parts], np.int64)

    @property
    def logprobs(self) -> np.ndarray:
        """Return (count,) their log-probabilities, a copy."""
        return _joined([part.logprobs[row] for part, row in self.parts], np.float32)

    def ids_from(self, start: int) -> np.ndarray:
        """Return the ids of its tokens so far from number ``start`` on."""
        recent: list[Any] = []
        begin = self.count
        for part, row in reversed(self.parts):
            if begin <= start:
                break
            recent.append(part.ids[row])
            begin -= len(recent[-1])
        return _joined(recent[::-1], np.int64)[start - begin :]

    def append(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append new tokens, for an engine that receives them one response at a time."""
        if not self.parts or isinstance(self.parts[-1][0].ids, np.ndarray):
            self.parts.append((HostTokens([array("q")], [array("f")]), 0))
        tokens, row = self.parts[-1]
        tokens.ids[row].extend(ids)
        tokens.logprobs[row].extend(logprobs)
        self.count += len(ids)
        self.last_token = ids[-1]

    def verified(self, drafted: int, committed: int) -> None:
        """Count a pass that fed ``drafted`` drafted tokens and committed ``committed`` tokens, all but one of them drafted."""
        self.passes += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += committed - 1

    def finish_reason(self, stop_ids: Sequence[int]) -> str | None:
        """Return why it ends with its last token, or has no tokens to get; None when it continues."""
        request = self.request
        if request.target_tokens is not None and self.count >= request.target_tokens:
            return request.target_finish
        if self.count and not self.forced and self.last_token in stop_ids:
            return "stop"
        return "length" if self.count >= self.stop_tokens else None

    def completion(self, time_s: float, stop_ids: Sequence[int], drafts: bool = False) -> Completion:
        """Return its completion at ``time_s``, with its passes if the engine ``drafts``; a response of no tokens never joined a
        batch.
        """
        reason = self.finish_reason(stop_ids)
        assert reason is not None, "a response that continues is not complete"
        first_s, start_s = (time_s if at_s is None else at_s for at_s in (self.first_token_s, self.start_s))
        return Completion(
            self.request.response, time_s, self.count, reason, first_s, start_s, self.prefill_tokens, self.ids,
            self.logprobs, *((self.passes, self.drafted_tokens, self.accepted_tokens) if drafts else ()),
        )  # fmt: skip

    def export(self, clock_s: float, kv: Any) -> Request:
        """Return the request from which another engine, or this one later, can continue. Cached tokens of its prompt stay
        behind.
        """
        return replace(
            self.request,
            available_s=max(clock_s, self.request.available_s),
            generated_tokens=self.count,
            generated_ids=self.ids,
            logprobs=self.logprobs,
            kv=kv,
            cached_tokens=0,
            shares_prompt=False,
            prefix_kv=None,
            start_s=self.start_s,
            first_token_s=self.first_token_s,
            prefill_tokens_computed=self.prefill_tokens,
            passes=self.passes,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )


def _joined(parts: Sequence[Any], dtype: type) -> np.ndarray:
    """Return one concatenated array, which keeps none of the parts alive."""
    return np.concatenate(parts, dtype=dtype) if parts else np.empty(0, dtype)
