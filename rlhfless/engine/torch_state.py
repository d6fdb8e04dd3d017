"""What the torch engine knows of a response that is with it, and of an iteration that is not committed yet.

Knows requests, tokens so far and what is wrong with a request; nothing of batches, models or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.sampling import uniform_stream

if TYPE_CHECKING:
    from rlhfless.engine.torch_step import Drawn
    from rlhfless.engine.torch_stretch import Stretch


@dataclass(eq=False)
class ActiveResponse:
    """A response that is with this engine.

    Attributes:
        ids, logprobs, signals: of the tokens so far (those of iterations that are not settled are still with the stretch).
        kv: KV state of its whole context that came with it, until it joins the batch.
        uniforms: a random number for every token that it may get.
        queued_s: its place in the queue: when it became available; evicted ones are first.
        there_tokens, shares: of its prompt, as in its request; nothing once it was evicted.
    """

    request: Request
    ids: list[int]
    logprobs: list[float]
    kv: Any
    uniforms: np.ndarray
    queued_s: float
    start_s: float | None
    first_token_s: float | None
    prefill_tokens: int
    there_tokens: int
    shares: bool
    signals: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, clock_s: float, most_tokens: int) -> ActiveResponse:
        """A checked request.

        Args:
            most_tokens: that the actor can hold of one response.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """
        ids = [] if request.generated_ids is None else [int(i) for i in request.generated_ids]
        logprobs = [] if request.logprobs is None else [float(x) for x in request.logprobs]
        one = cls(
            request, ids, logprobs, request.kv, np.empty(0), max(request.available_s, clock_s), request.start_s,
            request.first_token_s, request.prefill_tokens_computed, request.there_tokens, request.shares_prompt,
            {name: list(values) for name, values in (request.signals or {}).items()},
        )  # fmt: skip
        _check(one, most_tokens)
        one.uniforms = uniform_stream(request.seed, one.stop_tokens)
        return one

    @property
    def context_tokens(self) -> int:
        """KV tokens that it holds at its next iteration."""
        return self.request.prompt_tokens + len(self.ids)

    @property
    def stop_tokens(self) -> int:
        """The most tokens that it can get."""
        target = self.request.target_tokens
        return self.request.limit_tokens if target is None else min(target, self.request.limit_tokens)

    @property
    def forced(self) -> bool:
        """Whether its length is given, so that it never ends by itself."""
        return self.request.target_tokens is not None

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Ids of its context (prompt, then response) from ``start`` to ``stop``."""
        assert self.request.prompt_ids is not None
        ids = np.concatenate([self.request.prompt_ids, np.array(self.ids, dtype=np.int64)])[start:stop]
        return np.asarray(ids, dtype=np.int64)

    @property
    def last_token(self) -> int:
        """The token that its next iteration feeds."""
        assert self.request.prompt_ids is not None
        return self.ids[-1] if self.ids else int(self.request.prompt_ids[-1])

    def finish_reason(self, eos_id: int) -> str | None:
        """Why it ends with its last token; None when it goes on."""
        request, length = self.request, len(self.ids)
        if request.target_tokens is not None and length >= request.target_tokens:
            return request.target_finish
        if request.target_tokens is None and self.ids[-1] == eos_id:
            return "stop"
        return "length" if length >= request.limit_tokens else None

    def completion(self, time_s: float, reason: str) -> Completion:
        """It ended at ``time_s``."""
        assert self.first_token_s is not None
        assert self.start_s is not None
        return Completion(
            self.request.response, time_s, len(self.ids), reason, self.first_token_s, self.start_s, self.prefill_tokens,
            np.array(self.ids, dtype=np.int64), np.array(self.logprobs, dtype=np.float32), self._signals(),
        )  # fmt: skip

    def export(self, clock_s: float, kv: Any) -> Request:
        """What another engine needs to go on, or this one later. What was there of its prompt stays behind."""
        return replace(
            self.request,
            available_s=max(clock_s, self.request.available_s),
            generated_tokens=len(self.ids),
            generated_ids=np.array(self.ids, dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float32),
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


def _check(one: ActiveResponse, most_tokens: int) -> None:
    request, prompt = one.request, one.request.prompt_ids
    name, most = f"response {request.response}", request.prompt_tokens + request.limit_tokens
    if prompt is None or len(prompt) != request.prompt_tokens or request.prompt_tokens < 1:
        given = "none" if prompt is None else len(prompt)
        raise ValueError(f"{name} has {given} prompt_ids; it needs prompt_tokens ({request.prompt_tokens}), at least 1")
    if len(one.ids) != request.generated_tokens or len(one.logprobs) != request.generated_tokens:
        raise ValueError(
            f"{name} has {len(one.ids)} generated_ids and {len(one.logprobs)} logprobs; it needs generated_tokens "
            f"({request.generated_tokens})"
        )
    if request.generated_tokens >= one.stop_tokens:
        raise ValueError(
            f"{name} already has {request.generated_tokens} of {one.stop_tokens} tokens; add unfinished responses only"
        )
    if most > most_tokens:
        raise ValueError(f"{name} can reach {most} tokens with its prompt; this actor holds {most_tokens} at most")
    if request.kv is not None and request.kv.shape[3] != one.context_tokens - 1:
        have, need = request.kv.shape[3], one.context_tokens - 1
        raise ValueError(f"{name} comes with the KV state of {have} tokens; it needs {need}, all tokens but the last")
    if not 0 <= request.there_tokens <= request.prompt_tokens or (request.shares_prompt and request.prompt is None):
        raise ValueError(
            f"{name} has {request.there_tokens} there_tokens of {request.prompt_tokens} prompt tokens and prompt "
            f"{request.prompt}; at most all of them, and the prompt's index where it shares it, are needed"
        )
    have = 0 if request.prefix_kv is None else request.prefix_kv.tokens
    need = min(request.there_tokens, request.prompt_tokens - 1)
    if have < need:
        raise ValueError(f"{name} says that {need} tokens of its prompt are there, but comes with the KV state of {have}")


@dataclass(eq=False)
class Iteration:
    """A decode iteration, with the prefill before it: planned, perhaps run, not committed.

    Attributes:
        batch: in admission order, newcomers last; evicted: youngest first.
        kv_tokens: that the batch holds at its start.
        there: tokens of each newcomer's context that need not be computed.
        rows: the batch in order of cache rows, once run; drawn, stretch: once run.
        shared: KV state of whole prompts, computed here, for others that will need it.
    """

    start_s: float
    batch: list[ActiveResponse]
    kv_tokens: int
    newcomers: list[ActiveResponse] = field(default_factory=list)
    evicted: list[ActiveResponse] = field(default_factory=list)
    there: dict[ActiveResponse, int] = field(default_factory=dict)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    rows: list[ActiveResponse] = field(default_factory=list)
    drawn: Drawn | None = None
    stretch: Stretch | None = None
    shared: dict[int, Any] = field(default_factory=dict)

    @property
    def computed_tokens(self) -> int:
        """Tokens of newcomers' contexts that its prefill computes (the last of each is decoded: it is counted all the same)."""
        return sum(s.context_tokens - there for s, there in self.there.items())

    @property
    def computing(self) -> int:
        """Newcomers for which something is computed."""
        return sum(s.context_tokens > there for s, there in self.there.items())

    @property
    def decode_start_s(self) -> float:
        """When its prefill is done."""
        return self.start_s + self.prefill_s

    @property
    def end_s(self) -> float:
        """The boundary that it leads to."""
        return self.decode_start_s + self.decode_s
