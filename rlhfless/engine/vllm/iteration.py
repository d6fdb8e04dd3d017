"""One iteration that vLLM has computed: the planned batch, and what each response got; and a response as vLLM is given it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlhfless.engine.common.batch_scheduler import NextBatch
from rlhfless.engine.common.journal import AdmittedResponse
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.vllm.kv_blocks import BlocksKV, StoredKV
from solver.model.latency import LatencyModel


class NewResponse(NamedTuple):
    """A response that joins the batch of a replica.

    Attributes:
        name: new to the replica.
        ids: its context: the prompt, then its tokens so far.
        seed: of its random stream.
        tokens: the maximum number that it may get. Where ``forced`` it gets all of them: the token that ends a response, and
            what the model's generation config calls an end of text, are then never sampled.
        kv: KV state of the beginning of its context, where it has one and the replica ``hands_over``.
        prompt_tokens: length of its prompt. history: token ids of earlier responses of the prompt, for drafts.
        salt: only contexts with the same salt share the KV cache of equal prefixes.
    """

    name: str
    ids: list[int]
    seed: int
    tokens: int
    forced: bool
    kv: BlocksKV | StoredKV | None = None
    prompt_tokens: int = 0
    history: Sequence[np.ndarray] = ()
    salt: str | None = None


class StepOutput(NamedTuple):
    """Output of an iteration for one response.

    Attributes:
        name: of the response, as it was added.
        ids, logprobs: its new tokens, and the log-probabilities with which they were sampled.
        finished: whether vLLM will sample no more tokens for it.
        drafted: drafted tokens that the iteration fed for it. All of ``ids`` but the last are accepted ones of them.
    """

    name: str
    ids: list[int]
    logprobs: list[float]
    finished: bool
    drafted: int = 0


@dataclass(eq=False)
class Iteration:
    """An iteration that vLLM has computed.

    Attributes:
        drawn: output of each response; a response without an entry is still being prefilled.
        chunks: of each response with missing context, the tokens of it that were fed.
        joined: of each response that joined, the journal's entry and the token ids of its context.
        host_s: CPU seconds of planning it and of entering its tokens into our own scheduler.
    """

    planned: NextBatch[SequenceState]
    drawn: dict[SequenceState, StepOutput]
    chunks: dict[SequenceState, int]
    joined: dict[SequenceState, tuple[AdmittedResponse, np.ndarray]]
    end_s: float = 0.0
    host_s: float = 0.0

    def charged_s(self, latency: LatencyModel) -> float:
        """Return the latency model's seconds of the iteration, as ``solver.timing.timeline`` charges it.

        With mixed prefill the last token of a context counts as one that is decoded.
        """
        batch, kv_tokens = len(self.drawn), sum(s.context_tokens for s in self.drawn)
        fed, joins_s = sum(self.chunks.values()), latency.join_s * len(self.planned.admitted)
        if latency.mixes:
            prompts = fed - sum(s in self.chunks for s in self.drawn)
            return latency.one_iteration_s(batch, kv_tokens, prompts) + joins_s
        prefill_s = float(latency.prefill_s(fed)) if fed else 0.0
        return latency.one_iteration_s(batch, kv_tokens) + prefill_s + joins_s

    def remove(self, gone: Set[SequenceState]) -> None:
        """Remove responses as if they had not been in it."""
        planned = self.planned
        planned.batch, planned.admitted, planned.evicted = (
            [s for s in group if s not in gone] for group in (planned.batch, planned.admitted, planned.evicted)
        )
        self.drawn = {s: output for s, output in self.drawn.items() if s not in gone}
        self.chunks = {s: tokens for s, tokens in self.chunks.items() if s not in gone}


def seed_at(seed: int, tokens: int) -> int:
    """Return the seed by which vLLM, restarted, continues a response of ``seed`` (mod 2 ** 64) after ``tokens`` tokens."""
    return int(np.random.SeedSequence([seed % (1 << 64), tokens]).generate_state(1, np.uint64)[0] >> np.uint64(1))
