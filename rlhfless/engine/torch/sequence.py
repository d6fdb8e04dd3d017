"""What the torch engine knows of a response that is with it.

Knows requests and tokens so far; what is wrong with a request stands in validation.py. Nothing of models or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rlhfless.engine.common.request_validation import TokenRoom, stop_tokens
from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.torch.validation import check


class HostTokens(NamedTuple):
    """What iterations of one batch drew, on the host: (rows, iterations) ids and log-probabilities, and signals by name."""

    ids: np.ndarray
    logprobs: np.ndarray
    signals: Mapping[str, np.ndarray]


@dataclass(eq=False)
class SequenceState:
    """A response that is with this engine.

    Attributes:
        prompt_tokens: of its prompt.
        count: its tokens so far (those of iterations that are not settled are still with the stretch).
        last_token: the token that its next iteration feeds.
        parts: where its tokens stand: what was settled, and its row there. Those with which it came stand in one of one row.
        stop_tokens: the most tokens that it can get; most_tokens: the same with its prompt, by its limit.
        forced: whether its length is given, so that it never ends by itself.
        kv: KV state of its whole context that came with it, until it joins the batch.
        queued_s: its place in the queue: when it became available; evicted ones are first.
        there_tokens, shares: of its prompt, as in its request; nothing once it was evicted.
    """

    request: Request
    prompt_tokens: int
    count: int
    last_token: int
    parts: list[tuple[HostTokens, int]]
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

    @classmethod
    def of(cls, request: Request, clock_s: float, room: TokenRoom) -> SequenceState:
        """A checked request.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """
        check(request, room)
        count = request.generated_tokens
        assert request.prompt_ids is not None
        last, parts = request.prompt_ids[-1], []
        if count:
            assert request.generated_ids is not None and request.logprobs is not None  # noqa: PT018
            last = request.generated_ids[-1]
            signals = {name: values[None] for name, values in (request.signals or {}).items()}
            parts = [(HostTokens(request.generated_ids[None], request.logprobs[None], signals), 0)]
        return cls(
            request, request.prompt_tokens, count, int(last), parts, stop_tokens(request),
            request.prompt_tokens + request.limit_tokens, request.target_tokens is not None, request.kv,
            max(request.available_s, clock_s), request.start_s, request.first_token_s, request.prefill_tokens_computed,
            request.there_tokens, request.shares_prompt,
        )  # fmt: skip

    def forget_prefix(self) -> None:
        """Nothing of its prompt is there for it any more, except that it may share it."""
        self.there_tokens = 0
        self.request = replace(self.request, there_tokens=0, prefix_kv=None, kv=None)

    @property
    def context_tokens(self) -> int:
        """KV tokens that it holds at its next iteration."""
        return self.prompt_tokens + self.count

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Ids of its context (prompt, then response) from ``start`` to ``stop``."""
        assert self.request.prompt_ids is not None
        ids = (
            np.concatenate([self.request.prompt_ids, self.ids])[start:stop]
            if self.count
            else self.request.prompt_ids[start:stop]
        )
        return np.asarray(ids, dtype=np.int64)

    @property
    def ids(self) -> np.ndarray:
        """(count,) its tokens so far, a copy."""
        return _joined([part.ids[row] for part, row in self.parts], np.int64)

    @property
    def logprobs(self) -> np.ndarray:
        """(count,) their log-probabilities, a copy."""
        return _joined([part.logprobs[row] for part, row in self.parts], np.float32)

    def finish_reason(self, eos_id: int) -> str:
        """Why it ends with its last token, or has none to get."""
        request, length = self.request, self.count
        if request.target_tokens is not None and length >= request.target_tokens:
            return request.target_finish
        return "stop" if not self.forced and self.last_token == eos_id else "length"

    def completion(self, time_s: float, reason: str) -> Completion:
        """It ended at ``time_s``; one of no tokens never joined a batch."""
        first_s, start_s = (time_s if at_s is None else at_s for at_s in (self.first_token_s, self.start_s))
        return Completion(
            self.request.response, time_s, self.count, reason, first_s, start_s, self.prefill_tokens, self.ids,
            self.logprobs, self._signals(),
        )  # fmt: skip

    def export(self, clock_s: float, kv: Any) -> Request:
        """What another engine needs to go on, or this one later. What was there of its prompt stays behind."""
        return replace(
            self.request,
            available_s=max(clock_s, self.request.available_s),
            generated_tokens=self.count,
            generated_ids=self.ids,
            logprobs=self.logprobs,
            signals=self._signals(),
            kv=kv,
            there_tokens=0,
            shares_prompt=False,
            prefix_kv=None,
            start_s=self.start_s,
            first_token_s=self.first_token_s,
            prefill_tokens_computed=self.prefill_tokens,
        )

    def recent_signals(self, tokens: int) -> Mapping[str, np.ndarray]:
        """By name, the mean of its signals over its last ``tokens`` settled tokens, or over all of them."""
        recent: list[tuple[HostTokens, int]] = []
        count = 0
        for part, row in reversed(self.parts):
            if count >= tokens or not part.signals:  # those before came from an engine that was asked for none
                break
            recent.insert(0, (part, row))
            count += part.ids.shape[1]
        names = recent[-1][0].signals if recent else ()
        return {
            name: np.concatenate([part.signals[name][row] for part, row in recent])[-tokens:].mean(axis=0) for name in names
        }

    def _signals(self) -> Mapping[str, np.ndarray] | None:
        names = self.parts[0][0].signals if self.parts else ()
        return {name: _joined([part.signals[name][row] for part, row in self.parts], np.float32) for name in names} or None


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    """One array of them; none of them is kept alive by it."""
    return np.concatenate(parts, dtype=dtype) if parts else np.empty(0, dtype)
