"""Makes ``golden/trl``: what TRL's own GRPOTrainer writes while it trains the shipped tiny model.

    python tests/trace/importers/make_golden_trl.py          # TRL: pip install 'trl>=1.16'

Three steps of two prompts with four samples each, every generation used for two updates, so that TRL's buffer is logged twice:
``completions/completions_0000{1..3}.parquet``, ``trainer_state.json``, the tokenizer, and ``lengths.json``: the tokens that the
trainer really generated, in the order of its log, which no log of TRL holds.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from tokenizers import decoders
from trl import GRPOConfig, GRPOTrainer

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]
GOLDEN = Path(__file__).parent / "golden" / "trl"
LIMIT = 24
PROMPTS = ["3+4=?", "17*8=?"]


class Watched(GRPOTrainer):
    """TRL's trainer, which tells how many tokens it generated."""

    lengths: list[int]

    def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
        found = super()._generate_single_turn(*given, **named)
        self.lengths += [len(ids) for ids in found[0]]
        return found


def length_reward(completions: list[str], **_: Any) -> list[float]:
    """Any reward: the share of digits."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def main() -> None:
    """Train and keep the files."""
    from trl_trainer import tokenizer_of

    from rlhfless.training.model import load_model

    torch.manual_seed(0)
    model, ours = load_model(ROOT / "data" / "models" / "arithmetic-grpo")
    tokenizer = tokenizer_of(ours)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()  # a text's symbols stand side by side
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            folder, per_device_train_batch_size=8, num_generations=4, steps_per_generation=2, max_completion_length=LIMIT,
            max_steps=3, learning_rate=1e-6, temperature=1.0, log_completions=True, logging_steps=1, save_strategy="no",
            use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True, shuffle_dataset=False,
            num_iterations=1, seed=0,
        )  # fmt: skip
        trainer = Watched(
            model,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS * 4]),
            processing_class=tokenizer,
            reward_funcs=length_reward,
        )
        trainer.lengths = []
        with mock.patch("trl.trainer.grpo_trainer.is_rich_available", return_value=False):
            trainer.train()
        trainer.save_state()
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(Path(folder) / "completions", GOLDEN / "completions")
        state = json.loads((Path(folder) / "trainer_state.json").read_text())
        (GOLDEN / "trainer_state.json").write_text(json.dumps(state, indent=1) + "\n")
        tokenizer.backend_tokenizer.save(str(GOLDEN / "tokenizer.json"))
        (GOLDEN / "lengths.json").write_text(json.dumps(trainer.lengths) + "\n")


if __name__ == "__main__":
    main()
