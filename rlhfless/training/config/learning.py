"""What is learned from responses: options of GRPO, PPO and the optimizer.

``GrpoOptions`` and ``PpoOptions`` are those of one update: the algorithm's, and what it needs of rollout and optimizer.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import StrictBool, model_validator

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.section import (
    Count,
    NotNegative,
    NotNegativeOrInfinite,
    Positive,
    PositiveOrInfinite,
    Section,
    Share,
    Texts,
    Whole,
)

Aggregation = Literal["token", "sequence", "constant"]
AdvantageStd = Literal["population", "sample", "none"]
OptimizerName = Literal["adamw", "sgd", "adafactor"]
Precision = Literal["float32", "bfloat16"]
Schedule = Literal["constant", "linear", "cosine"]


class UpdateConfig(Section):
    """Options of both algorithms."""

    name: Literal["grpo", "ppo"]
    """Learn with this algorithm: grpo, or ppo with a critic."""
    num_updates: Count = 1
    """Take this many optimizer steps on every mini-batch. See ``optimizer.num_mini_batches``."""
    loss_aggregation: Aggregation = "token"
    """Average losses over all tokens, per response (sequence), or by a constant divisor. See ``losses.aggregation``."""
    clip_ratio_low: Share = 0.2
    """Clip policy ratios below 1 minus this."""
    clip_ratio_high: NotNegativeOrInfinite = 0.2
    """Clip policy ratios above 1 plus this."""
    kl_coef: NotNegative = 0.0
    """Scale the KL penalty to the initial model by this. 0 needs no reference model."""
    mask_truncated: StrictBool = False
    """Leave truncated responses out of the loss. Their reward still counts in a group's mean."""
    old_logprobs_from: Literal["auto", "engine", "recomputed"] = "auto"
    """Take old log-probabilities from the engine, or recompute them. They are those of the weights that generated. ``auto``
    recomputes them where engine and learner differ: with engine vllm, and where either computes in bfloat16; not with several
    ``optimizer.num_mini_batches`` and ``cluster.learning`` stream. ``importance_ratio_cap`` is then 2 if it is not given, as in
    TRL."""
    importance_ratio_cap: PositiveOrInfinite | None = None
    """Cap importance sampling factors, at 2.0 for example. They correct the engine's distribution to the recomputed one.
    Default: see ``old_logprobs_from``."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.importance_ratio_cap is not None and self.old_logprobs_from == "engine":
            raise TrainError(
                f"algorithm.importance_ratio_cap is {self.importance_ratio_cap}, which needs algorithm.old_logprobs_from "
                "'recomputed'; with 'engine' the ratio itself corrects"
            )
        return self

    @property
    def recomputes(self) -> bool:
        """Return whether old log-probabilities are asked to be recomputed."""
        corrects = self.old_logprobs_from == "auto" and self.importance_ratio_cap is not None
        return corrects or self.old_logprobs_from == "recomputed"

    def given(self) -> dict[str, Any]:
        """See ``Section.given``; the name of another algorithm than the usual one is given by its class."""
        name = {} if self.name == "grpo" else {"name": self.name}
        return {**name, **super().given()}


class GrpoConfig(UpdateConfig):
    """Options of GRPO."""

    section: ClassVar[str | None] = "algorithm"

    name: Literal["grpo"] = "grpo"
    """Learn with this algorithm: grpo, or ppo with a critic."""

    advantage_std: AdvantageStd = "population"
    """Divide advantages by this standard deviation. See ``algorithms.advantages.group_advantages``."""


class PpoConfig(UpdateConfig):
    """Options of PPO and its critic."""

    section: ClassVar[str | None] = "algorithm"

    name: Literal["ppo"] = "ppo"
    """Learn with this algorithm: grpo, or ppo with a critic."""

    critic: str = "head"
    """Use a head, a second model or a folder as critic. See ``algorithms.critic.make_critic``."""
    critic_learning_rate: NotNegative | None = None
    """Train the critic at this rate. 0 leaves it unchanged. Default: ``optimizer.learning_rate``."""
    gamma: Share = 1.0
    """Discount rewards by this factor per token."""
    lam: Share = 1.0
    """Compute advantages (GAE) with this lambda. Below 1 it hides the reward, which comes with the last token, from the first
    tokens of a long response until the critic expects it."""
    value_clip: PositiveOrInfinite | None = 0.2
    """Clip a value's distance from the old one in its loss. None clips nothing."""
    vf_coef: NotNegative = 0.1
    """Weight the critic's loss by this factor."""
    whiten: StrictBool = True
    """Normalise advantages to mean 0 and variance 1 over the tokens of the batch."""


class OptimizerConfig(Section):
    """The optimizer, its learning rate, and how a gradient is computed."""

    section: ClassVar[str | None] = "optimizer"

    name: OptimizerName = "adamw"
    """Update weights with this optimizer. See ``algorithms.optimizer.make_optimizer``."""
    learning_rate: Positive = 1e-6
    """Train the policy at this learning rate."""
    lr_scheduler_type: Schedule = "constant"
    """Keep or lower the learning rate after warm-up."""
    warmup_steps: Whole = 0
    """Raise the learning rate from 0 in this many steps."""
    lr_scheduler_steps: Count | None = None
    """Lower the learning rate to 0 by this step. Default: ``steps``."""
    weight_decay: NotNegative = 0.0
    """Apply this weight decay, such as 0.01."""
    max_grad_norm: PositiveOrInfinite = 1.0
    """Scale gradients down to at most this norm."""
    learner_dtype: Precision | Literal["auto"] = "auto"
    """Learn in this number format; auto is bfloat16 on a GPU and float32 on the CPU. Weights, losses and the optimizer's state
    are float32 either way: bfloat16 is that of matrix products, and of what learner processes send to each other of weights."""
    num_mini_batches: Count = 1
    """Split each step's prompts into this many mini-batches, and learn from one after the other. A step takes
    num_mini_batches x num_updates optimizer steps. Mini-batches are fixed before generation, by the order of prompts, and each
    is learned from as a batch of its own. So a critic's values of the second are those of the weights after the first update.
    Old log-probabilities are those of the weights that generated, for every mini-batch."""
    max_tokens_per_micro_batch: Count = 4096
    """Compute at most this many padded tokens at once. It changes no gradient."""
    gradient_checkpointing: StrictBool = False
    """Recompute each layer in the backward pass, so that its activations need not be kept. It takes less memory and about a
    third more time, and changes no gradient."""
    offload_reference: StrictBool = False
    """Keep the reference model of a KL penalty in CPU memory, and copy it to the GPU for its passes only. It takes less GPU
    memory, and a copy for each batch (with learning stream, for each prompt). It changes no gradient."""
    lora_rank: Count | None = None
    """Train low-rank adapters of this rank in place of all weights (LoRA). Needs peft. Actors get weights with the adapters
    merged into them. The base model stays beside them, and is the reference of a KL penalty. Default: off."""
    lora_alpha: Positive | None = None
    """Scale adapters by this divided by their rank. Default: twice the rank."""
    lora_targets: Texts | None = None
    """Adapt linear layers of this name, such as q_proj. Default: all but the output layer."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = {"lora_alpha": self.lora_alpha, "lora_targets": self.lora_targets}
        for name, value in given.items():
            if self.lora_rank is None and value is not None:
                raise TrainError(
                    f"optimizer.{name} is {value!r}, but no adapters are trained; give optimizer.lora_rank as well"
                )
        return self


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
    max_grad_norm: PositiveOrInfinite = 1.0
    max_tokens_per_micro_batch: Count = 4096
    learner_dtype: Precision = "float32"
    gradient_checkpointing: StrictBool = False
    offload_reference: StrictBool = False
    lora_rank: Count | None = None
    lora_alpha: Positive | None = None
    lora_targets: Texts | None = None


class GrpoOptions(GrpoConfig, UpdateOptions):
    """GRPO's options of an update; ``eps`` keeps the division of ``group_advantages`` finite."""

    section: ClassVar[str | None] = None

    old_logprobs_from: Literal["engine", "recomputed"] = "engine"
    eps: float = 1e-6


class PpoOptions(PpoConfig, UpdateOptions):
    """PPO's options of an update; those of the critic's model and learning rate are used by ``make_algorithm``."""

    section: ClassVar[str | None] = None

    old_logprobs_from: Literal["engine", "recomputed"] = "engine"
