"""GRPO: advantages relative to a prompt's group (DeepSeekMath, Shao et al. 2024, arXiv:2402.03300).

    loss = sum_i weight_i sum_t [ -min(w A_i, clip(w, 1 - low, 1 + high) A_i) + kl_coef k3(new, reference) ]_it / divisor

eq. (3) with the penalty of eq. (4); weights and divisor by ``losses.loss_weights``, A by ``advantages.group_advantages``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from rlhfless.training.config.algorithm import AlgorithmConfig, register

AdvantageStd = Literal["population", "sample", "none"]


@register
class GrpoConfig(AlgorithmConfig):
    """GRPO. ``eps`` keeps the division by a deviation finite."""

    compares_responses: ClassVar[bool] = True
    eps: ClassVar[float] = 1e-6

    name: Literal["grpo"] = "grpo"
    advantage_std: AdvantageStd = "population"
    """Standard deviation that advantages are divided by: population, sample (n - 1), or none as in Dr. GRPO. See
    ``algorithms.advantages.group_advantages``."""

    def advantages(self, rewards: np.ndarray, group_of: np.ndarray) -> np.ndarray:
        from rlhfless.training.algorithms.advantages import group_advantages

        return group_advantages(rewards, group_of, self.advantage_std, self.eps)
