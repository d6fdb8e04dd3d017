"""What the vLLM engine knows of a response that is with it.

Knows requests, tokens so far and which KV states it can go on from; what else can be wrong with a request stands in
common/request_validation.py. Nothing of batches, vLLM or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlhfless.engine.common.request_validation import TokenRoom, check, stop_tokens
from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.vllm.kv_blocks import BlocksKV


@dataclass(eq=False)
class VllmSequenceState:
    """A response that is with this engine.

    Attributes:
        ids, logprobs: of the tokens so far.
        queued_s: its place in the queue: when it became available; evicted ones are first.
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
        """A checked request.

        Args:
            takes_kv: whether the actor can go on from KV states.

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
        """KV tokens that it holds at its next iteration."""
        return self.request.prompt_tokens + len(self.ids)

    @property
    def stop_tokens(self) -> int:
        """The most tokens that it can get."""
        return stop_tokens(self.request)

    @property
    def forced(self) -> bool:
        """Whether its length is given, so that it never ends by itself."""
        return self.request.target_tokens is not None

    @property
    def context(self) -> list[int]:
        """Ids of its prompt and its tokens."""
        assert self.request.prompt_ids is not None
        return [*(int(i) for i in self.request.prompt_ids), *self.ids]

    def finish_reason(self, eos_id: int) -> str | None:
        """Why it ends with its last token; None when it goes on."""
        request, length = self.request, len(self.ids)
        if request.target_tokens is not None and length >= request.target_tokens:
            return request.target_finish
        if request.target_tokens is None and self.ids[-1] == eos_id:
            return "stop"
        return "length" if length >= request.limit_tokens else None

    def completion(self, time_s: float, reason: str) -> Completion:
        """It ended at ``time_s``; one of no tokens never joined a batch."""
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
        """What another engine needs to go on, or this one later, with what there is of its KV state."""
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
    if r.there_tokens or not (r.kv is None or (takes_kv and isinstance(r.kv, BlocksKV))):
        return "comes with KV state that this vLLM does not take; recompute it"
    return None
