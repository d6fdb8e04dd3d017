"""Options of the learner: GRPO, PPO and the optimizer.

``GrpoOptions`` and ``PpoOptions`` hold everything that one update needs: the algorithm's options, and some of rollout and
optimizer.
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
    """Optimizer steps on every mini-batch. See ``optimizer.num_mini_batches``."""
    loss_aggregation: Aggregation = "token"
    """Average losses over all tokens (token), per response (sequence), or by a constant divisor (constant). See
    ``losses.aggregation``."""
    clip_ratio_low: Share = 0.2
    """Clip policy ratios below 1 minus this."""
    clip_ratio_high: NotNegativeOrInfinite = 0.2
    """Clip policy ratios above 1 plus this."""
    kl_coef: NotNegative = 0.0
    """Coefficient of the KL penalty to the initial model. At 0 no reference model is needed."""
    mask_truncated: StrictBool = False
    """Leave truncated responses out of the loss. Their rewards still count in the mean of their group."""
    old_logprobs_from: Literal["auto", "engine", "recomputed"] = "auto"
    """Source of the old log-probabilities, those of the weights that generated: the engine, or recomputed by the learner.
    ``auto`` recomputes them if engine and learner differ: with engine vllm, or if either computes in bfloat16; not with several
    ``optimizer.num_mini_batches`` and ``cluster.learning`` stream. If ``auto`` recomputes, the default of
    ``importance_ratio_cap`` is 2, as in TRL."""
    importance_ratio_cap: PositiveOrInfinite | None = None
    """Cap on the importance sampling factors, such as 2.0, which correct the engine's distribution to the recomputed one.
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
    """Standard deviation that advantages are divided by: population, sample (n - 1), or none as in Dr. GRPO. See
    ``algorithms.advantages.group_advantages``."""


class PpoConfig(UpdateConfig):
    """Options of PPO and its critic."""

    section: ClassVar[str | None] = "algorithm"

    name: Literal["ppo"] = "ppo"
    """Learn with this algorithm: grpo, or ppo with a critic."""

    critic: str = "head"
    """Critic: a value head on the policy (head), a second copy of the model (model), or a folder. See
    ``algorithms.critic.make_critic``."""
    critic_learning_rate: NotNegative | None = None
    """Learning rate of the critic. 0 leaves it unchanged. Default: ``optimizer.learning_rate``."""
    gamma: Share = 1.0
    """Discount rewards by this factor per token."""
    lam: Share = 1.0
    """Lambda of the advantages (GAE). The reward comes with the last token: below 1, the first tokens of a long response hardly
    receive it until the critic has learned to predict it."""
    value_clip: PositiveOrInfinite | None = 0.2
    """Clip the distance of a value from the old value in the critic's loss. None: no clipping."""
    vf_coef: NotNegative = 0.1
    """Weight the critic's loss by this factor."""
    whiten: StrictBool = True
    """Normalise advantages to mean 0 and variance 1 over the tokens of the batch."""


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
        return self


class UpdateOptions(UpdateConfig):
    """Options of an update on a batch: the algorithm's, and those it needs of rollout and optimizer.

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
    """Options of one GRPO update; ``eps`` keeps the division in ``group_advantages`` finite."""

    section: ClassVar[str | None] = None

    old_logprobs_from: Literal["engine", "recomputed"] = "engine"
    eps: float = 1e-6


class PpoOptions(PpoConfig, UpdateOptions):
    """Options of one PPO update; ``critic`` and ``critic_learning_rate`` are used by ``make_algorithm``."""

    section: ClassVar[str | None] = None

    old_logprobs_from: Literal["engine", "recomputed"] = "engine"
