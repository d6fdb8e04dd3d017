"""Options of a training run, in sections: task, rollout, algorithm, optimizer, planner and cluster. Needs no torch.

The command line is made from these classes: the first sentence under a field is its help text.
"""

from rlhfless.training.config.errors import LearnerError, ReproducibilityWarning, TrainError, UnsavedWarning
from rlhfless.training.config.generation import RolloutConfig, TaskConfig
from rlhfless.training.config.learning import GrpoConfig, OptimizerConfig, PpoConfig
from rlhfless.training.config.scheduling import ClusterConfig, PlannerConfig
from rlhfless.training.config.train import TrainConfig, differences

__all__ = [
    "ClusterConfig", "GrpoConfig", "LearnerError", "OptimizerConfig", "PlannerConfig", "PpoConfig", "ReproducibilityWarning",
    "RolloutConfig", "TaskConfig", "TrainConfig", "TrainError", "UnsavedWarning", "differences",
]  # fmt: skip
