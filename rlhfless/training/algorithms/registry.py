"""Makes an algorithm for a model by its name."""

from __future__ import annotations

from typing import Any

from rlhfless.errors import InputError
from rlhfless.training.algorithms.base import Algorithm, frozen_copy
from rlhfless.training.algorithms.critic import PolicyAndCritic, make_critic
from rlhfless.training.algorithms.grpo import Grpo
from rlhfless.training.algorithms.lora import is_adapter, with_adapters
from rlhfless.training.algorithms.optimizer import make_optimizer
from rlhfless.training.algorithms.ppo import Ppo
from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.config.learning import GrpoOptions, PpoOptions
from rlhfless.training.config.train import ALGORITHMS
from rlhfless.training.offload import to_cpu


def make_algorithm(
    name: str,
    model: Any,
    *,
    learning_rate: float,
    critic: str = "head",
    critic_learning_rate: float | None = None,
    optimizer: str = "adamw",
    weight_decay: float = 0.0,
    seed: int = 0,
    ranks: Ranks = ONE,
    **options: Any,
) -> Algorithm:
    """Return an algorithm that trains ``model``.

    With ``lora_rank`` the trained policy is another object, which starts as a copy of ``model``; ``lora.merge_into`` merges the
    adapters back into it. Call it before the first step, or before a checkpoint is loaded into its ``trained`` and
    ``optimizer``. The reference of a KL penalty and a critic's first weights are copies of the current ``model``.

    Args:
        name: ``grpo`` or ``ppo``.
        critic: of PPO: ``head``, ``model``, or a folder, see ``make_critic``.
        critic_learning_rate: None takes ``learning_rate``; 0 leaves the critic unchanged.
        optimizer, weight_decay: see ``make_optimizer``.
        seed: of the first weights of adapters.
        ranks: the learner processes; they share the weights of ``model``, critic and reference.
        options: of ``GrpoOptions`` or ``PpoOptions``.

    Raises:
        InputError: see ``algorithm_options`` and ``make_optimizer``. InputError, TrainError: see ``make_critic``.
    """
    validated = algorithm_options(name, **options)
    reference, policy = None, model
    if validated.lora_rank is not None:
        base = frozen_copy(model)
        policy, reference = with_adapters(base, validated, seed), base if validated.kl_coef else None
    elif validated.kl_coef:
        offloads = validated.offload_reference
        frozen = frozen_copy(model)
        frozen = to_cpu(frozen) if offloads and ranks.mesh is None else frozen
        reference = ranks.shard(frozen, validated.learner_dtype, offloads=offloads)
    if validated.gradient_checkpointing:
        recompute_layers(policy)
    if isinstance(validated, GrpoOptions):
        trained = ranks.shard(policy, validated.learner_dtype)
        groups = [{"params": _trained(trained), "lr": learning_rate}]
        return Grpo(trained, make_optimizer(groups, optimizer, weight_decay, ranks.count), validated, reference, ranks)
    both = PolicyAndCritic(policy, make_critic(model, critic))
    if validated.gradient_checkpointing and both.critic.backbone is not None:
        recompute_layers(both.critic.backbone)
    both = ranks.shard(both, validated.learner_dtype)
    groups = [
        {"params": _trained(both.policy), "lr": learning_rate},
        {
            "params": list(both.critic.parameters()),
            "lr": learning_rate if critic_learning_rate is None else critic_learning_rate,
        },
    ]
    return Ppo(both, make_optimizer(groups, optimizer, weight_decay, ranks.count), validated, reference, ranks)


def _trained(policy: Any) -> list[Any]:
    """Return the weights that an optimizer changes: those of adapters, or all."""
    adapters = [parameter for name, parameter in policy.named_parameters() if is_adapter(name)]
    return adapters or list(policy.parameters())


def recompute_layers(model: Any) -> None:
    """Let a transformers model recompute each of its layers in backward passes (gradient checkpointing), while it trains.

    Raises:
        InputError: its class cannot.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        kind = type(model).__name__
        raise InputError(f"gradient_checkpointing is True, but {kind} of transformers cannot recompute layers; leave it out")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def algorithm_options(name: str, **options: Any) -> GrpoOptions | PpoOptions:
    """Return the options of a named algorithm.

    Raises:
        InputError: the name, an option or a value is unknown.
    """
    if name not in ALGORITHMS:
        raise InputError(f"algorithm is {name!r}; choose from {', '.join(ALGORITHMS)}")
    kind: Any = GrpoOptions if name == "grpo" else PpoOptions
    names = kind.model_fields.keys() - {"name"}
    if unknown := sorted(set(options) - names):
        raise InputError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(sorted(names))}")
    validated: GrpoOptions | PpoOptions = kind(**options)
    return validated
