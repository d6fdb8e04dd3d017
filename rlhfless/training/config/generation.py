"""What is trained on and what a step generates: options of the task and of the rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from rlhfless.training.config.errors import TrainError
from rlhfless.training.config.options import Count, Options, Positive, Share

GenerationDtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Options):
    """Prompts with their answers, and the rewards of responses to them."""

    name: str = "arithmetic"
    """Train on arithmetic, gsm8k[:FILE], a data file or a hub name. A file's name ends in .jsonl, .json, .csv or .parquet, each
    also with .gz. All but ``arithmetic`` need a model."""
    prompt_column: str | None = None
    """Read prompts from this column of the data set. Default: the task's."""
    answer_column: str | None = None
    """Read answers from this column of the data set. Default: the task's."""
    rewards: tuple[str, ...] = ("task",)
    """Reward by WEIGHT*NAME, such as 0.5*exact, or FILE.py:FUNCTION; repeat to add up. ``rewards.registry.make_rewards`` lists
    the names, and says what a function gets."""
    offload_reward_models: bool = False
    """Keep reward models in CPU memory, and copy them to the GPU only while they score. It takes less GPU memory, and a copy
    for each batch (with learning stream, for each prompt). It changes no reward."""
    prompts: Count = 128
    """Train on this many prompts; an epoch visits each once."""
    max_prompt_tokens: Count | None = None
    """Leave out prompts of a data set with more tokens than this. A warning says how many. It is verl's
    ``data.max_prompt_length`` with ``data.filter_overlong_prompts``. Prompts for which the context has no room beside
    ``max_response_tokens`` are left out in any case. Default: what the context has room for."""
    eval_prompts: Count = 64
    """Evaluate on this many held-out prompts. See ``eval_every``. They are never trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offload_reward_models and not any(name.startswith("model:") or "*model:" in name for name in self.rewards):
            raise TrainError(
                f"offload_reward_models is True, but rewards are {', '.join(self.rewards)}; give a reward model:FOLDER, or "
                "leave it out"
            )

    def columns(self) -> dict[str, str]:
        """Return the options that name columns of the data set, where they are set."""
        columns = {"prompt_column": self.prompt_column, "answer_column": self.answer_column}
        return {name: column for name, column in columns.items() if column is not None}


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Options):
    """Responses that a step generates."""

    prompts_per_step: Count = 32
    """Generate for this many prompts in every step."""
    samples_per_prompt: Count = 8
    """Generate this many responses to each prompt."""
    max_response_tokens: Count = 320
    """Truncate responses after this many tokens."""
    max_model_len: Annotated[int, Ge(2)] | None = None
    """Let engines take contexts of at most this many tokens, prompt and response. Default: what the longest prompt needs."""
    temperature: Positive = 1.0
    """Sample tokens at this temperature; lower is less random."""
    top_k: Annotated[int, Ge(0)] = 0
    """Sample among the k likeliest tokens only; 0 takes all. With filters or a penalty the engine's log-probabilities are those
    of the distribution that was sampled from. The learner's are of all tokens at this temperature. So their ratio, and
    importance sampling, corrects for what was left out."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Sample among the likeliest tokens that together reach this share."""
    min_p: Share = 0.0
    """Sample among tokens at least this many times as likely as the likeliest."""
    repetition_penalty: Positive = 1.0
    """Divide the positive logits of tokens that prompt or response have already, and multiply their negative ones."""
    generation_dtype: GenerationDtype = "auto"
    """Generate in this number format. By default bfloat16 where this machine has a GPU to generate on, else that of the
    checkpoint that training began with. In bfloat16 tokens depend on the batch, and engine and learner disagree more: each step
    records by how much (``mismatch_mean``)."""
