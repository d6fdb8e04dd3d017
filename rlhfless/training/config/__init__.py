"""Options of a training run, in sections: task, rollout, algorithm, optimizer, planner and cluster. Needs no torch.

The same classes are the arguments in Python, the YAML file of ``rlhfless train`` and the record in a run's folder.
"""

from rlhfless.training.config.algorithm import AlgorithmConfig, CriticConfig, load_builtin, register
from rlhfless.training.config.errors import LearnerError, ReproducibilityWarning, TrainError, UnsavedWarning
from rlhfless.training.config.files import read_config, to_yaml
from rlhfless.training.config.generation import RolloutConfig, TaskConfig
from rlhfless.training.config.learning import OptimizerConfig
from rlhfless.training.config.scheduling import ClusterConfig, PlannerConfig
from rlhfless.training.config.train import TrainConfig, differences

__all__ = [
    "AlgorithmConfig", "ClusterConfig", "CriticConfig", "LearnerError", "OptimizerConfig", "PlannerConfig",
    "ReproducibilityWarning", "RolloutConfig", "TaskConfig", "TrainConfig", "TrainError", "UnsavedWarning", "differences",
    "read_config", "register", "to_yaml",
]  # fmt: skip

load_builtin()
