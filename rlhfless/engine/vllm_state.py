"""What the vLLM engine knows of a response that is with it.

Knows requests, tokens so far and what is wrong with a request; nothing of batches, vLLM or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlhfless.engine.protocol import Completion, Request
from rlhfless.engine.vllm_kv import BlocksKV


@dataclass(eq=False)
class ActiveResponse:
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
    def of(cls, request: Request, clock_s: float, most_tokens: int, takes_kv: bool) -> ActiveResponse:
        """A checked request.

        Args:
            most_tokens: that the actor can hold of one response. takes_kv: whether it can go on from KV states.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """
        ids = [] if request.generated_ids is None else [int(i) for i in request.generated_ids]
        logprobs = [] if request.logprobs is None else [float(x) for x in request.logprobs]
        one = cls(
            request, ids, logprobs, max(request.available_s, clock_s), request.start_s, request.first_token_s,
            request.prefill_tokens_computed, request.kv,
        )  # fmt: skip
        _check(one, most_tokens, takes_kv)
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
        """It ended at ``time_s``."""
        assert self.first_token_s is not None
        assert self.start_s is not None
        ids, logprobs = np.array(self.ids, dtype=np.int64), np.array(self.logprobs, dtype=np.float32)
        return Completion(
            self.request.response,
            time_s,
            len(ids),
            reason,
            self.first_token_s,
            self.start_s,
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


def _check(one: ActiveResponse, most_tokens: int, takes_kv: bool) -> None:
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
    if request.there_tokens or not (request.kv is None or (takes_kv and isinstance(request.kv, BlocksKV))):
        raise ValueError(f"{name} comes with KV state that this vLLM does not take; recompute it")
