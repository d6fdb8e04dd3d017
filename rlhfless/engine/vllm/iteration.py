"""One iteration that vLLM has computed: the planned batch, and what each response got; and a response as vLLM is given it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlhfless.engine.common.batch_scheduler import NextBatch
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.vllm.kv_blocks import BlocksKV


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
    """

    name: str
    ids: list[int]
    seed: int
    tokens: int
    forced: bool
    kv: BlocksKV | None = None
    prompt_tokens: int = 0
    history: Sequence[np.ndarray] = ()


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
    """

    planned: NextBatch[SequenceState]
    drawn: dict[SequenceState, StepOutput]
    chunks: dict[SequenceState, int]
    end_s: float = 0.0

    def remove(self, gone: Set[SequenceState]) -> None:
        """Remove responses as if they had not been in it."""
        planned = self.planned
        planned.batch, planned.admitted, planned.evicted = (
            [s for s in group if s not in gone] for group in (planned.batch, planned.admitted, planned.evicted)
        )
        self.drawn = {s: output for s, output in self.drawn.items() if s not in gone}
        self.chunks = {s: tokens for s, tokens in self.chunks.items() if s not in gone}
