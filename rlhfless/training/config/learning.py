"""What is learned from responses: options of GRPO, PPO and the optimizer.

``GrpoOptions`` and ``PpoOptions`` are those of one update: the algorithm's, and what it needs of rollout and optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.options import Count, NotNegative, Options, Positive, Share

Aggregation = Literal["token", "sequence", "constant"]
AdvantageStd = Literal["population", "sample", "none"]
OptimizerName = Literal["adamw", "sgd", "adafactor"]
Precision = Literal["float32", "bfloat16"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class UpdateConfig(Options):
    """Options of both algorithms."""

    num_updates: Count = 1
    """Take this many optimizer steps on every mini-batch. See ``num_mini_batches``."""
    loss_aggregation: Aggregation = "token"
    """Average losses over all tokens, per response (sequence), or by a constant divisor. See ``losses.aggregation``."""
    clip_ratio_low: Share = 0.2
    """Clip policy ratios below 1 minus this."""
    clip_ratio_high: Annotated[float, Ge(0)] = 0.2
    """Clip policy ratios above 1 plus this."""
    kl_coef: NotNegative = 0.0
    """Scale the KL penalty to the initial model by this. 0 needs no reference model."""
    mask_truncated: bool = False
    """Leave truncated responses out of the loss. Their reward still counts in a group's mean."""
    old_logprobs_from: Literal["engine", "recomputed"] = "engine"
    """Take old log-probabilities from the engine, or recompute them. They are those of the weights that generated."""
    importance_ratio_cap: Annotated[float, Gt(0)] | None = None
    """Cap importance sampling factors, at 2.0 for example. They correct the engine's distribution to the recomputed one.
    Default: off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.importance_ratio_cap is not None and self.old_logprobs_from != "recomputed":
            raise TrainError(
                f"importance_ratio_cap is {self.importance_ratio_cap}, which needs old_logprobs_from 'recomputed'; "
                "with 'engine' the ratio itself corrects"
            )


@dataclass(frozen=True, kw_only=True)
class GrpoConfig(UpdateConfig):
    """Options of GRPO."""

    name: ClassVar[str] = "grpo"

    advantage_std: AdvantageStd = "population"
    """Divide advantages by this standard deviation. See ``algorithms.advantages.group_advantages``."""


@dataclass(frozen=True, kw_only=True)
class PpoConfig(UpdateConfig):
    """Options of PPO and its critic."""

    name: ClassVar[str] = "ppo"

    critic: str = "head"
    """Use a head, a second model or a folder as critic. See ``algorithms.critic.make_critic``."""
    critic_learning_rate: NotNegative | None = None
    """Train the critic at this rate. 0 leaves it unchanged. Default: --learning-rate."""
    gamma: Share = 1.0
    """Discount rewards by this factor per token."""
    lam: Share = 1.0
    """Compute advantages (GAE) with this lambda. Below 1 it hides the reward, which comes with the last token, from the first
    tokens of a long response until the critic expects it."""
    value_clip: Annotated[float, Gt(0)] | None = 0.2
    """Clip a value's distance from the old one in its loss. None clips nothing."""
    vf_coef: NotNegative = 0.1
    """Weight the critic's loss by this factor."""
    whiten: bool = True
    """Normalise advantages to mean 0 and variance 1 over the tokens of the batch."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Options):
    """The optimizer, its learning rate, and how a gradient is computed."""

    name: OptimizerName = "adamw"
    """Update weights with this optimizer. See ``algorithms.optimizer.make_optimizer``."""
    learning_rate: Positive = 6e-5
    """Train the policy at this learning rate."""
    lr_scheduler_type: Schedule = "constant"
    """Keep or lower the learning rate after warm-up."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Raise the learning rate from 0 in this many steps."""
    lr_scheduler_steps: Count | None = None
    """Lower the learning rate to 0 by this step. Default: --steps."""
    weight_decay: NotNegative = 0.0
    """Apply this weight decay, such as 0.01."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    """Scale gradients down to at most this norm."""
    learner_dtype: Precision = "float32"
    """Learn in this number format. Weights, losses and the optimizer's state are float32 either way: bfloat16 is that of matrix
    products, and of the weights that learner processes send to each other."""
    num_mini_batches: Count = 1
    """Split each step's prompts into this many mini-batches, and learn from one after the other. A step takes
    num_mini_batches x num_updates optimizer steps. Mini-batches are fixed before generation, by the order of prompts, and each
    is learned from as a batch of its own. So the values of the second are those of the weights after the first update. Old
    log-probabilities are the engine's."""
    max_tokens_per_micro_batch: Count = 4096
    """Compute at most this many padded tokens at once. It changes no gradient."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass, so that its activations need not be kept. It takes less memory and about a
    third more time, and changes no gradient."""
    offload_reference: bool = False
    """Keep the reference model of a KL penalty in CPU memory, and copy it to the GPU for its passes only. It takes less GPU
    memory, and a copy for each batch (with learning stream, for each prompt). It changes no gradient."""
    lora_rank: Count | None = None
    """Train low-rank adapters of this rank in place of all weights (LoRA). Needs peft. Actors get weights with the adapters
    merged into them. The base model stays beside them, and is the reference of a KL penalty. Default: off."""
    lora_alpha: Positive | None = None
    """Scale adapters by this divided by their rank. Default: twice the rank."""
    lora_targets: tuple[str, ...] | None = None
    """Adapt linear layers of this name, such as q_proj; repeat for several. Default: all but the output layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {"lora_alpha": self.lora_alpha, "lora_targets": self.lora_targets}
        for name, value in given.items():
            if self.lora_rank is None and value is not None:
                raise TrainError(f"{name} is {value!r}, but no adapters are trained; give lora_rank as well")


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(UpdateConfig):
    """Options of an update on a batch: the algorithms' own, and what they need of rollout and optimizer.

    Attributes:
        max_response_tokens: divisor of ``loss_aggregation`` ``constant``. temperature: of sampling.
        max_grad_norm, max_tokens_per_micro_batch, learner_dtype, gradient_checkpointing, offload_reference, lora_rank,
            lora_alpha, lora_targets: see ``OptimizerConfig``.

    Raises:
        TrainError: a value outside its range.
    """

    max_response_tokens: Count | None = None
    temperature: Positive = 1.0
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    max_tokens_per_micro_batch: Count = 4096
    learner_dtype: Precision = "float32"
    gradient_checkpointing: bool = False
    offload_reference: bool = False
    lora_rank: Count | None = None
    lora_alpha: Positive | None = None
    lora_targets: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GrpoOptions(GrpoConfig, UpdateOptions):
    """GRPO's options of an update; ``eps`` keeps the division of ``group_advantages`` finite."""

    eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class PpoOptions(PpoConfig, UpdateOptions):
    """PPO's options of an update; those of the critic's model and learning rate are used by ``make_algorithm``."""
