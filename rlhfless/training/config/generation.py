"""What is trained on and what a step generates: options of the task and of the rollout."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StrictBool, model_validator

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.section import Count, Positive, Section, Share, ShareAboveZero, Texts, Whole

GenerationDtype = Literal["auto", "float32", "bfloat16"]


class TaskConfig(Section):
    """Prompts with their answers, and the rewards of responses to them."""

    section: ClassVar[str | None] = "task"

    name: str | None = None
    """Train on gsm8k[:FILE], a data file or a hub name, or on arithmetic, as the preset ``demo`` does. A file's name ends in
    .jsonl, .json, .csv or .parquet, each also with .gz. All but ``arithmetic`` need a model. Default: none, so it has to be
    given."""
    prompt_column: str | None = None
    """Read prompts from this column of the data set. Default: the task's."""
    answer_column: str | None = None
    """Read answers from this column of the data set. Default: the task's."""
    rewards: Texts = ("task",)
    """Add up rewards, each WEIGHT*NAME, such as 0.5*exact, or FILE.py:FUNCTION. ``rewards.registry.make_rewards`` lists
    the names, and says what a function gets."""
    offload_reward_models: StrictBool = False
    """Keep reward models in CPU memory, and copy them to the GPU only while they score. It takes less GPU memory, and a copy
    for each batch (with learning stream, for each prompt). It changes no reward."""
    prompts: Count | None = None
    """Train on this many prompts; an epoch visits each once at most. Default: all of the data set but the held-out ones of
    ``eval_every``, and 128 of arithmetic."""
    drop_last: StrictBool = True
    """Leave out the prompts of an epoch that fill no whole step; every epoch leaves out others. Without it the last step of an
    epoch has fewer prompts."""
    max_prompt_tokens: Count | None = None
    """Leave out prompts of a data set with more tokens than this. A warning says how many. It is verl's
    ``data.max_prompt_length`` with ``data.filter_overlong_prompts``. Prompts for which the context has no room beside
    ``rollout.max_response_tokens`` are left out in any case. Default: what the context has room for."""
    eval_prompts: Count = 64
    """Evaluate on this many held-out prompts. See ``eval_every``. They are never trained on."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.offload_reward_models and not any(name.startswith("model:") or "*model:" in name for name in self.rewards):
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
    """Generate for this many prompts in every step. A smaller data set is one step, where this is not given."""
    samples_per_prompt: Count = 8
    """Generate this many responses to each prompt."""
    max_response_tokens: Count = 320
    """Truncate responses after this many tokens."""
    max_model_len: Annotated[int, Field(strict=True, ge=2)] | None = None
    """Let engines take contexts of at most this many tokens, prompt and response. Default: what the longest prompt needs."""
    temperature: Positive = 1.0
    """Sample tokens at this temperature; lower is less random."""
    top_k: Whole = 0
    """Sample among the k likeliest tokens only; 0 takes all. With filters or a penalty the engine's log-probabilities are those
    of the distribution that was sampled from. The learner's are of all tokens at this temperature. So their ratio, and
    importance sampling, corrects for what was left out."""
    top_p: ShareAboveZero = 1.0
    """Sample among the likeliest tokens that together reach this share."""
    min_p: Share = 0.0
    """Sample among tokens at least this many times as likely as the likeliest."""
    repetition_penalty: Positive = 1.0
    """Divide the positive logits of tokens that prompt or response have already, and multiply their negative ones."""
    generation_dtype: GenerationDtype = "auto"
    """Generate in this number format. By default that of the checkpoint that training began with; of one in float16 it is
    bfloat16 on a GPU and float32 on the CPU. In bfloat16 tokens depend on the batch, and engine and learner disagree more: each
    step records by how much (``mismatch_mean``)."""
