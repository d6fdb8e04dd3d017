"""Makes what trains a model with a registered algorithm."""

from __future__ import annotations

from typing import Any

from rlhfless.errors import InputError
from rlhfless.training.algorithms.base import frozen_copy
from rlhfless.training.algorithms.critic import PolicyAndCritic, make_critic
from rlhfless.training.algorithms.lora import is_adapter, with_adapters
from rlhfless.training.algorithms.optimizer import make_optimizer
from rlhfless.training.algorithms.policy_gradient import PolicyGradient
from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.config.algorithm import AlgorithmConfig, CriticConfig, algorithm_named, name_of
from rlhfless.training.config.learning import OF_LEARNER, UpdateOptions
from rlhfless.training.offload import to_cpu


def make_algorithm(
    algorithm: str | type[AlgorithmConfig], model: Any, *, seed: int = 0, ranks: Ranks = ONE, **options: Any
) -> PolicyGradient:
    """Return what trains ``model`` with an algorithm.

    With ``lora_rank`` the trained policy is another object, which starts as a copy of ``model``; ``lora.merge_into`` merges the
    adapters back into it. Call it before the first step, or before a checkpoint is loaded into its ``trained`` and
    ``optimizer``. The reference of a KL penalty and a critic's first weights are copies of the current ``model``.

    Args:
        algorithm: the name of a registered one, or its class.
        seed: of the first weights of adapters.
        ranks: the learner processes; they share the weights of ``model``, critic and reference.
        options: of the algorithm, and of ``UpdateOptions``, whose ``name`` is ``optimizer`` here.

    Raises:
        InputError: see ``algorithm_options``. InputError, TrainError: see ``make_critic``.
    """
    config, update = algorithm_options(algorithm, **options)
    reference, policy = None, model
    if update.lora_rank is not None:
        base = frozen_copy(model)
        policy, reference = with_adapters(base, update, seed), base if config.kl_coef else None
    elif config.kl_coef:
        frozen = frozen_copy(model)
        frozen = to_cpu(frozen) if update.offload_reference and ranks.mesh is None else frozen
        reference = ranks.shard(frozen, update.learner_dtype, offloads=update.offload_reference)
    if update.gradient_checkpointing:
        recompute_layers(policy)
    trained, rate = policy, update.learning_rate
    if isinstance(config, CriticConfig):
        trained = PolicyAndCritic(policy, make_critic(model, config.critic))
        if update.gradient_checkpointing and trained.critic.backbone is not None:
            recompute_layers(trained.critic.backbone)
    trained = ranks.shard(trained, update.learner_dtype)
    groups = [{"params": _trained(policy), "lr": rate}]
    if isinstance(config, CriticConfig):
        of_critic = rate if config.critic_learning_rate is None else config.critic_learning_rate
        groups.append({"params": list(trained.critic.parameters()), "lr": of_critic})
    optimizer = make_optimizer(groups, update.name, update.weight_decay)
    return PolicyGradient(config, trained, optimizer, update, reference, ranks)


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


def algorithm_options(algorithm: str | type[AlgorithmConfig], **options: Any) -> tuple[AlgorithmConfig, UpdateOptions]:
    """Return an algorithm with its options, and those of its updates.

    Raises:
        InputError: the name, an option or a value is unknown.
    """
    kind = algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm
    own = kind.model_fields.keys() - {"name"}
    shared = UpdateOptions.model_fields.keys() - {"name", *OF_LEARNER} | {"optimizer"}
    if unknown := sorted(set(options) - own - shared):
        raise InputError(f"{name_of(kind)} has no option {', '.join(unknown)}; it has {', '.join(sorted(own | shared))}")
    update = {"name" if key == "optimizer" else key: value for key, value in options.items() if key in shared}
    return kind(**{key: value for key, value in options.items() if key in own}), UpdateOptions(**update)
