"""GSPO: GRPO with one ratio per response, the geometric mean of its tokens' (Zheng et al. 2025, arXiv:2507.18071).

    loss = mean_i -min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)        with s_i = exp(mean_t log w_it),   eq. (5) and (7)

The arithmetic is that of TRL's ``GRPOConfig(importance_sampling_level="sequence", loss_type="grpo")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlhfless.training.algorithms.builtin.grpo import GrpoConfig
from rlhfless.training.config.algorithm import Aggregation, log_ratios, register
from rlhfless.training.config.section import NotNegativeOrInfinite, Share

if TYPE_CHECKING:
    from torch import Tensor


@register
class GspoConfig(GrpoConfig):
    """GSPO. Advantages and penalty are GRPO's; the ratios of responses are much closer to 1 than those of tokens."""

    name: Literal["gspo"] = "gspo"  # type: ignore[assignment]
    loss_aggregation: Aggregation = "sequence"
    """Average losses per response (sequence), or weight responses by their tokens (token, constant). See
    ``losses.loss_weights``."""
    clip_ratio_low: Share = 3e-4
    """Clip ratios of responses below 1 minus this."""
    clip_ratio_high: NotNegativeOrInfinite = 4e-4
    """Clip ratios of responses above 1 plus this."""

    def token_loss(self, new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio = log_ratios(new, old, mask).sum(1, keepdim=True) / tokens
        return self.clipped_loss(log_ratio, advantages, mask)
