"""What `gpu_engine.py` decodes: models by their configuration, and the lengths of a logged GRPO run on GSM8K.

Knows public configurations and lengths; nothing of engines or of what is measured. The log lies beside the project and may not
be copied into it, so `gpu_engine.py --prepare` puts its lengths into ``out/``, which git ignores. Where that file is missing,
lengths are lognormal with the log's mean and standard deviation, and whoever reads the result is told so.
"""

from __future__ import annotations

import csv
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import Qwen2Config

from rlhfless.engine.protocol import Request
from solver import Workload

PROJECT = Path(__file__).parents[2]
LOG = PROJECT.parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
PREPARED = PROJECT / "out" / "gpu_lengths.npz"
LOG_MEAN, LOG_SD = 369.56, 99.65  # of the log's first pass: 512 prompts x 8 samples, cut at 512 tokens
PROMPTS, SAMPLES, LIMIT = 512, 8, 512
SHORTEST_PROMPT, LONGEST_PROMPT = 48, 160  # the log has no prompts: lengths as questions of grade-school mathematics have
SHIPPED = {"3B": {"nvidia-h100-80gb-hbm3": "h100-qwen2.5-3b-tp1"}}  # generated profiles to compare with, by size and GPU


def attempted(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``run`` finds, or why it failed: whatever goes wrong on a machine that is hard to come by, the rest is measured."""
    try:
        return run()
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}


class Size(NamedTuple):
    """Shape of a Qwen2.5 model: facts of its public configuration."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = 151936
    context: int = 32768


SIZES = {"0.5B": Size(896, 24, 14, 2, 4864), "3B": Size(2048, 36, 16, 2, 11008)}
TINY = Size(64, 2, 4, 2, 128, 512, 1024)


def write_config(size: Size, folder: Path) -> str:
    """Writes ``config.json`` into the folder and returns the folder's name."""
    config = Qwen2Config(
        vocab_size=size.vocabulary, hidden_size=size.hidden, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, intermediate_size=size.intermediate,
        max_position_embeddings=size.context, tie_word_embeddings=True, use_sliding_window=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    return str(folder)


def prepare(log: Path = LOG, out: Path = PREPARED) -> Path:
    """Lengths of the log's first pass as (prompts, samples) in a file of numbers only.

    Raises:
        FileNotFoundError: the log is not there.
    """
    lengths = np.zeros((PROMPTS, SAMPLES), np.int64)
    with log.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["visit"] == "0":
                lengths[int(row["prompt_index"]), int(row["rollout"])] = int(row["response_tokens"])
    assert lengths.min() >= 1, f"{log}: not every sample of every prompt has a length"
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, lengths=lengths)
    return out


def known_lengths(prepared: Path = PREPARED) -> tuple[np.ndarray, str]:
    """(512, 8) lengths in tokens, and in words where they come from."""
    if prepared.is_file():
        return np.load(prepared)["lengths"], "a logged GRPO run on GSM8K, first pass (tinker-rl-lab, run areal)"
    spread = math.sqrt(math.log(1 + (LOG_SD / LOG_MEAN) ** 2))
    drawn = np.random.default_rng(0).lognormal(math.log(LOG_MEAN) - spread**2 / 2, spread, (PROMPTS, SAMPLES))
    return np.clip(np.rint(drawn), 1, LIMIT).astype(np.int64), (
        f"MADE UP: lognormal, every response by itself, mean {LOG_MEAN:.0f} and standard deviation {LOG_SD:.0f} before "
        f"the cut at {LIMIT}, as in a logged GRPO run on GSM8K; {prepared.name} was not there"
    )


class Step(NamedTuple):
    """A step of known lengths: token ids of its prompts and its workload."""

    prompts: list[np.ndarray]
    workload: Workload

    def requests(self) -> list[Request]:
        """One per response, its length forced."""
        owners, lengths = self.workload.prompt_of.tolist(), self.workload.response_tokens.astype(int).tolist()
        return [
            Request(i, len(self.prompts[p]), LIMIT, target_tokens=n, prompt_ids=self.prompts[p], seed=i, prompt=p)
            for i, (p, n) in enumerate(zip(owners, lengths, strict=True))
        ]


def step_of(lengths: np.ndarray, vocabulary: int) -> Step:
    """Random token ids in front of (P, G) lengths."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(SHORTEST_PROMPT, LONGEST_PROMPT + 1, len(lengths)).tolist()
    return Step([rng.integers(1, vocabulary, n) for n in tokens], Workload.grid(tokens, lengths, max_response_tokens=LIMIT))
