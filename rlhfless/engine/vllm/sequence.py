"""State of one response in the vLLM engine: its request, its tokens so far, and the KV state from which it can continue.

Checks that all engines share are in common/request_validation.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlhfless.engine.common.request_validation import TokenRoom, check, stop_tokens
from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.vllm.kv_blocks import BlocksKV


@dataclass(eq=False)
class VllmSequenceState:
    """A response of this engine.

    Attributes:
        ids, logprobs: of the tokens so far.
        queued_s: its position in the queue: when it became available; evicted responses are first.
        start_s, first_token_s, prefill_tokens: as in its completion.
        kv: that came with it, until it joins the batch.
    """

    request: Request
    ids: list[int]
    logprobs: list[float]
    queued_s: float
    start_s: float | None
    first_token_s: float | None
    prefill_tokens: int
    kv: BlocksKV | None = None

    @classmethod
    def of(cls, request: Request, clock_s: float, room: TokenRoom, takes_kv: bool) -> VllmSequenceState:
        """Return the state of a checked request.

        Args:
            takes_kv: whether the actor can continue from KV states.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """
        check(request, room, lambda r: _kv_wrong(r, takes_kv))
        ids = [] if request.generated_ids is None else [int(i) for i in request.generated_ids]
        logprobs = [] if request.logprobs is None else [float(x) for x in request.logprobs]
        return cls(
            request, ids, logprobs, max(request.available_s, clock_s), request.start_s, request.first_token_s,
            request.prefill_tokens_computed, request.kv,
        )  # fmt: skip

    @property
    def context_tokens(self) -> int:
        """Return the KV tokens that it takes at its next iteration."""
        return self.request.prompt_tokens + len(self.ids)

    @property
    def stop_tokens(self) -> int:
        """Return the maximum number of tokens that it can get."""
        return stop_tokens(self.request)

    @property
    def forced(self) -> bool:
        """Return whether its length is given, so that the end-of-text token never ends it."""
        return self.request.target_tokens is not None

    @property
    def context(self) -> list[int]:
        """Return the ids of its prompt and its tokens."""
        assert self.request.prompt_ids is not None
        return [*(int(i) for i in self.request.prompt_ids), *self.ids]

    def finish_reason(self, eos_id: int) -> str | None:
        """Return why it ends with its last token; None when it continues."""
        request, length = self.request, len(self.ids)
        if request.target_tokens is not None and length >= request.target_tokens:
            return request.target_finish
        if request.target_tokens is None and self.ids[-1] == eos_id:
            return "stop"
        return "length" if length >= request.max_tokens else None

    def completion(self, time_s: float, reason: str) -> Completion:
        """Return its completion at ``time_s``; a response of no tokens never joined a batch."""
        first_s, start_s = (time_s if at_s is None else at_s for at_s in (self.first_token_s, self.start_s))
        ids, logprobs = np.array(self.ids, dtype=np.int64), np.array(self.logprobs, dtype=np.float32)
        return Completion(
            self.request.response,
            time_s,
            len(ids),
            reason,
            first_s,
            start_s,
            self.prefill_tokens,
            ids,
            logprobs,
        )

    def export(self, clock_s: float, kv: BlocksKV | None) -> Request:
        """Return the request from which another engine, or this one later, can continue, with the available KV state."""
        return replace(
            self.request,
            available_s=max(clock_s, self.request.available_s),
            generated_tokens=len(self.ids),
            generated_ids=np.array(self.ids, dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            shares_prompt=False,
            kv=kv,
            start_s=self.start_s,
            first_token_s=self.first_token_s,
            prefill_tokens_computed=self.prefill_tokens,
        )


def _kv_wrong(r: Request, takes_kv: bool) -> str | None:
    if r.cached_tokens or not (r.kv is None or (takes_kv and isinstance(r.kv, BlocksKV))):
        return "comes with KV state that this vLLM engine cannot load; recompute it"
    return None
