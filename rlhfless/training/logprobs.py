"""Computes the log-probabilities of given tokens under a model, for padded batches.

Padding never changes a number. Right padding is hidden by the causal mask, left padding is masked, and positions are counted
from the first real token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.micro_batches import micro_batches, right_padded


def token_logprobs(model: Any, input_ids: Tensor, attention_mask: Tensor | None = None, *, temperature: float = 1.0) -> Tensor:
    """Return the log-probability of every token given the tokens before it.

    Args:
        model: a causal language model of transformers.
        input_ids: (B, T) tokens.
        attention_mask: (B, T), 1 on real tokens and 0 on padding, which may be left or right. None means that padding, if any,
            is on the right.
        temperature: the logits are divided by it, as in sampling.

    Returns:
        (B, T - 1): entry t belongs to token t + 1. Entries of padding, and of the token after left padding, mean nothing.
    """
    if attention_mask is None:
        logits = model(input_ids=input_ids, use_cache=False).logits
    else:
        positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        logits = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False).logits
    return logits_to_logprobs(logits, input_ids, temperature)


def logits_to_logprobs(logits: Tensor, input_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Return (B, T - 1) log-probabilities of the tokens (B, T) from the logits (B, T, V), as in ``token_logprobs``."""
    logits = logits[:, :-1].float()
    if temperature != 1.0:
        logits = logits / temperature
    return -torch.nn.functional.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:], reduction="none")


@torch.no_grad()
def response_logprobs(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    response_ids: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    max_tokens_per_micro_batch: int = 8192,
) -> list[np.ndarray]:
    """Return the log-probabilities of each response's tokens after its prompt, one float32 array per response."""
    result: list[np.ndarray] = [np.zeros(0, np.float32)] * len(response_ids)
    for rows in micro_batches(
        [len(p) + len(r) for p, r in zip(prompt_ids, response_ids, strict=True)], max_tokens_per_micro_batch
    ):
        input_ids, mask = right_padded([prompt_ids[i] for i in rows], [response_ids[i] for i in rows])
        values = token_logprobs(model, input_ids.to(model.device), temperature=temperature).cpu()
        for row, value, row_mask in zip(rows, values, mask, strict=True):
            result[row] = value[row_mask].numpy()
    return result
