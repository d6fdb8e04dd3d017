"""TRL's GRPOTrainer for `trl_step_time.py`: with forced lengths and given rewards, timed by phase.

Knows TRL and transformers; nothing of our trainer but its tokenizer's symbols. Needs TRL.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

ROWS, GPU_ROWS = 64, 8  # that are learned from at a time; on a GPU the vocabulary is large


class ForcedLengths(LogitsProcessor):
    """No row ends before its length, and every row ends there: its last token is the end token.

    Args:
        lengths: (R,) tokens. prompt_tokens: columns before the first response token.
    """

    def __init__(self, lengths: list[int], eos: int, prompt_tokens: int) -> None:
        self.lengths, self.eos, self.prompt_tokens = torch.tensor(lengths), eos, prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores with the end token forbidden, or alone allowed."""
        last = self.lengths.to(scores.device) <= input_ids.shape[1] - self.prompt_tokens + 1
        end = scores[:, self.eos].clone()
        scores = scores.masked_fill(last[:, None], -torch.inf)
        scores[:, self.eos] = torch.where(last, end, -torch.inf)
        return scores


class Timed(GRPOTrainer):
    """TRL's trainer, its generation timed."""

    watch: Any
    lengths: Any
    tokens: float = 0.0

    def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
        own, plain = next(self.lengths), self.model.generate

        def generate(*, input_ids: torch.Tensor, **more: Any) -> Any:
            forced = ForcedLengths(own, self.processing_class.eos_token_id, input_ids.shape[1])
            return plain(input_ids=input_ids, logits_processor=LogitsProcessorList([forced]), **more)

        with self.watch.timed("generation"), mock.patch.object(self.model, "generate", generate):
            found = super()._generate_single_turn(*given, **named)
        self.tokens = float(sum(map(len, found[0])))
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.watch.timed("all before learning"):
            return super()._generate_and_score_completions(inputs)


class EveryStep(TrainerCallback):
    """Begins and ends the steps of a stopwatch."""

    def __init__(self, trainer: Timed) -> None:
        self.trainer = trainer

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Generation is part of a step."""
        self.trainer.watch.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """After the optimizer's step. What came before learning and is no generation was preparation."""
        watch = self.trainer.watch
        before = watch.of_step.pop("all before learning")
        watch.of_step["preparation"] = before - watch.of_step["generation"]
        watch.of_step["learning"] = time.perf_counter() - watch.began - before
        watch.end(tokens=self.trainer.tokens)


def tokenizer_of(ours: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers with the ids of our character tokenizer."""
    vocabulary = {"<pad>": ours.pad_token_id, "<eos>": ours.eos_token_id}
    vocabulary |= {symbol: ours.encode(symbol)[0] for symbol in ours.symbols}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def tokenizer_of_ids(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose words are the ids themselves, for models that come without one; 0 pads and 1 ends a text."""
    words = {"<pad>": 0, "<eos>": 1} | {str(i): i for i in range(2, vocabulary)}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def options_of(config: Any, *, on_gpu: bool) -> dict[str, Any]:
    """Options of TRL's trainer that make it learn as a run of ours does."""
    responses = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    rows = min(GPU_ROWS if on_gpu else ROWS, responses)
    return {
        "per_device_train_batch_size": rows, "gradient_accumulation_steps": responses // rows,
        "num_generations": config.rollout.samples_per_prompt, "max_completion_length": config.rollout.max_response_tokens,
        "learning_rate": config.optimizer.learning_rate, "lr_scheduler_type": "constant", "loss_type": "dapo", "beta": 0.0,
        "temperature": config.rollout.temperature, "shuffle_dataset": False, "disable_dropout": True,
        "use_cpu": not on_gpu, "bf16": on_gpu, "gradient_checkpointing": False, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True, "logging_steps": 1000,
    }  # fmt: skip


def run(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    lengths: list[list[int]],
    config: Any,
    rewards_of: Callable[[int, int], list[float]],
    steps: int,
    watch: Any,
) -> None:
    """Train for some steps.

    Args:
        prompts, lengths: of all steps, one after the other; lengths of every sample.
        config: of our run: what is equal. rewards_of: the rewards of a step.
        watch: gets the steps' seconds.
    """
    options = {**options_of(config, on_gpu=model.device.type == "cuda"), "max_steps": steps}
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(folder, **options)
        numbers = iter(range(steps))
        trainer = Timed(
            model, args=arguments, train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: rewards_of(next(numbers), len(completions)),
        )  # fmt: skip
        of_step = config.rollout.prompts_per_step
        own = [lengths[start : start + of_step] for start in range(0, len(lengths), of_step)]
        trainer.watch, trainer.lengths = watch, iter([[n for prompt in step for n in prompt] for step in own])
        trainer.add_callback(EveryStep(trainer))
        trainer.train()
