"""Samples the next token of every row by Gumbel-max (an exponential race), with a separate random stream per response.

The noise for a token depends on (seed, index of the token) alone. So a response depends on weights, prompt and seed, never on
the batch that it happened to be in.

Divide exponential numbers of mean 1 by probabilities: each token has the least quotient with exactly its probability. A race
samples another token only if the winner itself changes. So where rounding changes all probabilities a little (another batch in
bfloat16), far fewer samples change than with inverse-CDF sampling, where all cumulated probabilities shift. A large vocabulary
has two races, one between blocks of tokens and one within the winning block, which needs much less noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhfless.engine.common.sampling import Sampling

ONE_RACE_TOKENS = 256  # up to which a vocabulary has one race


def race_numbers(vocabulary: int) -> int:
    """Return how many numbers a sample needs: one for every token, or one for every block and one for every token of a
    block.
    """
    block = block_tokens(vocabulary)
    return block if block == vocabulary else -(-vocabulary // block) + block


def block_tokens(vocabulary: int) -> int:
    """Return the tokens of a block: a power of two near the root of the vocabulary, or all where one race decides."""
    return vocabulary if vocabulary <= ONE_RACE_TOKENS else 1 << vocabulary.bit_length() // 2


def draw(
    logits: Tensor,
    noise: Tensor | None,
    sampling: Sampling,
    forbidden: Sequence[int] = (),
    forbidden_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample one token per row.

    Args:
        logits: (R, V) float32.
        noise: (R, race_numbers(V)) exponential numbers of mean 1; may be None where the temperature is 0.
        forbidden: tokens that must not be sampled where ``forbidden_rows`` (R,) is true.

    Returns:
        (R,) token ids and (R,) the log-probabilities with which they were sampled: after temperature, filters and the forbidden
        tokens. Where the temperature is 0, they are those of temperature 1 without filters. They are NaN where a logit is NaN.
    """
    scaled = logits / sampling.temperature if sampling.temperature not in (0, 1) else logits
    if forbidden_rows is not None:
        scaled = scaled.clone() if scaled is logits else scaled
        for token in forbidden:
            scaled[:, token].masked_fill_(forbidden_rows, -torch.inf)
    if sampling.temperature > 0:
        assert noise is not None
        scaled = _filtered(scaled, sampling)
        ids = _race(torch.softmax(scaled, -1), noise)
    else:
        ids = scaled.argmax(-1, keepdim=True)
    return ids[:, 0], torch.log_softmax(scaled, -1).gather(-1, ids)[:, 0]


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Return (R, V) logits after the repetition penalty for the (R, n) tokens that each row has seen, as often as it likes."""
    scores = logits.gather(1, seen)
    return logits.scatter(1, seen, torch.where(scores < 0, scores * penalty, scores / penalty))


def _filtered(scaled: Tensor, sampling: Sampling) -> Tensor:
    """Return (R, V) logits, minus infinity where a filter removes a token."""
    if 0 < sampling.top_k < scaled.shape[1]:
        threshold = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
    if sampling.top_p < 1:
        ranked, order = torch.sort(torch.softmax(scaled, -1), dim=-1, descending=True, stable=True)
        out = ranked.cumsum(-1) - ranked >= sampling.top_p
        scaled = scaled.masked_fill(out.scatter(-1, order, out), -torch.inf)
    if sampling.min_p > 0:
        probabilities = torch.softmax(scaled, -1)
        threshold = sampling.min_p * probabilities.amax(-1, keepdim=True)
        scaled = scaled.masked_fill(probabilities < threshold, -torch.inf)
    return scaled


def _race(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Return (R, 1) ids: those with the least number divided by probability."""
    rows, vocabulary = probabilities.shape
    tokens = block_tokens(vocabulary)
    if tokens == vocabulary:
        return (probabilities / noise).argmax(-1, keepdim=True)
    blocks = noise.shape[1] - tokens
    if lacking := blocks * tokens - vocabulary:
        probabilities = F.pad(probabilities, (0, lacking))
    parts = probabilities.view(rows, blocks, tokens)
    block = (parts.sum(-1) / noise[:, :blocks]).argmax(-1, keepdim=True)
    inside = parts.gather(1, block[:, :, None].expand(-1, -1, tokens))[:, 0]
    return block * tokens + (inside / noise[:, blocks:]).argmax(-1, keepdim=True)
