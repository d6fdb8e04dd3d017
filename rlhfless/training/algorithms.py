"""Which algorithms there are, and how one is made for a model: the only place that knows all of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithm import Algorithm, one_of
from rlhfless.training.critic import PolicyAndCritic, make_critic
from rlhfless.training.grpo import Grpo, GrpoOptions
from rlhfless.training.ppo import Ppo, PpoOptions

ALGORITHMS = ("grpo", "ppo")


def make_algorithm(
    name: str,
    model: Any,
    *,
    learning_rate: float,
    critic: str = "head",
    critic_learning_rate: float | None = None,
    **options: Any,
) -> Algorithm:
    """An algorithm that trains ``model`` with AdamW, without weight decay.

    Made before the first step, or before a checkpoint is loaded into its ``trained`` and ``optimizer``: the reference of a KL
    penalty and a critic's first weights come from ``model`` as it is now.

    Args:
        name: ``grpo`` or ``ppo``.
        critic: of PPO: ``head``, ``model``, or a folder, see ``make_critic``.
        critic_learning_rate: None takes ``learning_rate``.
        options: of ``GrpoOptions`` or ``PpoOptions``.

    Raises:
        InputError: a name, an option or a value that the algorithm does not know.
    """
    one_of("algorithm", name, ALGORITHMS)
    kind: Any = GrpoOptions if name == "grpo" else PpoOptions
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(options) - known):
        raise InputError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    if name == "grpo":
        return Grpo(model, torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0), GrpoOptions(**options))
    trained = PolicyAndCritic(model, make_critic(model, critic))
    groups = [
        {"params": list(trained.policy.parameters()), "lr": learning_rate},
        {"params": list(trained.critic.parameters()), "lr": critic_learning_rate or learning_rate},
    ]
    return Ppo(trained, torch.optim.AdamW(groups, lr=learning_rate, weight_decay=0.0), PpoOptions(**options))
