"""Lets vLLM's CPU build verify drafts with the temperature and the filters of each response."""

from __future__ import annotations

from typing import Any


def repair_on_cpu() -> None:
    """Repair two functions of the CPU build of vLLM 0.32 that verify drafts.

    One repeats a value of each response for each of its drafted tokens. It fills a copy of its result, so drafted tokens are
    verified at an arbitrary temperature. The other applies temperature and filters. It fails with ``top_k`` where no response
    has a draft.
    """
    from vllm.v1.sample import rejection_sampler

    constrain = rejection_sampler.apply_sampling_constraints

    def constrained(logits: Any, *arguments: Any) -> Any:
        return constrain(logits, *arguments) if len(logits) else logits

    rejection_sampler.expand_batch_to_tokens = repeated
    rejection_sampler.apply_sampling_constraints = constrained


def repeated(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: float = 0, replace_to: float = 0) -> Any:
    """Return the values of responses once for each of their drafted tokens.

    Args:
        x: (B,) a value per response. cu_num_tokens: (B,) drafted tokens up to and including each response.
        num_tokens: drafted tokens of all responses. replace_from, replace_to: a value that is replaced, and by what.

    Returns:
        (num_tokens,) values.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)
