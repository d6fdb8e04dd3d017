"""What is trained on and what a step generates: options of the task and of the rollout."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StrictBool, model_validator

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.reward_names import weight_and_name
from rlhfless.training.config.section import Count, Positive, Section, Share, ShareAboveZero, Texts, Whole

GenerationDtype = Literal["auto", "float32", "bfloat16"]


class TaskConfig(Section):
    """Prompts with their answers, and the rewards of responses to them."""

    section: ClassVar[str | None] = "task"

    name: str | None = None
    """Data set to train on: gsm8k[:FILE], a data file, a hub name, or arithmetic, which the preset ``demo`` uses. A file's name
    ends in .jsonl, .json, .csv or .parquet, each also with .gz. All except ``arithmetic`` need ``model``. Default: none; it is
    required."""
    prompt_column: str | None = None
    """Column of the data set that holds the prompts. Default: the task's."""
    answer_column: str | None = None
    """Column of the data set that holds the answers. Default: the task's."""
    rewards: Texts = ("task",)
    """Rewards that are added up, each WEIGHT*NAME, such as 0.5*exact, or FILE.py:FUNCTION. ``rewards.registry.make_rewards``
    lists the names and the arguments of a function."""
    offload_reward_models: StrictBool = False
    """Keep reward models in CPU memory, and copy them to the GPU only while they score. This saves GPU memory and costs a copy
    per batch (per prompt with ``cluster.learning`` stream). Rewards stay the same."""
    prompts: Count | None = None
    """Number of prompts to train on; an epoch visits each at most once. Default: all of the data set except the held-out ones
    of ``eval_every``; for arithmetic 128."""
    drop_last: StrictBool = True
    """Drop the last prompts of an epoch if they do not fill a step; prompts are shuffled, so every epoch drops others. If
    false, the last step of an epoch has fewer prompts."""
    max_prompt_tokens: Count | None = None
    """Leave out prompts with more tokens than this, as verl's ``data.max_prompt_length`` with ``data.filter_overlong_prompts``
    does. A warning states how many. Prompts that do not fit into the context together with ``rollout.max_response_tokens`` are
    always left out. Default: what fits into the context."""
    eval_prompts: Count = 64
    """Number of held-out prompts for evaluation (``eval_every``). They are never trained on."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            names = [weight_and_name(text)[1] for text in self.rewards]
        except TrainError as error:
            raise TrainError(f"task.rewards: {error}") from None
        if self.offload_reward_models and not any(name.startswith("model:") for name in names):
            raise TrainError(
                f"task.offload_reward_models is True, but task.rewards are {', '.join(self.rewards)}; give a reward "
                "model:FOLDER, or leave it out"
            )
        return self

    def columns(self) -> dict[str, str]:
        """Return the options that name columns of the data set, where they are set."""
        columns = {"prompt_column": self.prompt_column, "answer_column": self.answer_column}
        return {name: column for name, column in columns.items() if column is not None}


class RolloutConfig(Section):
    """Responses that a step generates."""

    section: ClassVar[str | None] = "rollout"

    prompts_per_step: Count = 32
    """Prompts per step. If this is not given, a data set with fewer prompts is one step."""
    samples_per_prompt: Count = 8
    """Responses per prompt (the group size of GRPO)."""
    max_response_tokens: Count = 320
    """Truncate responses after this many tokens."""
    max_model_len: Annotated[int, Field(strict=True, ge=2)] | None = None
    """Longest context of the engines in tokens, prompt and response together. Default: what the longest prompt needs."""
    temperature: Positive = 1.0
    """Sampling temperature; lower is less random."""
    top_k: Whole = 0
    """Sample only among the k likeliest tokens; 0 takes all. With filters or a penalty, the engine's log-probabilities are
    those of the filtered distribution, and the learner's are those of all tokens at this temperature. Their ratio (importance
    sampling) corrects for the difference."""
    top_p: ShareAboveZero = 1.0
    """Sample only among the likeliest tokens whose probabilities together reach this share."""
    min_p: Share = 0.0
    """Sample only among tokens whose probability is at least this share of the likeliest token's."""
    repetition_penalty: Positive = 1.0
    """Divide positive logits, and multiply negative logits, of tokens that already occur in the prompt or response; 1 is off.
    """
    generation_dtype: GenerationDtype = "auto"
    """Number format of generation. ``auto`` is that of the first checkpoint; for float16 it is bfloat16 on a GPU and float32 on
    the CPU. In bfloat16, tokens depend on the batch, and the log-probabilities of engine and learner differ more: each step
    records by how much (``mismatch_mean``)."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_model_len is not None and self.max_model_len <= self.max_response_tokens:
            raise TrainError(
                f"rollout.max_model_len is {self.max_model_len}, but rollout.max_response_tokens is "
                f"{self.max_response_tokens}, so no prompt has room beside the longest response; give a longer max_model_len, "
                "or fewer max_response_tokens"
            )
        return self
