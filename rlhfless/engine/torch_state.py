"""What the torch engine knows of a response that is with it, and of an iteration that is not committed yet.

Knows requests and tokens so far; nothing of tensors or models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlhfless.engine.protocol import Request


@dataclass(eq=False)
class ActiveResponse:
    """A response that is with this engine."""

    request: Request
    ids: list[int]
    logprobs: list[float]
    kv: Any
    uniforms: list[float]
    queued_s: float  # its place in the queue: when it became available; evicted ones are first
    start_s: float | None
    first_token_s: float | None
    prefill_tokens: int

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


@dataclass(eq=False)
class Iteration:
    """A decode iteration, with the prefill before it: planned, perhaps run, not committed."""

    start_s: float
    batch: list[ActiveResponse]  # in admission order, newcomers last
    newcomers: list[ActiveResponse]
    evicted: list[ActiveResponse]  # youngest first
    prefill_s: float = 0.0
    decode_s: float = 0.0
    rows: list[ActiveResponse] = field(default_factory=list)  # the batch in order of cache rows, once run
    ids: list[int] | None = None
    logprobs: list[float] = field(default_factory=list)

    @property
    def recomputed(self) -> list[ActiveResponse]:
        """Newcomers whose KV cache has to be computed first."""
        return [s for s in self.newcomers if s.kv is None]

    @property
    def kv_tokens(self) -> int:
        """KV tokens that the batch holds at its start."""
        return sum(s.context_tokens for s in self.batch)

    @property
    def decode_start_s(self) -> float:
        """When its prefill is done."""
        return self.start_s + self.prefill_s

    @property
    def end_s(self) -> float:
        """The boundary that it leads to."""
        return self.decode_start_s + self.decode_s
