"""Computes advantages from rewards: relative to a prompt's group (GRPO), or by generalised advantage estimation (PPO).

A NaN reward means that the response could not be judged: it is left out of every mean and has advantage 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None


def group_advantages(rewards: ArrayLike, group_of: ArrayLike, std: str = "population", eps: float = 1e-6) -> np.ndarray:
    """Return the advantage of each response relative to its group, the same for all its tokens: (r - mean(r)) / std(r).

    DeepSeekMath (Shao et al. 2024, arXiv:2402.03300), section 4.1.2.

    Args:
        rewards: (R,) rewards; NaN where a response could not be judged.
        group_of: (R,) group (prompt) of each response, any integers or strings; groups may be ragged.
        std: the divisor: the ``population`` standard deviation of the group, that of a ``sample`` (n - 1; as in TRL,
            with eps 1e-4), or ``none``, as in Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).
        eps: keeps the division finite; a group of equal rewards has advantage exactly 0.
    """
    reward = np.asarray(rewards, dtype=float)
    judged = ~np.isnan(reward)
    reward = np.where(judged, reward, 0.0)
    groups, group = np.unique(np.asarray(group_of), return_inverse=True)
    count = np.maximum(np.bincount(group, judged, len(groups)), 1)
    centred = np.where(judged, reward - (np.bincount(group, reward, len(groups)) / count)[group], 0.0)
    centred[flat_groups(rewards, group)[group]] = 0.0  # the mean of equal numbers can differ from them in the last bit
    if std == "none":
        return centred
    degrees = count if std == "population" else np.maximum(count - 1, 1)
    deviation = np.sqrt(np.bincount(group, centred**2, len(groups)) / degrees)
    advantages: np.ndarray = centred / (deviation[group] + eps)
    return advantages


def flat_groups(rewards: ArrayLike, group_of: ArrayLike) -> np.ndarray:
    """Return (groups,) True where all judged rewards of a group are equal (or none is judged), so it has no gradient."""
    reward = np.asarray(rewards, dtype=float)
    groups, group = np.unique(np.asarray(group_of), return_inverse=True)
    lowest, highest = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.fmin.at(lowest, group, reward)
    np.fmax.at(highest, group, reward)
    flat: np.ndarray = lowest >= highest
    return flat


def token_rewards(scores: Tensor, mask: Tensor, kl: Tensor | None = None, kl_coef: float = 0.0) -> Tensor:
    """Return the reward of every token: -kl_coef kl_t, plus the response's reward at its last token.

    InstructGPT (Ouyang et al. 2022, arXiv:2203.02155), eq. (2), with the divergence estimated per token.

    Args:
        scores: (B,) rewards of the responses.
        mask: (B, T) True on response tokens, which are contiguous in a row.
        kl: (B, T) log-probability under the weights that generated minus that under the reference.

    Returns:
        (B, T), 0 outside ``mask``.
    """
    rewards = torch.zeros(mask.shape, device=mask.device) if kl is None else torch.where(mask, -kl_coef * kl, 0.0)
    last = mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))
    return rewards + last * scores[:, None]


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return generalised advantage estimates (Schulman et al. 2015, arXiv:1506.02438, eq. 16).

        delta_t = r_t + gamma V_{t+1} - V_t,    A_t = delta_t + gamma lam A_{t+1},    return_t = A_t + V_t

    A response ends with its last token, also if it was truncated: the value after it is 0.

    Args:
        rewards, values: (B, T) of the tokens; ``values[:, t]`` is the expected reward before token t is drawn.
        mask: (B, T) True on response tokens, which are contiguous in a row.

    Returns:
        Advantages and returns, (B, T) each, 0 outside ``mask``.
    """
    rewards, values = torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0)
    delta = rewards + gamma * torch.nn.functional.pad(values[:, 1:], (0, 1)) - values
    advantages, following = torch.zeros_like(delta), torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + gamma * lam * following
        advantages[:, t] = following
    advantages = torch.where(mask, advantages, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)


def whitening(values: Tensor, eps: float = 1e-8) -> tuple[Tensor, Tensor]:
    """Return the mean and factor that give (N,) numbers mean 0 and sample variance 1: ``(values - mean) * factor``.

    The factor of a single number is 1, so it becomes 0.
    """
    mean = values.mean()
    if len(values) < 2:
        return mean, torch.ones_like(mean)
    return mean, torch.rsqrt((values - mean).square().sum() / (len(values) - 1) + eps)
