"""One iteration that vLLM has computed: the planned batch, and what each response got."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

from rlhfless.engine.common.batch_scheduler import NextBatch
from rlhfless.engine.common.sequence import SequenceState


class StepOutput(NamedTuple):
    """Output of an iteration for one response.

    Attributes:
        name: of the response, as it was added.
        ids, logprobs: its new tokens, and the log-probabilities with which they were sampled.
        finished: whether vLLM will sample no more tokens for it.
    """

    name: str
    ids: list[int]
    logprobs: list[float]
    finished: bool


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
