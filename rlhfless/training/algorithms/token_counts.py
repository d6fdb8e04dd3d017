"""Counts the tokens of an algorithm's forward and backward passes, and the seconds of passes before the first update.

Passes before the first update (reference, old log-probabilities, values) belong to preparation, whenever they are computed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.batch import Part

BACKWARD = 2
"""A backward pass takes as much as so many forward ones (RLHFuse, arXiv:2409.13221)."""


def whole_tokens(parts: Sequence[Part]) -> float:
    """Return the prompt and response tokens of parts; padding does not count."""
    return float(sum(_tokens(part) for part in parts))


def pass_tokens(tokens: float, prepare: int, learn: int) -> dict[str, float]:
    """Return ``prepare_pass_tokens`` and ``learn_pass_tokens``: tokens of forward passes; a backward pass counts as
    ``BACKWARD`` forward passes.

    Args:
        tokens: of the responses that are learned from, their prompts included.
        prepare: number of models that compute every token before the first update.
        learn: number of models that are trained on every token, over all updates.
    """
    return {"prepare_pass_tokens": prepare * tokens, "learn_pass_tokens": (1 + BACKWARD) * learn * tokens}


@contextlib.contextmanager
def counted_seconds(sums: dict[str, float], part: Part) -> Iterator[None]:
    """Context around passes over a part of a batch; adds their seconds to ``prepare_seconds``."""
    on_gpu = part.input_ids.is_cuda
    if on_gpu:
        torch.cuda.synchronize(part.input_ids.device)
    began = time.perf_counter()
    yield
    if on_gpu:
        torch.cuda.synchronize(part.input_ids.device)
    sums["prepare_seconds"] += time.perf_counter() - began


def _tokens(part: Part) -> int:
    """Prompt and response tokens of a part: entry t of the mask belongs to token t + 1."""
    last = part.mask * torch.arange(1, part.mask.shape[1] + 1, device=part.mask.device)
    return int((last.amax(1) + part.mask.any(1)).sum())
