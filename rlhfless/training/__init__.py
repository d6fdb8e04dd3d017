"""Training: the trainer, tasks and rewards, algorithms, and a tiny model with its warm-up.

Importing this package is fast; torch and transformers are loaded with the first name that needs them.
"""

from __future__ import annotations

from rlhfless.errors import missing_extra
from rlhfless.lazy_names import lazy_names

_MODULE_OF = {
    "AlgorithmConfig": "training.config",
    "ArithmeticProblem": "training.tasks.arithmetic",
    "ArithmeticTask": "training.tasks.arithmetic",
    "Batch": "training.algorithms.batch",
    "Callback": "training.callbacks",
    "CharTokenizer": "engine.tokenizers.char_tokenizer",
    "ClusterConfig": "training.config",
    "Critic": "training.algorithms.critic",
    "CriticConfig": "training.config",
    "DatasetTask": "training.tasks.dataset",
    "FunctionReward": "training.rewards.combine",
    "GrpoConfig": "training.algorithms.builtin.grpo",
    "Gsm8kTask": "training.tasks.gsm8k",
    "LongPromptWarning": "training.tasks.prompt_limit",
    "OptimizerConfig": "training.config",
    "PlannerConfig": "training.config",
    "PolicyGradient": "training.algorithms.policy_gradient",
    "PpoConfig": "training.algorithms.builtin.ppo",
    "PretrainedTokenizer": "engine.tokenizers.pretrained_tokenizer",
    "PromptLimit": "training.tasks.prompt_limit",
    "Response": "training.rewards.response",
    "RewardError": "training.rewards.response",
    "RewardWarning": "training.problem",
    "Rewards": "training.rewards.combine",
    "RolloutConfig": "training.config",
    "TaskConfig": "training.config",
    "TextProblem": "training.problem",
    "TrainConfig": "training.config",
    "TrainedStep": "training.step_result",
    "UpdateOptions": "training.config.learning",
    "Trainer": "training.loop",
    "WarmUp": "training.models.warmup",
    "gae": "training.algorithms.advantages",
    "group_advantages": "training.algorithms.advantages",
    "load_model": "engine.torch.pretrained",
    "log_ratios": "training.config.algorithm",
    "make_algorithm": "training.algorithms.registry",
    "make_critic": "training.algorithms.critic",
    "make_learner": "training.learner.process_group",
    "make_rewards": "training.rewards.registry",
    "make_task": "training.tasks",
    "read_config": "training.config",
    "reallocate": "training.demonstrations.reallocation",
    "register": "training.config",
    "response_logprobs": "training.logprobs",
    "run_pipelines": "training.demonstrations.pipeline",
    "save_model": "training.models.tiny_model",
    "tiny_qwen2": "training.models.tiny_model",
    "token_logprobs": "training.logprobs",
    "warm_up": "training.models.warmup",
}

__all__ = sorted(_MODULE_OF)

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)


def missing_torch(error: ImportError) -> ImportError:
    """Return the error to raise when torch or transformers is not installed; its message says how to install them."""
    return missing_extra("rlhfless.training", error.name, "torch")
