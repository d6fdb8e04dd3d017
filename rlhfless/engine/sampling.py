"""Draws the next token of every row; each response has a random stream of its own.

Knows logits and uniform numbers only. The number for a token depends on (seed, index of the token) alone, so a response
depends on weights, prompt and seed, never on the batch it happened to be in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: temperature 0 takes the likeliest; ``top_p`` below 1 keeps the likeliest that reach it."""

    temperature: float = 1.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and 0 < self.top_p <= 1):
            raise ValueError(
                f"temperature is {self.temperature} and top_p is {self.top_p}; "
                "temperature must be at least 0 and top_p above 0 and at most 1"
            )


def uniform_stream(seed: int, tokens: int) -> np.ndarray:
    """Uniform numbers in [0, 1) for tokens 0, 1, ... of the response with this seed: Philox, keyed by the seed and
    counted by the token's index."""
    return np.random.Generator(np.random.Philox(key=seed)).random(tokens)


def draw(
    logits: Tensor, uniforms: Tensor, sampling: Sampling, forbidden: int = -1, forbidden_rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Args:
        logits: (R, V) float32.
        uniforms: (R,) float64.
        forbidden: token that must not be drawn in ``forbidden_rows`` (indices).

    Returns:
        (R,) token ids and (R,) their log-probabilities under the plain softmax of the logits (temperature 1).
    """
    scaled = logits / sampling.temperature if sampling.temperature > 0 else logits.clone()
    if forbidden_rows is not None:
        scaled[forbidden_rows, forbidden] = -torch.inf
    if sampling.temperature > 0:
        ids = _invert(torch.softmax(scaled, -1), uniforms[:, None], sampling.top_p)
    else:
        ids = scaled.argmax(-1, keepdim=True)
    return ids[:, 0], torch.log_softmax(logits, -1).gather(-1, ids)[:, 0]


def _invert(probabilities: Tensor, uniforms: Tensor, top_p: float) -> Tensor:
    """(R, 1) ids: the first token at which the cumulated probability exceeds the uniform number."""
    if top_p < 1:
        ranked, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
        ranked[ranked.cumsum(-1) - ranked >= top_p] = 0.0
        probabilities = probabilities.scatter(-1, order, ranked)
    cumulated = probabilities.cumsum(-1, dtype=torch.float64)
    ids = torch.searchsorted(cumulated, uniforms * cumulated[:, -1:], right=True)
    return ids.clamp_(max=cumulated.shape[1] - 1)
