"""Options of learning in pipeline stages, as far as they are known before there is a model."""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.learning import GrpoConfig, OptimizerConfig, PpoConfig
from rlhfless.training.config.scheduling import ClusterConfig


@dataclass(frozen=True)
class PipelineOptions:
    """How models are trained in stages.

    Attributes:
        stages: of the actor, each on a device of its own. critic_stages: of each copy of the critic; None without a critic.
        micro_batches: of a batch. schedule: ``fused``, ``serial`` or ``1f1b``.

    Raises:
        TrainError: the numbers do not fit each other.
    """

    stages: int
    critic_stages: int | None
    micro_batches: int
    schedule: str = "fused"

    def __post_init__(self) -> None:
        if self.critic_stages is None:
            return
        if self.schedule == "1f1b":
            raise TrainError("pipeline_schedule is '1f1b', which has one model, but PPO trains two; choose 'fused' or 'serial'")
        if self.stages % self.critic_stages:
            raise TrainError(
                f"pipeline_critic is {self.critic_stages}, which does not divide pipeline {self.stages}; give a divisor"
            )
        if self.micro_batches % self.copies:
            raise TrainError(
                f"micro_batches is {self.micro_batches}, but {self.copies} copies of the critic share them; give a multiple of "
                f"{self.copies}"
            )

    @property
    def copies(self) -> int:
        """Number of copies of the critic."""
        return self.stages // self.critic_stages if self.critic_stages else 0

    @classmethod
    def of(
        cls, cluster: ClusterConfig, algorithm: GrpoConfig | PpoConfig, optimizer: OptimizerConfig
    ) -> PipelineOptions | None:
        """Return the options of a run; None if it learns in whole models.

        Raises:
            TrainError: the algorithm's options do not fit.
        """
        if cluster.pipeline is None:
            return None
        if optimizer.learner_dtype != "float32":
            raise TrainError(f"learner_dtype is {optimizer.learner_dtype!r}, but a pipeline computes in float32; leave it out")
        if optimizer.gradient_checkpointing:
            raise TrainError("gradient_checkpointing is True, but a pipeline keeps the activations of its stages; leave it out")
        if optimizer.lora_rank is not None:
            raise TrainError(f"lora_rank is {optimizer.lora_rank}, but a pipeline trains all weights; leave it out")
        if optimizer.offload_reference:
            raise TrainError("offload_reference is True, but a pipeline keeps the reference in its stages; leave it out")
        has_critic = isinstance(algorithm, PpoConfig)
        if isinstance(algorithm, PpoConfig) and algorithm.critic == "head":
            raise TrainError(
                "critic is 'head', which reads the policy's layers and has no stages of its own; a pipeline needs critic "
                "'model' or a folder"
            )
        if not has_critic and cluster.pipeline_critic is not None:
            raise TrainError(
                f"pipeline_critic is {cluster.pipeline_critic}, but algorithm {algorithm.name!r} has no critic; leave it out"
            )
        critic = (cluster.pipeline_critic or cluster.pipeline) if has_critic else None
        return cls(cluster.pipeline, critic, cluster.micro_batches or 2 * cluster.pipeline, cluster.pipeline_schedule)
