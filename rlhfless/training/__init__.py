"""Training on real responses: the trainer, tasks and rewards, the tiny model and its warm-up, GRPO and PPO.

Importing this package loads nothing heavy; torch and transformers are loaded with the first name that needs them.
"""

from __future__ import annotations

import importlib
from typing import Any

from rlhfless.errors import missing_extra

_MODULE_OF = {
    "ArithmeticTask": "tasks.arithmetic",
    "ArithmeticProblem": "tasks.arithmetic",
    "CharTokenizer": "models.char_tokenizer",
    "tiny_qwen2": "models.tiny_model",
    "save_model": "models.tiny_model",
    "load_model": "models.tiny_model",
    "WarmUp": "models.warmup",
    "warm_up": "models.warmup",
    "token_logprobs": "logprobs",
    "response_logprobs": "logprobs",
    "make_task": "tasks",
    "make_rewards": "rewards.registry",
    "Batch": "algorithms.batch",
    "Callback": "callbacks",
    "TrainConfig": "config",
    "TaskConfig": "config",
    "RolloutConfig": "config",
    "GrpoConfig": "config",
    "PpoConfig": "config",
    "OptimizerConfig": "config",
    "PlannerConfig": "config",
    "ClusterConfig": "config",
    "Trainer": "loop",
    "TrainedStep": "step_result",
    "make_loggers": "loggers",
    "make_algorithm": "algorithms.registry",
    "make_learner": "learner.process_group",
    "Grpo": "algorithms.grpo",
    "GrpoOptions": "config.learning",
    "Ppo": "algorithms.ppo",
    "PpoOptions": "config.learning",
    "Critic": "algorithms.critic",
    "make_critic": "algorithms.critic",
    "group_advantages": "algorithms.advantages",
    "gae": "algorithms.advantages",
}

__all__ = sorted(_MODULE_OF)


def missing_torch(error: ImportError) -> ImportError:
    """Return the error to raise when torch or transformers is not installed; its message says how to install them."""
    return missing_extra("rlhfless.training", error.name, "torch")


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
