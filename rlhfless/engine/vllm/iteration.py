"""One iteration that vLLM has computed: the batch, what joined and left, and what each response got."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhfless.engine.vllm.adapter import StepOutput
from rlhfless.engine.vllm.sequence import VllmSequenceState


@dataclass(eq=False)
class Iteration:
    """An iteration that vLLM has computed.

    Attributes:
        batch: in admission order, newly admitted last. evicted: youngest first. kv_tokens: of the batch at its start.
        drawn: output of each response; a response without an entry is still being prefilled.
        chunks: of each response with missing context, the tokens of it that were fed.
    """

    start_s: float
    batch: list[VllmSequenceState]
    kv_tokens: int
    admitted: list[VllmSequenceState]
    evicted: list[VllmSequenceState]
    end_s: float = 0.0
    drawn: dict[VllmSequenceState, StepOutput] = field(default_factory=dict)
    chunks: dict[VllmSequenceState, int] = field(default_factory=dict)
