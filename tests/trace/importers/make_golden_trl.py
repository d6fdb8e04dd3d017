"""Makes ``golden/trl`` and its variants: what TRL's own GRPOTrainer writes while it trains the shipped tiny model.

    python tests/trace/importers/make_golden_trl.py [VARIANT ...]          # TRL: pip install 'trl>=1.16'

- ``trl``: three steps of two prompts with four samples each, every generation used for two updates, so that TRL's buffer is
  logged twice.
- ``trl-special``: so hot that the model samples special tokens within its responses, which TRL's texts lack.
- ``trl-averaged``: two generations between two entries of the log, whose scalars are means over both.
- ``trl-profiled``: like ``trl``, with ``report_to="wandb"`` and an evaluation, so that TRL's profile is in ``run.wandb``.
  It needs wandb as well (``pip install --target DIR wandb``, with DIR in PYTHONPATH). Nothing of the machine is in the file.

Each has ``completions/completions_*.parquet``, ``trainer_state.json``, the tokenizer, and ``lengths.json``: the tokens that the
trainer really generated, in the order of its log, which no log of TRL holds; the last of them are in the last file.
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
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks"), str(ROOT / "tests" / "support")]
GOLDEN = Path(__file__).parent / "golden"
VARIANTS: dict[str, dict[str, Any]] = {
    "trl": {"steps_per_generation": 2, "temperature": 1.0, "logging_steps": 1, "max_steps": 3},
    "trl-special": {"steps_per_generation": 1, "temperature": 4.0, "logging_steps": 1, "max_steps": 3},
    "trl-averaged": {"steps_per_generation": 1, "temperature": 1.0, "logging_steps": 2, "max_steps": 4},
    "trl-profiled": {
        "steps_per_generation": 2,
        "temperature": 1.0,
        "logging_steps": 1,
        "max_steps": 3,
        "report_to": ["wandb"],
        "eval_strategy": "steps",
        "eval_steps": 2,
        "per_device_eval_batch_size": 8,
    },
}
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


def quiet_run(folder: str) -> Any:
    """An offline run of wandb that knows as little of the machine as wandb allows; TRL logs into it."""
    import wandb

    settings = wandb.Settings(
        disable_git=True, disable_code=True, save_code=False, console="off", x_disable_stats=True, x_disable_meta=True
    )
    return wandb.init(mode="offline", project="golden", dir=folder, settings=settings)


def history_of(path: Path) -> bytes:
    """The run file with its records of metrics alone, as wandb wrote them; others name the machine and its user."""
    from importer_samples import wandb_file

    from rlhfless.trace.importers.event_records import fields, wandb_records
    from rlhfless.trace.limits import Guard

    with path.open("rb") as stream:
        messages = list(wandb_records(path, stream, Guard()))
    return wandb_file([message for message in messages if any(field.number == 2 for field in fields(message))])


def make(name: str, options: dict[str, Any]) -> None:
    """Train and keep the files of one variant."""
    golden = GOLDEN / name
    from trl_trainer import tokenizer_of

    from rlhfless.engine.torch.pretrained import load_model

    torch.manual_seed(0)
    model, ours = load_model(ROOT / "data" / "models" / "arithmetic-grpo")
    tokenizer = tokenizer_of(ours)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()  # a text's symbols stand side by side
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            folder, per_device_train_batch_size=8, num_generations=4, max_completion_length=LIMIT, learning_rate=1e-6,
            log_completions=True, save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False,
            disable_tqdm=True, shuffle_dataset=False, num_iterations=1, seed=0, **{"report_to": [], **options},
        )  # fmt: skip
        data = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS * 4])
        if profiled := "wandb" in arguments.report_to:
            run = quiet_run(folder)
        trainer = Watched(
            model,
            args=arguments,
            train_dataset=data,
            eval_dataset=data if profiled else None,
            processing_class=tokenizer,
            reward_funcs=length_reward,
        )
        trainer.lengths = []
        with mock.patch("trl.trainer.grpo_trainer.is_rich_available", return_value=False):
            trainer.train()
        trainer.save_state()
        if profiled:
            run.finish()
        shutil.rmtree(golden, ignore_errors=True)
        shutil.copytree(Path(folder) / "completions", golden / "completions")
        if profiled:
            (golden / "run.wandb").write_bytes(history_of(next(Path(folder).glob("wandb/*/*.wandb"))))
        state = json.loads((Path(folder) / "trainer_state.json").read_text())
        (golden / "trainer_state.json").write_text(json.dumps(state, indent=1) + "\n")
        tokenizer.backend_tokenizer.save(str(golden / "tokenizer.json"))
        (golden / "lengths.json").write_text(json.dumps(trainer.lengths) + "\n")


if __name__ == "__main__":
    for variant in sys.argv[1:] or VARIANTS:
        make(variant, VARIANTS[variant])
