"""Splits responses into micro-batches by token budget, distributes them over learner processes, and right-pads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhfless.scheduling.assignments import largest_differencing
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

PAD_MULTIPLE = 16


def padded_tokens(tokens: int) -> int:
    """``tokens`` rounded up to a multiple of ``PAD_MULTIPLE``."""
    return -(-tokens // PAD_MULTIPLE) * PAD_MULTIPLE


def micro_batches(lengths: Sequence[int], max_tokens_per_micro_batch: int) -> list[list[int]]:
    """Sort rows by length and split them so that no batch has more than ``max_tokens_per_micro_batch`` padded tokens.

    A row longer than the budget gets its own batch. Every row appears exactly once.
    """
    batches: list[list[int]] = []
    for row in np.argsort(np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        # Rows come by growing length, so the new row decides the padded length of the batch.
        if batches and (len(batches[-1]) + 1) * padded_tokens(lengths[row]) <= max_tokens_per_micro_batch:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def micro_batches_by_rank(lengths: Sequence[int], max_tokens_per_micro_batch: int, processes: int) -> list[list[list[int]]]:
    """Return the ``micro_batches`` of every process; token sums are balanced over processes (Karmarkar-Karp).

    All processes get equally many micro-batches, because they compute in lockstep; missing ones are empty.
    """
    if processes == 1:
        return [micro_batches(lengths, max_tokens_per_micro_batch)]
    shares = largest_differencing([padded_tokens(length) for length in lengths], processes) if lengths else []
    batches = [
        [[rows[i] for i in batch] for batch in micro_batches([lengths[i] for i in rows], max_tokens_per_micro_batch)]
        for rows in shares
    ]
    max_batches = max(map(len, batches), default=0)
    return [batch + [[]] * (max_batches - len(batch)) for batch in batches] or [[]] * processes


def right_padded(prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return prompts with their responses as one right-padded batch.

    Returns:
        (B, T) tokens with zeros as padding, and the (B, T - 1) boolean mask of response tokens in the alignment of
        ``token_logprobs``: entry t belongs to token t + 1.
    """
    width = padded_tokens(max(len(p) + len(r) for p, r in zip(prompt_ids, response_ids, strict=True)))
    input_ids = np.zeros((len(prompt_ids), width), dtype=np.int64)
    mask = np.zeros((len(prompt_ids), width - 1), dtype=bool)
    for row, (prompt, response) in enumerate(zip(prompt_ids, response_ids, strict=True)):
        end = len(prompt) + len(response)
        input_ids[row, : len(prompt)] = prompt
        input_ids[row, len(prompt) : end] = response
        mask[row, len(prompt) - 1 : end - 1] = True
    return torch.from_numpy(input_ids), torch.from_numpy(mask)
