"""Penalties of tokens, losses of a critic's values, and the weights with which token losses are summed over a batch.

Padding may contain any number, also infinities: it is replaced before anything is computed from it, so no gradient becomes NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None


def loss_weights(kind: str, response_tokens: Sequence[int], counted: np.ndarray) -> np.ndarray:
    """Return the (R,) weights that sum token losses to one number: sum over responses i of weight_i sum_t loss_it / divisor.

    - ``token``: every counted token has the same weight (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 8);
    - ``sequence``: the mean of every response first (DeepSeekMath, eq. 3), which favours short ones;
    - ``constant``: the sum divided by responses x max_response_tokens, which favours none (Dr. GRPO, Liu et al. 2025).

    A response's weight depends on nothing but itself, so a batch may be added up in any parts; see ``loss_divisor``.

    Args:
        response_tokens: (R,) tokens of each response.
        counted: (R,) False where a response is left out of the loss; it still is one of the R responses.
    """
    if kind == "sequence":
        weights: np.ndarray = counted / np.asarray(response_tokens, dtype=float)
        return weights
    return counted.astype(float)


def loss_divisor(kind: str, counted_tokens: float, responses: int, max_response_tokens: int | None = None) -> float:
    """Return the divisor of the whole batch that belongs to ``loss_weights``.

    Args:
        counted_tokens: tokens of all counted responses. responses: number of all responses.

    Raises:
        InputError: ``constant`` without the longest response allowed.
    """
    if kind == "token":
        return max(counted_tokens, 1.0)
    if kind == "sequence":
        return float(responses)
    if max_response_tokens is None:
        raise InputError("loss_aggregation 'constant' divides by the longest response allowed; give max_response_tokens")
    return float(responses * max_response_tokens)


def k3(logprobs: Tensor, other_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return a (B, T) estimate of a divergence from samples, never negative: e^d - d - 1 (DeepSeekMath, eq. 4; Schulman's k3).

    With d = other - own: over tokens drawn from the distribution of ``logprobs`` its mean is KL(own || other). 0 outside
    ``mask``.
    """
    difference = torch.where(mask, other_logprobs - logprobs, 0.0)
    return difference.exp() - difference - 1


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None) -> tuple[Tensor, float]:
    """Return half the squared error of the critic, token by token; a value is clipped to within ``clip`` of the old one.

    1/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2), as in OpenAI's ``baselines`` (ppo2) and TRL.

    Returns:
        (B, T) losses, 0 outside ``mask``, and the number of tokens whose loss is the clipped one.
    """
    values = torch.where(mask, values, 0.0)
    error = (values - returns).square()
    if clip is None:
        return torch.where(mask, 0.5 * error, 0.0), 0.0
    held = (values.clamp(old_values - clip, old_values + clip) - returns).square()
    return torch.where(mask, 0.5 * torch.maximum(error, held), 0.0), float((mask & (held > error)).sum())


def truncated_importance(recomputed: Tensor, engine: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return (B, T) factors min(p_learner / p_engine, cap) that correct for engine probabilities that differ from the
    learner's.

    Token-level truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training"). Both are under the weights that generated; the factors carry no gradient. 1 outside ``mask``.
    """
    return torch.where(mask, recomputed - engine, 0.0).exp().clamp(max=cap).detach()
