"""RLOO: REINFORCE with the mean of a prompt's other responses as baseline (Ahmadian et al. 2024, arXiv:2402.14740).

    r_i  = reward_i - kl_coef sum_t (log p_old - log p_reference)_it
    A_i  = r_i - mean of r_j over the other judged responses j to the prompt
    loss = mean_i -min(w_i A_i, clip(w_i, 1 - low, 1 + high) A_i)        with w_i = p_new(response i) / p_old(response i)

A response is one action: its ratio is the product of its tokens' ratios. The arithmetic is that of TRL's ``RLOOTrainer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from rlhfless.training.config.algorithm import AlgorithmConfig, log_ratios, register

if TYPE_CHECKING:
    from torch import Tensor


@register
class RlooConfig(AlgorithmConfig):
    """RLOO. Its losses are per response, so they are averaged over responses."""

    compares_responses: ClassVar[bool] = True
    kl_in: ClassVar[Literal["loss", "reward"]] = "reward"

    name: Literal["rloo"] = "rloo"
    loss_aggregation: Literal["sequence"] = "sequence"
    """Average losses per response (sequence), as its ratio is one number."""

    def advantages(self, rewards: np.ndarray, group_of: np.ndarray) -> np.ndarray:
        from rlhfless.training.algorithms.advantages import flat_groups

        _, group = np.unique(group_of, return_inverse=True)
        judged = ~np.isnan(rewards)
        others = np.maximum(np.bincount(group, judged)[group] - 1, 1)
        mean_of_others = (np.bincount(group, np.where(judged, rewards, 0.0))[group] - rewards) / others
        without = ~judged | flat_groups(rewards, group)[group]  # alone, or the others' mean is the reward up to rounding
        return np.where(without, 0.0, rewards - mean_of_others)

    def token_loss(self, new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        log_ratio = log_ratios(new, old, mask).sum(1, keepdim=True)
        return self.clipped_loss(log_ratio, advantages, mask)
