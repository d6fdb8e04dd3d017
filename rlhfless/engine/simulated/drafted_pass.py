"""A planned pass of a simulated engine with drafts, and what a call commits of them."""

from __future__ import annotations

import math

import numpy as np

from rlhfless.engine.common.batch_scheduler import NextBatch
from rlhfless.engine.common.spans import IterationRun, PrefillPart, spans_of
from rlhfless.engine.protocol import Completion, Progress
from rlhfless.engine.simulated.drafted_batch import DraftedBatch, DraftedResponse
from solver.model.workload import IntArray


class Joining:
    """Counts the tokens that responses compute when they join together.

    Args:
        cached_prompts: whose KV cache is in the actor, for all that share them.
    """

    def __init__(self, cached_prompts: set[int | None]) -> None:
        self._cached = set(cached_prompts)

    def uncached(self, s: DraftedResponse) -> int:
        """Return the tokens of its context that are not cached; call it once for every response, in order of admission."""
        if s.has_kv:
            return 0
        there = s.cached_tokens
        if s.shares:
            if s.request.prompt in self._cached:
                there = max(there, s.request.prompt_tokens)
            self._cached.add(s.request.prompt)
        return s.context_tokens - there


class Pass:
    """A planned pass.

    Attributes:
        batch: the responses that it decodes, as they are before it. change: None where the batch stays.
        computed: tokens of contexts that it computes, by response; computing: responses that prefill is charged for.
        prompt_tokens: what a mixed iteration feeds of prompts.
        prefill_s: seconds of the prefill before it, or of its part in a mixed one.
        drafted: (B,) tokens that it verifies.
    """

    def __init__(self, start_s: float, batch: DraftedBatch, change: NextBatch[DraftedResponse] | None = None) -> None:
        self.start_s, self.batch, self.change = start_s, batch, change
        self.computed: dict[DraftedResponse, int] = {}
        self.computing = self.prompt_tokens = 0
        self.prefill_s, self.end_s = 0.0, math.inf
        self.drafted: IntArray = np.zeros(0, np.int64)

    def run(self, accepted: int, kv_tokens: int) -> IterationRun:
        """Return it as spans are made of it."""
        decode_from_s = self.start_s + self.prefill_s if len(self.batch) else self.end_s
        seconds = self.end_s - decode_from_s
        part = None
        if self.computing:
            chunks = [(s.request.response, tokens) for s, tokens in self.computed.items() if tokens]
            part = PrefillPart(self.computing, sum(self.computed.values()), chunks)
        size = len(self.batch)
        counts = (int(self.drafted.sum()), accepted)
        return IterationRun(
            self.start_s, decode_from_s, self.end_s, size + accepted, size * seconds, kv_tokens * seconds, part, None, counts
        )


class Committed:
    """Passes and completions that one call commits."""

    def __init__(self) -> None:
        self.runs: list[IterationRun] = []
        self.completions: list[Completion] = []

    def progress(self, slots: int) -> Progress:
        """Return them as the protocol does."""
        return Progress(self.completions, spans_of(self.runs, slots))
