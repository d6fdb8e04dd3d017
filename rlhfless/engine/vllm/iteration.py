"""One iteration that vLLM has computed: the batch, what joined and left, and what each response got."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.vllm.adapter import StepOutput


@dataclass(eq=False)
class Iteration:
    """An iteration that vLLM has computed.

    Attributes:
        batch: in admission order, newly admitted last. evicted: youngest first. kv_tokens: of the batch at its start.
        drawn: output of each response; a response without an entry is still being prefilled.
        chunks: of each response with missing context, the tokens of it that were fed.
    """

    start_s: float
    batch: list[SequenceState]
    kv_tokens: int
    admitted: list[SequenceState]
    evicted: list[SequenceState]
    end_s: float = 0.0
    drawn: dict[SequenceState, StepOutput] = field(default_factory=dict)
    chunks: dict[SequenceState, int] = field(default_factory=dict)
