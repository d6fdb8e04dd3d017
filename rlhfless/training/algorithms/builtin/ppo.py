"""PPO with a critic (Schulman et al. 2017, arXiv:1707.06347; for language models Ouyang et al. 2022, arXiv:2203.02155).

r_t  = -kl_coef (log p_old - log p_reference)_t  + [t is the last token] reward         ``advantages.token_rewards``
A, R = GAE(r, V_old; gamma, lam), A whitened over the batch                               ``advantages.gae``
loss = sum_i weight_i sum_t -min(w A, clip(w, 1 - low, 1 + high) A)_it / divisor  +  vf_coef mean_t value_loss(V, R)_t
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlhfless.training.config.algorithm import CriticConfig, register
from rlhfless.training.config.section import Share

if TYPE_CHECKING:
    from torch import Tensor


@register
class PpoConfig(CriticConfig):
    """PPO and its critic."""

    name: Literal["ppo"] = "ppo"
    gamma: Share = 1.0
    """Discount rewards by this factor per token."""
    lam: Share = 1.0
    """Lambda of the advantages (GAE). The reward comes with the last token: below 1, the first tokens of a long response hardly
    receive it until the critic has learned to predict it."""

    def token_advantages(self, rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        from rlhfless.training.algorithms.advantages import gae

        return gae(rewards, values, mask, self.gamma, self.lam)
