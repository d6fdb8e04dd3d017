"""Options of the optimizer, and of how a gradient is computed; those of algorithms are in ``algorithm.py``."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import StrictBool, model_validator

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.section import (
    Count,
    NotNegative,
    Positive,
    PositiveOrInfinite,
    Section,
    Texts,
    Whole,
)

OptimizerName = Literal["adamw", "sgd", "adafactor"]
Precision = Literal["float32", "bfloat16"]
Schedule = Literal["constant", "linear", "cosine"]


class OptimizerConfig(Section):
    """The optimizer, its learning rate, and how a gradient is computed."""

    section: ClassVar[str | None] = "optimizer"

    name: OptimizerName = "adamw"
    """Optimizer. See ``algorithms.optimizer.make_optimizer``."""
    learning_rate: Positive = 1e-6
    """Learning rate of the policy."""
    lr_scheduler_type: Schedule = "constant"
    """Learning rate after warm-up: constant, or lowered to 0 (linear, cosine)."""
    warmup_steps: Whole = 0
    """Steps in which the learning rate rises from 0."""
    lr_scheduler_steps: Count | None = None
    """Step at which a linear or cosine learning rate reaches 0. Default: ``steps``."""
    weight_decay: NotNegative = 0.0
    """Weight decay, such as 0.01."""
    max_grad_norm: PositiveOrInfinite = 1.0
    """Scale gradients down to at most this norm."""
    learner_dtype: Precision | Literal["auto"] = "auto"
    """Number format of the learner's matrix products; ``auto`` is bfloat16 on a GPU and float32 on the CPU. Weights, losses and
    the optimizer's state are always float32. Learner processes also gather weights in this format."""
    num_mini_batches: Count = 1
    """Mini-batches per step; a step takes num_mini_batches x num_updates optimizer steps. Prompts are divided in their order,
    before generation, and every mini-batch is a batch of its own: the critic's values for the second are computed with the
    weights after the first update. Old log-probabilities of every mini-batch are those of the weights that generated."""
    max_tokens_per_micro_batch: Count = 4096
    """Padded tokens per micro-batch at most. Gradients stay the same."""
    gradient_checkpointing: StrictBool = False
    """Recompute each layer in the backward pass instead of keeping its activations. This saves memory and takes about a third
    more time. Gradients stay the same."""
    offload_reference: StrictBool = False
    """Keep the reference model in CPU memory, and copy it to the GPU only for its passes. This saves GPU memory and costs a
    copy per batch (per prompt with ``cluster.learning`` stream). Gradients stay the same."""
    lora_rank: Count | None = None
    """Train low-rank adapters (LoRA) of this rank instead of all weights. Needs peft. Actors receive weights with the adapters
    merged. The base model is kept, and is the reference of a KL penalty. Default: off."""
    lora_alpha: Positive | None = None
    """Alpha of LoRA: adapters are scaled by alpha / rank. Default: twice the rank."""
    lora_targets: Texts | None = None
    """Names of the linear layers that get adapters, such as q_proj. Default: all except the output layer."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = {"lora_alpha": self.lora_alpha, "lora_targets": self.lora_targets}
        for name, value in given.items():
            if self.lora_rank is None and value is not None:
                raise TrainError(
                    f"optimizer.{name} is {value!r}, but no adapters are trained; give optimizer.lora_rank as well"
                )
        ends = self.lr_scheduler_steps
        if self.lr_scheduler_type != "constant" and ends is not None and ends <= self.warmup_steps:
            raise TrainError(
                f"optimizer.lr_scheduler_steps is {ends}, but optimizer.warmup_steps is {self.warmup_steps}; a "
                f"{self.lr_scheduler_type!r} learning rate falls after its warm-up, so give more lr_scheduler_steps"
            )
        return self


def check_sharded(optimizer: OptimizerName, processes: int) -> None:
    """Check that an optimizer can be sharded over so many learner processes.

    Raises:
        TrainError: it is Adafactor, whose factored moments are those of whole matrices, and there are several.
    """
    if optimizer == "adafactor" and processes > 1:
        raise TrainError(
            f"optimizer.name is 'adafactor', which needs whole matrices, but cluster.learner_processes {processes} shard them; "
            "choose optimizer.name 'adamw' or 'sgd', or cluster.learner_processes 1"
        )


OF_LEARNER = ("lr_scheduler_type", "warmup_steps", "lr_scheduler_steps", "num_mini_batches")
"""Keys of ``OptimizerConfig`` that decide over several updates; the learner follows them, not the algorithm."""


class UpdateOptions(OptimizerConfig):
    """Options of updates that are no algorithm's: the optimizer's, and those of rollout that the loss needs.

    Attributes:
        max_response_tokens: divisor of ``loss_aggregation`` ``constant``. temperature: of sampling.

    Raises:
        TrainError: a value outside its range, or a linear or cosine learning rate without an end.
    """

    section: ClassVar[str | None] = None

    learner_dtype: Precision = "float32"
    max_response_tokens: Count | None = None
    temperature: Positive = 1.0

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.lr_scheduler_type != "constant" and self.lr_scheduler_steps is None:
            raise TrainError(
                f"lr_scheduler_type is {self.lr_scheduler_type!r}, but lr_scheduler_steps is None; give the step at which the "
                "learning rate reaches 0"
            )
        return self
