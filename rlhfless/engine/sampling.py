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
    """How tokens are drawn, with transformers' filters in transformers' order.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only the k likeliest tokens, 0 for all of them (and those that are as likely as the k-th).
        top_p: of these, only the likeliest that together reach this share.
        min_p: of these, only those at least this many times as likely as the likeliest.

    Raises:
        ValueError: a value outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, wanted, good in (
            ("temperature", "a finite number of 0 or more", 0 <= self.temperature < np.inf),
            ("top_p", "above 0 and at most 1", 0 < self.top_p <= 1),
            ("top_k", "a whole number of 0 or more", isinstance(self.top_k, int) and self.top_k >= 0),
            ("min_p", "at least 0 and at most 1", 0 <= self.min_p <= 1),
        ):
            if not good:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {wanted}")


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
        forbidden: token that must not be drawn where ``forbidden_rows`` (R,) is true.

    Returns:
        (R,) token ids and (R,) their log-probabilities under the plain softmax of the logits (temperature 1); the latter are
        not numbers where a logit is not.
    """
    scaled = logits / sampling.temperature if sampling.temperature > 0 else logits.clone()
    if forbidden_rows is not None:
        scaled[:, forbidden].masked_fill_(forbidden_rows, -torch.inf)
    if sampling.temperature > 0:
        ids = _invert(_filtered(scaled, sampling), uniforms[:, None])
    else:
        ids = scaled.argmax(-1, keepdim=True)
    return ids[:, 0], torch.log_softmax(logits, -1).gather(-1, ids)[:, 0]


def _filtered(scaled: Tensor, sampling: Sampling) -> Tensor:
    """(R, V) probabilities, not normalised, zero where a filter takes a token out."""
    if 0 < sampling.top_k < scaled.shape[1]:
        least = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    probabilities = torch.softmax(scaled, -1)
    if sampling.top_p < 1:
        ranked, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
        ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= sampling.top_p, 0.0)
        probabilities = probabilities.scatter(-1, order, ranked)
    if sampling.min_p > 0:
        least = sampling.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    return probabilities


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """(R, 1) ids: the first token at which the cumulated probability exceeds the uniform number."""
    cumulated = probabilities.cumsum(-1, dtype=torch.float64)
    ids = torch.searchsorted(cumulated, uniforms * cumulated[:, -1:], right=True)
    return ids.clamp_(max=cumulated.shape[1] - 1)


def signals(logits: Tensor, eos_id: int) -> tuple[Tensor, Tensor]:
    """(R,) log-probability of the end of text and (R,) entropy in nats, both before any filter: what a predictor of the
    remaining length reads while a response is decoded."""
    logprobs = torch.log_softmax(logits, -1)
    return logprobs[:, eos_id], -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
